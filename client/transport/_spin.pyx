"""See _spin.pxd."""

from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport sched_yield
from rmemcached.sys.pause cimport YIELD_LONG, pause_begin, pause_look, pause_undisturbed


cdef enum:
    SPIN_SCORE_MAX = 16
    SPIN_RETRY = 64          # while spinning does not pay, every 64th wait tries again
    YIELD_SHORT = 1000       # ns of a sched_yield without another process: two switches of processes take longer
    LONE_YIELDS = 16         # short yields in a row: then this thread has the core for itself


cdef void spin_begin(spinning *s, int64_t ns) noexcept nogil:
    s.ns = ns
    s.score = SPIN_SCORE_MAX // 2


cdef bint pauses(spinning *s) noexcept nogil:
    # Whether other threads want the core.
    cdef int64_t now = now_ns()
    pause_look(&s.pause, now)
    return now < s.pause.again


cdef int64_t spin_budget(spinning *s) noexcept nogil:
    if s.ns == 0 or s.pause.ns and pauses(s):
        return 0
    if s.score > 0:
        return s.ns
    s.skipped += 1
    return s.ns if s.skipped % SPIN_RETRY == 0 else 0


cdef bint spin_yield(spinning *s, int64_t *now, int64_t expected) noexcept nogil:
    cdef int64_t before = now[0]
    sched_yield()
    now[0] = now_ns()
    s.lone_yields = min(s.lone_yields + 1, <unsigned int>LONE_YIELDS) if now[0] - before < YIELD_SHORT else 0
    if now[0] - before <= YIELD_LONG + expected:
        pause_undisturbed(&s.pause)
        return True
    pause_begin(&s.pause, now[0])
    return False


cdef bint spin_has_core(const spinning *s) noexcept nogil:
    return s.lone_yields == LONE_YIELDS


cdef void spin_result(spinning *s, bint paid) noexcept nogil:
    if paid:
        pause_undisturbed(&s.pause)
        s.score = min(s.score + 1, SPIN_SCORE_MAX)
    elif s.score > 0:
        s.score -= 1
