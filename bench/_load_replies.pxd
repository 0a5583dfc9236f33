# The replies: they are taken in pieces of any length, compared, and counted. The loop (_load_turns.pyx) calls both.

# Counts a time of `ns` in the BUCKETS of a histogram.
cdef void count_latency(uint64_t *buckets, int64_t ns) noexcept nogil
# Takes the bytes received on a connection at the time `now`, and counts the answered requests. Returns 0; or WRONG, and
# load.wrong_... describe the wrong reply.
cdef int take_bytes(load *l, connection *c, const char *p, size_t length, int64_t now) noexcept nogil
