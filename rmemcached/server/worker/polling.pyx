cdef enum:
    CREDIT_MAX = 10000000        # ns of polling that a worker can save up


cdef void polling_end(polling *p, int64_t now) noexcept nogil:
    cdef int64_t polled = now - p.since
    p.credit -= polled
    p.polled += polled
    p.since = 0


cdef bint may_poll(polling *p, int64_t now) noexcept nogil:
    """Whether the worker has polling time left, and nobody else wants the core."""
    cdef int64_t polled = now - p.since if p.since else 0
    cdef int64_t earned
    if p.share < 100 and polled == 0:
        # At first p.earned is 0, and the difference is the time since the system's start: its product could overflow.
        earned = min(now - p.earned, <int64_t>CREDIT_MAX * 100) * p.share // 100
        p.credit = min(p.credit + earned, <int64_t>CREDIT_MAX)
        p.earned = now
    return now >= p.pause.again and (p.share == 100 or p.credit > polled)


cdef bint polling_on(polling *p) noexcept nogil:
    """Where busy processes share the core, each yield lasts as long as their time slices, and a sleeping worker is
    woken sooner. Then the worker does not poll for a while.
    """
    cdef int64_t now
    if p.expected == 0:
        return False
    now = now_ns()
    if now >= p.expected or not may_poll(p, now):
        if p.since:
            polling_end(p, now)
        p.expected = 0
        return False
    if p.since == 0:
        p.since = now
    pause_look(&p.pause, now)
    # The sender of the next request may be waiting for this very core.
    sched_yield()
    if now_ns() - now > YIELD_LONG:
        pause_begin(&p.pause, now)
    else:
        pause_undisturbed(&p.pause)
    return True
