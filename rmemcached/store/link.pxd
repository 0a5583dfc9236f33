"""The links of items: their places in the hash table and in an LRU queue, the references to them, and the counts of
linked items. A linked item can be found; giving back the last reference frees an item. memcached: items.c.

slabs_clsid names an item's queue: class id | queue << SLAB_CLASS_BITS. The field changes with the item lock held, while
the item is in no queue.

This header is for the store's other parts. store.pxd declares the functions for the protocols: item_remove,
do_item_link, do_item_set_cas and others.
"""

cdef enum:
    HOT_LRU = 0 << SLAB_CLASS_BITS      # queues, to be combined with the class id
    WARM_LRU = 1 << SLAB_CLASS_BITS
    COLD_LRU = 2 << SLAB_CLASS_BITS
    TEMP_LRU = 3 << SLAB_CLASS_BITS
    LRU_MASK = 3 << SLAB_CLASS_BITS

cdef struct lru_counters:       # cleared by `stats reset`
    uint64_t total_items        # links
    uint64_t evicted
    uint64_t evicted_nonzero
    uint64_t reclaimed
    uint64_t outofmemory
    uint64_t expired_unfetched
    uint64_t evicted_unfetched
    uint64_t evicted_active
    uint64_t lrutail_reflocked
    uint64_t direct_reclaims
    uint64_t crawler_reclaimed
    uint64_t crawler_items_checked
    uint64_t tailrepairs
    uint64_t moves_to_cold
    uint64_t moves_to_warm
    uint64_t moves_within_lru
    rel_time_t evicted_time

cdef struct lru_queue:
    pthread_mutex_t lock        # the LRU lock, for all fields
    item *head
    item *tail
    uint64_t size               # items; others read the field without the lock, by relaxed loads
    uint64_t bytes              # sum of their ITEM_size
    # The crawl under way (crawler.pyx), and the flush_all under way (lru.pyx). A thread that takes the item `crawl` or
    # `flush` out of the queue sets the field to the item's neighbour.
    item *crawl                 # the next item of the crawl; NULL: no crawl, or no more items
    uint32_t crawl_remaining    # items still to be looked at by the crawl
    item *flush                 # the next item of the flush; NULL: no flush, or no more items
    lru_counters stats

cdef struct item_sizes:         # `stats sizes`
    uint32_t *count             # linked items by size / SIZES_GRANULARITY, atomic; NULL: not counted
    uint32_t buckets            # constant

# Makes the locks of the queues, and the counts of sizes, for store_create. False: no memory.
cdef bint link_init(store *s) noexcept nogil
# Frees the counts and the locks, for store_destroy.
cdef void link_destroy(store *s) noexcept nogil

# --- items ---
# do_item_unlink for eviction, flush_all and the crawler: the caller holds the item lock and the LRU lock of the item's
# queue q.
cdef void do_item_unlink_nolock(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil
# Links an item in the place of a linked item with the same key, as do_item_unlink and do_item_link would, for the
# commands that store. used: the item's time of use. Gives the table's reference to the old item back: without another
# reference the item is freed. The caller holds the item lock.
cdef void do_item_supersede(store *s, item *old, item *it, uint32_t hv, uint64_t cas, rel_time_t used) noexcept nogil
# Puts `fresh`, the page mover's copy of a linked item or of its head, in the item's place in table and queue, and gives
# the copy the table's reference. The mover holds the item lock, and a reference to the item.
cdef void do_item_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
# Gives back a reference of the table or of the store's own threads. For references from item_alloc and from lookups
# there is do_item_remove.
cdef void do_item_unref(store *s, item *it) noexcept nogil

# Counts an item linked, or no longer linked. The caller holds the item lock of hv.
cdef void do_count_linked(store *s, item *it, uint32_t hv) noexcept nogil
cdef void do_count_unlinked(store *s, item *it, uint32_t hv) noexcept nogil

# --- queues ---
# The queue's part of slabs_clsid: HOT_LRU, ...
cdef unsigned int ITEM_lruid(const item *it) noexcept nogil
# Puts an item at the head of a queue. The caller holds the LRU lock.
cdef void do_item_link_q(store *s, lru_queue *q, item *it) noexcept nogil
# Takes an item out of its queue; a crawl and a flush go on with the next item. The caller holds the LRU lock.
cdef void do_item_unlink_q(store *s, lru_queue *q, item *it) noexcept nogil
