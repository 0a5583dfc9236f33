"""Allocation and lookup of items. memcached: items.c.

store.pxd declares the functions for the protocols: item_alloc, item_get, item_touch and others.
"""

cdef struct item_counters:
    uint64_t get_expired        # atomic
    uint64_t get_flushed        # atomic
    char pad_after_counts[CACHE_LINE]   # every request reads the fields of the hash table, next in the store

# item_alloc, or the same for a header (for_header): without room for a seal, and nothing goes outward for its memory.
cdef item *item_alloc_as(store *s, const char *key, size_t nkey, uint32_t flags, rel_time_t exptime, size_t nbytes,
                         bint for_header) noexcept nogil
# Whether external storage takes items of the class.
cdef bint class_goes_outward(store *s, unsigned int clsid) noexcept nogil
# Has external storage take the item of the class that eviction would take next. Returns 0 if the item has to be
# evicted; else like an evicting lru_pull_tail.
cdef int evict_outward(store *s, unsigned int clsid) noexcept nogil
# Has external storage take an item: then a header is in its place. The caller has the item lock, and keeps its
# reference. False: the item has to be evicted.
cdef bint do_move_outward(store *s, const victim *v) noexcept nogil
# The key's item without a reference, for lookups and stores: the caller's item lock keeps the item in place. Unlinks an
# expired or flushed item, and logs the fetch. NULL: no item.
cdef item *do_item_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil
