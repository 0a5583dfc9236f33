"""Polling before a wait blocks, while polling pays: the experience of a stream with its waits.

The functions use no Python object, and need no GIL. Only the thread in a call of the stream calls them.
"""

from libc.stdint cimport int64_t

from rmemcached.sys.pause cimport polling_pause

cdef struct spinning:
    int64_t ns               # poll for this long before blocking; 0: never
    int score                # above 0: spinning has lately paid
    unsigned int skipped     # waits with a score of 0: every 64th tries to spin
    polling_pause pause      # no spinning for a time, because other threads wanted the core
    unsigned int lone_yields     # yields in a row that found nobody else for the core, up to LONE_YIELDS

# Begins the experience of a new stream. ns: the Client's option.
cdef void spin_begin(spinning *s, int64_t ns) noexcept nogil
# Called before a wait. Returns the nanoseconds to spin; 0: the wait shall block at once.
cdef int64_t spin_budget(spinning *s) noexcept nogil
# Called between two polls. Lets other threads run, and sets *now. `expected`: ns of their work for this request. False:
# they had the core for longer, so the caller stops spinning, and the next waits pause.
cdef bint spin_yield(spinning *s, int64_t *now, int64_t expected) noexcept nogil
# Whether nobody else wants the core, by the experience of past yields: then a yield at each turn is not needed.
cdef bint spin_has_core(const spinning *s) noexcept nogil
# Called after spinning. paid: the reply came meanwhile. Changes the score, and so later budgets.
cdef void spin_result(spinning *s, bint paid) noexcept nogil
