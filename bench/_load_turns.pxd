# Connections, and the loop that serves them. Only Load (_load.pyx) calls these functions.

# Allocates the pool and the buffers and counts of all requests, for Load's constructor. largest: bytes of the longest
# value. Raises MemoryError; release then frees the part already allocated.
cdef int prepare_memory(load *l, size_t largest) except -1
# Frees all connections, and closes epoll and the timer: for Load.close, and after an error. Sockets and streams stay
# open.
cdef void free_connections(load *l) noexcept
# Frees all memory of the load, connections included, when the Load is deallocated.
cdef void release(load *l) noexcept
# Adds a connection, with fd -1 and no stream: the caller sets either. The address is valid until the next call. Raises
# ValueError after the first run, MemoryError.
cdef connection *new_connection(load *l) except NULL
# Sets the counts to 0 for a run from `begin` to `until`. The first run also starts epoll. Raises OSError, MemoryError.
cdef int start_run(load *l, int64_t begin, int64_t until) except -1
# Sends the first requests of a run, after start_run. Returns a step, or -errno.
cdef int first_turn(load *l, int64_t now) noexcept nogil
# Goes on until the time slice_end (RUNNING), or to the end of the run, after first_turn. Returns a step, or -errno.
cdef int take_turns(load *l, int64_t slice_end) noexcept nogil
