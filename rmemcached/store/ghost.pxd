"""The ghost queue of S3-FIFO: which keys were evicted lately without having been fetched. A key that comes back while
it is remembered enters the main queue.

It is a table and no queue: a bucket is a cache line of entries, and an entry has the key's hash and when the key was
evicted, counted in evictions. Entries that are older than the main queues are long are not found, and the oldest one
of a bucket makes room for the next. No lock: an entry is one word, and what two threads do to a bucket at the same time
costs an entry at worst.
"""

cdef enum:
    GHOST_ENTRIES = CACHE_LINE // 8     # in a bucket
    GHOST_SHARE = 256                   # bytes of the memory limit for each entry: at most 3 % of the limit is added

cdef struct ghost_bucket:
    uint64_t entries[GHOST_ENTRIES]     # atomic: hash << 32 | clock; 0: none

cdef struct ghost_table:
    # constant
    ghost_bucket *buckets       # NULL: the algorithm is another one
    uint32_t mask
    char pad_after_constants[CACHE_LINE]
    uint32_t clock              # atomic: keys remembered so far, modulo 2^32
    uint32_t length             # atomic: for how many of these a key is remembered
    uint64_t hits               # atomic: keys that came back in time
    char pad_after_counts[CACHE_LINE]

# False: no memory. Nothing is done for another algorithm.
cdef bint ghost_init(store *s) noexcept nogil
cdef void ghost_destroy(store *s) noexcept nogil
# Remembers the key of an evicted item.
cdef void ghost_add(store *s, unsigned int clsid, uint32_t hv) noexcept nogil
# Whether a key is remembered, which it is no more.
cdef bint ghost_take(store *s, unsigned int clsid, uint32_t hv) noexcept nogil
cdef uint64_t ghost_bytes(store *s) noexcept nogil
