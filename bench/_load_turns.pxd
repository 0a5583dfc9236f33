# Connections, and the loop that serves them.

cdef int prepare_memory(load *l, size_t largest) except -1
cdef void free_connections(load *l) noexcept
cdef void release(load *l) noexcept
cdef connection *new_connection(load *l) except NULL
cdef int start_run(load *l, int64_t begin, int64_t until) except -1
cdef int first_turn(load *l, int64_t now) noexcept nogil
cdef int take_turns(load *l, int64_t slice_end) noexcept nogil
