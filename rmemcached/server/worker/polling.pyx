cdef enum:
    YIELD_LONG = 200000          # ns of a sched_yield when the core is wanted; a time slice has milliseconds
    PAUSE_MIN = 10000000         # ns without polling after such a yield, and twice as long each time, up to
    PAUSE_MAX = 640000000
    POLLED_WELL = 256            # undisturbed yields, after which the pause is halved
    CREDIT_MAX = 10000000        # ns of polling at once, after a time without polling


cdef void polling_end(polling *p, int64_t now) noexcept nogil:
    """Takes the polled time off the worker's credit."""
    cdef int64_t polled = now - p.since
    p.credit -= polled
    p.polled += polled
    p.since = 0


cdef bint may_poll(polling *p, int64_t now) noexcept nogil:
    """Whether the worker has polling time left, and nobody else wants the core."""
    cdef int64_t polled = now - p.since if p.since else 0
    cdef int64_t earned
    if p.share < 100 and polled == 0:
        # The first time is counted from the system's start: without the limit the product could overflow.
        earned = min(now - p.earned, <int64_t>CREDIT_MAX * 100) * p.share // 100
        p.credit = min(p.credit + earned, <int64_t>CREDIT_MAX)
        p.earned = now
    return now >= p.again and (p.share == 100 or p.credit > polled)


cdef inline void halve_pause(polling *p) noexcept nogil:
    p.pause = p.pause // 2 if p.pause > PAUSE_MIN else 0


cdef bint polling_on(polling *p) noexcept nogil:
    """With busy processes on the core, each yield costs the worker their time slices, and a sleeper is woken sooner.
    Then the worker does not poll for a while.
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
    if p.pause and now - p.again > p.pause:
        # Polling has been possible for as long as the pause was.
        halve_pause(p)
        p.again = now
    # The sender of the next request may be waiting for this very core.
    sched_yield()
    if now_ns() - now > YIELD_LONG:
        p.undisturbed = 0
        p.pause = min(max(2 * p.pause, <int64_t>PAUSE_MIN), <int64_t>PAUSE_MAX)
        p.again = now + p.pause
    elif p.pause:
        # Processes that run for a moment now and then would otherwise keep the pause for ever.
        p.undisturbed += 1
        if p.undisturbed == POLLED_WELL:
            p.undisturbed = 0
            halve_pause(p)
    return True
