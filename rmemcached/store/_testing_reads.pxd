"""A client that copies a store's memory line by line in any order, like an RDMA device, for Store's tests."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_answer, direct_hit, direct_memory

cdef enum:
    READ_ROOM = 65536 + 64       # bytes for the copy of an item, at a multiple of 64

# Copies the key's bucket and its item, and verifies the item; with verify False the copy is taken without a check.
# hit.data is in `to`. seed: of the changing order.
cdef direct_answer read_lines(direct_memory *m, const char *key, size_t nkey, bint verify, uint64_t *seed, char *to,
                              direct_hit *hit) noexcept nogil
# As direct_run, by such reads.
cdef const char *lines_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                           uint64_t *counts) noexcept nogil
# Reads a key whose value is a rising number, until *stop: never less than *told was before the read, nor than an
# earlier number. Counts as lines_run. Returns the fault, or NULL.
cdef const char *lines_follow(direct_memory *m, const char *key, size_t nkey, uint64_t *told, uint32_t *stop,
                              uint64_t *counts) noexcept nogil
