"""Polling before a wait blocks, while polling pays: the experience of a stream with its waits.

C structures: no Python object, no GIL. Owned by the thread in a call of the stream.
"""

from libc.stdint cimport int64_t

from rmemcached.sys.pause cimport polling_pause

cdef struct spinning:
    int64_t ns               # poll for this long before blocking; 0: never
    int score                # above 0: spinning has lately paid
    unsigned int skipped
    polling_pause pause
    unsigned int lone_yields     # yields in a row that found nobody else for the core, up to LONE_YIELDS

# Begins the experience of a new stream. ns: the Client's option.
cdef void spin_begin(spinning *s, int64_t ns) noexcept nogil
# Nanoseconds of spinning for the coming wait.
cdef int64_t spin_budget(spinning *s) noexcept nogil
# Lets other threads run, and looks at the clock. `expected`: ns of their work for this request. False: they had the
# core for longer.
cdef bint spin_yield(spinning *s, int64_t *now, int64_t expected) noexcept nogil
# Whether nobody else wants the core, by the experience of past yields: then a yield at each turn is not needed.
cdef bint spin_has_core(const spinning *s) noexcept nogil
# Notes a wait's end. paid: the reply came while spinning.
cdef void spin_result(spinning *s, bint paid) noexcept nogil
