# Connections, and the loop that serves them. Load (_load.pyx) calls all of these.

# Allocates the pool and all buffers but those of connections. largest: bytes of the longest value. release frees all.
cdef int prepare_memory(load *l, size_t largest) except -1
cdef void free_connections(load *l) noexcept
cdef void release(load *l) noexcept
cdef connection *new_connection(load *l) except NULL
# Sets the counts to 0 for a run from `begin` to `until`. The first run also starts epoll.
cdef int start_run(load *l, int64_t begin, int64_t until) except -1
# Sends the first requests of a run. first_turn and take_turns return a step, or -errno.
cdef int first_turn(load *l, int64_t now) noexcept nogil
cdef int take_turns(load *l, int64_t slice_end) noexcept nogil
