"""Counts of commands by the prefix of their keys, for `stats detail`. memcached: stats_prefix.c.

The server makes a table; command modules record keys there, from any worker; `admin_stats` and `binary` show the
counts.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.linux cimport pthread_mutex_t

cdef enum:
    PREFIX_BUCKETS = 1024
    MAX_PREFIX_COUNT = 65536     # further prefixes are not counted

cdef struct prefix_entry:        # under the lock of its table
    prefix_entry *next
    uint64_t gets
    uint64_t hits
    uint64_t sets
    uint64_t deletes
    size_t length
    char prefix[1]               # of `length` bytes; allocated with the entry

# A table per server; shared by all workers.
cdef struct stats_prefixes:
    uint64_t enabled             # atomic
    char delimiter               # constant
    pthread_mutex_t lock
    # under lock
    size_t count
    prefix_entry *buckets[PREFIX_BUCKETS]

# Makes a table, at the server's start. NULL: out of memory.
cdef stats_prefixes *stats_prefix_create(char delimiter, bint enabled) noexcept nogil
# Frees the table, after the workers' end.
cdef void stats_prefix_destroy(stats_prefixes *p) noexcept nogil
# Forgets all prefixes and counts, for `stats reset`. Any thread.
cdef void stats_prefix_clear(stats_prefixes *p) noexcept nogil
# Returns the lines "PREFIX ..." and END, malloc'd, for `stats detail dump`. NULL: out of memory. Any thread.
cdef char *stats_prefix_dump(stats_prefixes *p, size_t *length) noexcept nogil
# Count a command with this key, for the inline functions below. A key without the delimiter is not counted. Any thread.
cdef void stats_prefix_add_get(stats_prefixes *p, const char *key, size_t nkey, bint hit) noexcept nogil
cdef void stats_prefix_add_set(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil
cdef void stats_prefix_add_delete(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil

# ---- for commands; p is NULL in a test without a server --------------------------------------------------------------

cdef inline bint stats_prefix_on(stats_prefixes *p) noexcept nogil:
    return p != NULL and relaxed_load(&p.enabled) != 0

cdef inline void stats_prefix_record_get(stats_prefixes *p, const char *key, size_t nkey, bint hit) noexcept nogil:
    if stats_prefix_on(p):
        stats_prefix_add_get(p, key, nkey, hit)

cdef inline void stats_prefix_record_set(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil:
    if stats_prefix_on(p):
        stats_prefix_add_set(p, key, nkey)

cdef inline void stats_prefix_record_delete(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil:
    if stats_prefix_on(p):
        stats_prefix_add_delete(p, key, nkey)
