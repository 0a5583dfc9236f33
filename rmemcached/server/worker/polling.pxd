# Whether a worker polls instead of sleeping: while a request is expected soon, nobody else wants the core, and the
# worker's time for polling is not used up. The worker's thread.

cdef struct polling:
    # constant
    int64_t gap_max              # ns of the longest gap between requests for polling; 0: no polling
    unsigned int share           # percent of the worker's time for polling, at most
    # the worker's own. All times are now_ns()
    int64_t expected             # until when a request is expected; 0: none is soon
    int64_t since                # since when the worker polls, without sleep; 0: no polling
    int64_t polled               # ns of polling; the source counts and clears them
    int64_t credit               # ns left for polling, by `share`
    int64_t earned               # when the credit was last added to
    polling_pause pause          # no polling before `again`: somebody else wanted the core

# Called before a sleep. Whether to poll instead; if so, yields the core once.
cdef bint polling_on(polling *p) noexcept nogil
# Ends polling, because there is something to serve or the worker may sleep: adds the time since p.since to p.polled,
# and takes it off the credit.
cdef void polling_end(polling *p, int64_t now) noexcept nogil
