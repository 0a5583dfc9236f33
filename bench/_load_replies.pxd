# The replies: they are taken in pieces of any length, compared, and counted.

cdef void count_latency(uint64_t *buckets, int64_t ns) noexcept nogil
cdef int take_bytes(load *l, connection *c, const char *p, size_t length, int64_t now) noexcept nogil
