"""See _spin.pxd."""

from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport sched_yield


cdef enum:
    SPIN_SCORE_MAX = 16
    SPIN_RETRY = 64          # while spinning does not pay, every 64th wait tries again
    YIELD_LONG = 200000      # a sched_yield of more ns means a busy core; a time slice has milliseconds
    YIELD_SHORT = 1000       # ns of a sched_yield without another process: two switches of processes take longer
    LONE_YIELDS = 16         # short yields in a row: then this thread has the core for itself
    PAUSE_MIN = 10000000     # ns without spinning after a long yield, doubled with each further long yield, up to
    PAUSE_MAX = 640000000
    SPUN_WELL = 256          # undisturbed yields and waits, after which the pause is halved


cdef void spin_begin(spinning *s, int64_t ns) noexcept nogil:
    s.ns = ns
    s.score = SPIN_SCORE_MAX // 2


cdef bint pauses(spinning *s) noexcept nogil:
    # Whether other threads want the core. The pause is halved after as long a time with possible spinning.
    cdef int64_t since = now_ns() - s.again
    if since > s.pause:
        s.pause = s.pause // 2 if s.pause > PAUSE_MIN else 0
        s.again += since
    return since < 0


cdef int64_t spin_budget(spinning *s) noexcept nogil:
    if s.ns == 0 or s.pause and pauses(s):
        return 0
    if s.score > 0:
        return s.ns
    s.skipped += 1
    return s.ns if s.skipped % SPIN_RETRY == 0 else 0


cdef void spun_well(spinning *s) noexcept nogil:
    # An idle stream halves its pause after a time as long as the pause (see pauses). A busy stream need not wait for
    # so long: short visits of other threads now and then would keep the pause alive for ever.
    if s.pause == 0:
        return
    s.well += 1
    if s.well == SPUN_WELL:
        s.well = 0
        s.pause = s.pause // 2 if s.pause > PAUSE_MIN else 0


cdef bint spin_yield(spinning *s, int64_t *now, int64_t expected) noexcept nogil:
    cdef int64_t before = now[0]
    sched_yield()
    now[0] = now_ns()
    s.lone_yields = min(s.lone_yields + 1, <unsigned int>LONE_YIELDS) if now[0] - before < YIELD_SHORT else 0
    if now[0] - before <= YIELD_LONG + expected:
        spun_well(s)
        return True
    s.well = 0
    s.pause = min(max(2 * s.pause, <int64_t>PAUSE_MIN), <int64_t>PAUSE_MAX)
    s.again = now[0] + s.pause
    return False


cdef bint spin_has_core(const spinning *s) noexcept nogil:
    return s.lone_yields == LONE_YIELDS


cdef void spin_result(spinning *s, bint paid) noexcept nogil:
    if paid:
        spun_well(s)
        s.score = min(s.score + 1, SPIN_SCORE_MAX)
    elif s.score > 0:
        s.score -= 1
