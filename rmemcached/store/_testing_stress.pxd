"""Threads that use a store at once and verify all values read, for Store.stress and Store.race of _testing."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_memory
from rmemcached.store.store cimport store

cdef struct stress_result:
    uint64_t gets
    uint64_t hits
    uint64_t stored
    uint64_t not_stored
    uint64_t no_memory
    uint64_t joined
    uint64_t deleted
    uint64_t counted
    uint64_t flushed
    uint64_t marked     # items made stale
    uint64_t won        # stale items given to the thread to recache
    uint64_t moves      # pages asked for and granted

# Random commands of all kinds, ops for each thread. clock: a thread also moves the clock and flushes. move: another
# thread has slab pages moved all the time. even: values of all sizes, and references that end with the command.
# Returns a thread's finding, or NULL.
cdef const char *stress_run(store *s, int threads, uint64_t ops, uint64_t seed, uint64_t keys, size_t max_value,
                            bint clock, bint move, bint even, stress_result *result) noexcept nogil
# Reads random keys of such commands through m until *stop, and counts the asks, the values found, and the values in
# change. verify: as clients do; otherwise copies are taken without a check. Returns the fault, or NULL.
cdef const char *direct_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                            uint64_t *counts) noexcept nogil
# Whether such commands store this value for the key.
cdef bint stress_bytes_hold(const char *data, size_t length, uint64_t key) noexcept nogil
# Each thread adds 1 to the number at key ops times, by incr or by get and cas; counts the attempts lost to faster
# threads. Returns a thread's finding, or NULL.
cdef const char *race_run(store *s, int threads, uint64_t ops, const char *key, size_t nkey, bint use_cas,
                          uint64_t *retries) noexcept nogil
