"""A pause in polling, for a thread that polls and yields its core between polls: a worker, or a waiting client.

If busy processes want the core, a yield takes as long as their time slices; a thread that sleeps would get the core
back sooner. So after a long yield the thread sleeps instead of polling, until the pause ends. Times are now_ns().
"""

from libc.stdint cimport int64_t

cdef enum:
    YIELD_LONG = 200000      # ns; a longer sched_yield means a busy core (a time slice has milliseconds)
    PAUSE_MIN = 10000000     # ns without polling after a long yield, doubled with each further long yield, up to
    PAUSE_MAX = 640000000
    POLLED_WELL = 256        # undisturbed yields and waits, after which the pause is halved

cdef struct polling_pause:
    int64_t ns               # of the last pause; 0: no long yield lately
    int64_t again            # when the pause ends
    unsigned int well        # undisturbed yields and waits since the last change of the pause

cdef inline void pause_begin(polling_pause *p, int64_t now) noexcept nogil:
    """Called after a long yield: begins a pause, twice as long as the last within the limits."""
    p.well = 0
    p.ns = min(max(2 * p.ns, <int64_t>PAUSE_MIN), <int64_t>PAUSE_MAX)
    p.again = now + p.ns

cdef inline void pause_halve(polling_pause *p) noexcept nogil:
    p.ns = p.ns // 2 if p.ns > PAUSE_MIN else 0

cdef inline void pause_look(polling_pause *p, int64_t now) noexcept nogil:
    """Called before polling: halves the pause if polling has been possible for longer than the pause was."""
    if p.ns and now - p.again > p.ns:
        pause_halve(p)
        p.again = now

cdef inline void pause_undisturbed(polling_pause *p) noexcept nogil:
    """Called after an undisturbed yield or wait: halves the pause after POLLED_WELL of them.

    Without such calls, rare long yields, by short visits of other processes, would keep the pause long for ever.
    """
    if p.ns == 0:
        return
    p.well += 1
    if p.well == POLLED_WELL:
        p.well = 0
        pause_halve(p)
