"""The ghost queue of S3-FIFO: which keys were evicted lately, and from which queue. A key that comes back while it is
remembered enters the main queue.

It is a table and no queue: a bucket is a cache line of entries, and an entry has the key's hash and when the key was
evicted, counted in evictions. Entries that are too old are not found, and the oldest one of a bucket makes room for
the next. No lock: an entry is one word, and what two threads do to a bucket at the same time costs an entry at worst.

It also says how many of the items the small queues may have. Both queues evict what was not fetched for a while. If
more of what the small queues evict comes back soon than of what the main queues evict, then new keys have too little
time: the small queues' share grows. Else it shrinks.
"""

cdef enum:
    GHOST_ENTRIES = CACHE_LINE // 8     # in a bucket
    GHOST_SHARE = 256                   # bytes of the memory limit for each entry: at most 3 % of the limit is added
    GHOST_WHOLE = 1 << 16               # the unit of `small`

cdef enum:                      # where an item was evicted
    GHOST_SMALL
    GHOST_MAIN
    GHOST_SOURCES

cdef struct ghost_bucket:
    uint64_t entries[GHOST_ENTRIES]     # atomic: hash << 32 | clock << 1 | source; 0: none

cdef struct ghost_flow:         # of the queues of one kind
    uint64_t evicted            # atomic: keys remembered
    uint64_t returned           # atomic: those of them that came back early
    # Whoever has `measuring`
    uint64_t evicted_before     # at the last measurement
    uint64_t returned_before
    double evicted_lately       # sums in which what is long ago counts less
    double returned_lately

cdef struct ghost_table:
    # constant
    ghost_bucket *buckets       # NULL: the algorithm is another one
    uint32_t mask
    char pad_after_constants[CACHE_LINE]
    # atomic
    uint32_t clock              # keys remembered so far, modulo 2^32
    uint32_t length             # for how many of these a key is remembered
    uint32_t early              # ... and during how many its return counts as early
    uint32_t next               # the clock of the next measurement
    uint32_t measuring          # a thread measures
    uint32_t small              # the small queues' share of the items, in 1/GHOST_WHOLE
    uint64_t hits               # keys that came back in time
    ghost_flow flows[GHOST_SOURCES]
    char pad_after_counts[CACHE_LINE]

# False: no memory. Nothing is done for another algorithm.
cdef bint ghost_init(store *s) noexcept nogil
cdef void ghost_destroy(store *s) noexcept nogil
# Remembers the key of an item that was evicted from one of its class's queues.
cdef void ghost_add(store *s, unsigned int clsid, uint32_t hv, int source) noexcept nogil
# Whether a key is remembered, which it is no more.
cdef bint ghost_take(store *s, unsigned int clsid, uint32_t hv) noexcept nogil
# Whether the small queue, of so many items of a class, has more than its share, and more than a few.
cdef bint ghost_small_is_full(store *s, uint64_t small, uint64_t items) noexcept nogil
# Whether one eviction may look at all items of a class.
cdef bint ghost_class_is_small(store *s, unsigned int clsid) noexcept nogil
cdef void ghost_stats(store *s, store_stats *out) noexcept nogil
