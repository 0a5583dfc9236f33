"""A client that copies a store's memory line by line in any order, like an RDMA device, for Store's tests."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_answer, direct_hit, direct_memory

cdef enum:
    READ_ROOM = 65536 + 64       # bytes for the copy of an item, at a multiple of 64

# Copies the key's bucket and its item, and verifies the item; with verify False takes the copy unverified. hit.data
# points into `to`. seed: decides the order, and is changed by each call.
cdef direct_answer read_lines(direct_memory *m, const char *key, size_t nkey, bint verify, uint64_t *seed, char *to,
                              direct_hit *hit) noexcept nogil
# As direct_run of _testing_stress, but reads by read_lines.
cdef const char *lines_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                           uint64_t *counts) noexcept nogil
# Reads a key with a rising number as its value, until *stop. No value may be less than *told was before the read, or
# less than an earlier value. Counts as lines_run. Returns the error found, or NULL.
cdef const char *lines_follow(direct_memory *m, const char *key, size_t nkey, uint64_t *told, uint32_t *stop,
                              uint64_t *counts) noexcept nogil
