"""The ghost queue of S3-FIFO: the keys of lately evicted items, and their queues. A key stored again while remembered
enters the main queue.

The ghost queue is a table: a bucket is a cache line of entries. An entry has the key's hash and the time of the
eviction, counted in evictions. A lookup ignores entries above a certain age, and the oldest entry of a bucket makes
room for the next. There is no lock: an entry is one word, and two threads in the same bucket lose an entry at worst.

The table also sets the small queues' share of the items. Both queues evict items not fetched for a while. If a larger
part of the small queues' evicted keys comes back soon than of the main queues', then new keys have too little time: the
small queues' share grows. Otherwise the share shrinks.
"""

cdef enum:
    GHOST_ENTRIES = CACHE_LINE // 8     # in a bucket
    GHOST_SHARE = 256                   # bytes of the memory limit for each entry: the table adds 3 to 6 % to the limit
    GHOST_WHOLE = 1 << 16               # the unit of `small`

cdef enum:                      # where an item was evicted
    GHOST_SMALL
    GHOST_MAIN
    GHOST_SOURCES

cdef struct ghost_bucket:
    uint64_t entries[GHOST_ENTRIES]     # atomic: hash << 32 | clock << 1 | source; 0: none

cdef struct ghost_flow:         # counts of all small queues, or of all main queues
    uint64_t evicted            # atomic: keys remembered
    uint64_t returned           # atomic: of these, keys back early
    # Owned by the thread that has set `measuring`
    uint64_t evicted_before     # at the last measurement
    uint64_t returned_before
    double evicted_lately       # decaying sums: earlier counts weigh less
    double returned_lately

cdef struct ghost_table:
    # Constant after ghost_init:
    ghost_bucket *buckets       # NULL: no S3-FIFO
    uint32_t mask
    char pad_after_constants[CACHE_LINE]
    # Atomic:
    uint32_t clock              # keys remembered so far, modulo 2^32
    uint32_t length             # a key is remembered until the clock has advanced by so much
    uint32_t early              # a key's return is early until the clock has advanced by so much
    uint32_t next               # the clock of the next measurement
    uint32_t measuring          # a thread measures
    uint32_t small              # the small queues' share of the items, in 1/GHOST_WHOLE
    uint64_t hits               # keys back in time
    ghost_flow flows[GHOST_SOURCES]
    char pad_after_counts[CACHE_LINE]

# Makes the table, for store_create. False: no memory. Does nothing without S3-FIFO.
cdef bint ghost_init(store *s) noexcept nogil
# Frees the table, for store_destroy.
cdef void ghost_destroy(store *s) noexcept nogil
# Remembers the key of an item evicted from a queue of its class, for eviction by S3-FIFO. source: GHOST_SMALL or
# GHOST_MAIN. From time to time also measures, and changes the small queues' share.
cdef void ghost_add(store *s, unsigned int clsid, uint32_t hv, int source) noexcept nogil
# Whether a key is remembered, for do_item_link. Forgets the key, and counts the return.
cdef bint ghost_take(store *s, unsigned int clsid, uint32_t hv) noexcept nogil
# Whether a small queue with `small` of its class's `items` has more than its share, and more than a few.
cdef bint ghost_small_is_full(store *s, uint64_t small, uint64_t items) noexcept nogil
# Whether one eviction may look at all items of a class.
cdef bint ghost_class_is_small(store *s, unsigned int clsid) noexcept nogil
# Fills in the statistics of S3-FIFO, for store_get_stats.
cdef void ghost_stats(store *s, store_stats *out) noexcept nogil
