"""Threads that use a store at once and verify every value read.

_testing calls stress_run and race_run for Store.stress and Store.race. The threads of direct reads call the other
functions: direct_run runs in a thread of _testing_direct, and lines_run of _testing_reads calls stress_bytes_hold.
"""

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
    uint64_t won        # stale items won for recaching
    uint64_t moves      # granted requests to move a page

cdef struct stress_plan:
    int threads
    uint64_t ops        # commands of each thread
    uint64_t seed
    uint64_t keys
    size_t max_value
    bint clock          # one thread also moves the clock and flushes
    bint move           # another thread has slab pages moved all the time
    bint even           # values of all sizes, and no reference outlives its command

# Runs random commands of all kinds in the plan's threads. Returns an error found by a thread, or NULL.
cdef const char *stress_run(store *s, const stress_plan *plan, stress_result *result) noexcept nogil
# Reads random keys of stress_run's commands through m until *stop. Adds to counts, by direct_answer: misses, values
# found, items being changed. verify: as clients do; otherwise takes copies unverified. Returns the error found, or
# NULL.
cdef const char *direct_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                            uint64_t *counts) noexcept nogil
# Whether stress_run's commands can have stored this value for the key `key-<key>`. data, length: the value without its
# line end. direct_run and lines_run (_testing_reads) call the function for each value they find.
cdef bint stress_bytes_hold(const char *data, size_t length, uint64_t key) noexcept nogil
# Runs threads that each add 1 to the number at key, ops times, by incr or (use_cas) by get and cas. Adds to *retries
# the attempts lost to a faster thread. Returns an error found by a thread, or NULL.
cdef const char *race_run(store *s, int threads, uint64_t ops, const char *key, size_t nkey, bint use_cas,
                          uint64_t *retries) noexcept nogil
