"""What makes an item findable and what frees it: its place in the hash table and in an LRU queue, the references to it,
and the counts of linked items. memcached: items.c.

An item's queue is what slabs_clsid says: class id | queue << SLAB_CLASS_BITS. It changes with the item lock held while
the item is in no queue.
"""

cdef enum:
    HOT_LRU = 0 << SLAB_CLASS_BITS      # queues, to be combined with the class id
    WARM_LRU = 1 << SLAB_CLASS_BITS
    COLD_LRU = 2 << SLAB_CLASS_BITS
    TEMP_LRU = 3 << SLAB_CLASS_BITS
    LRU_MASK = 3 << SLAB_CLASS_BITS

cdef struct lru_counters:       # what `stats reset` clears
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

cdef struct lru_queue:          # the LRU lock
    pthread_mutex_t lock
    item *head
    item *tail
    uint64_t size               # items; assoc_check_load reads it without the lock
    uint64_t bytes              # sum of their ITEM_ntotal
    # The crawl under way (crawler.pyx). Whoever takes this item out of the queue replaces it by the next one.
    item *crawl                 # the next item; NULL: no crawl, or no more items
    uint32_t crawl_remaining    # items that the crawl still looks at
    item *flush                 # what a flush looks at next, likewise; NULL: there is none, or no more items
    lru_counters stats

cdef struct item_sizes:         # `stats sizes`
    uint32_t *count             # linked items by size / SIZES_GRANULARITY, atomic; NULL: not counted
    uint32_t buckets            # constant

# False: no memory.
cdef bint link_init(store *s) noexcept nogil
cdef void link_destroy(store *s) noexcept nogil

# --- items ---
# Unlinks an item, if it is linked. The LRU lock of its queue is held as well as its item lock.
cdef void do_item_unlink_nolock(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil
# Links an item in the place of a linked one with the same key, as do_item_unlink and do_item_link would: the old item,
# of which the caller needs no reference, may be freed.
cdef void do_item_supersede(store *s, item *old, item *it, uint32_t hv, uint64_t cas) noexcept nogil
# Puts a copy of a linked item, or of its head, in the item's place in table and queue, and gives it the table's
# reference. The item lock is held, and a reference.
cdef void do_item_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
# Gives back a reference that item_alloc or a lookup did not hand out: the table's, or one of the store's own threads.
cdef void do_item_unref(store *s, item *it) noexcept nogil

# --- queues ---
cdef unsigned int ITEM_lruid(const item *it) noexcept nogil
cdef void do_item_link_q(store *s, lru_queue *q, item *it) noexcept nogil
cdef void do_item_unlink_q(store *s, lru_queue *q, item *it) noexcept nogil
