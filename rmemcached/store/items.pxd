"""Allocation and lookup of items. memcached: items.c."""

cdef struct item_counters:
    uint64_t cas_id             # atomic: the last CAS value; every set writes it
    char pad_after_cas_id[CACHE_LINE]
    uint64_t get_expired        # atomic
    uint64_t get_flushed        # atomic
    char pad_after_counts[CACHE_LINE]   # every request reads the hash table's fields, which follow in the store

# The key's item without a reference: the item lock, which the caller holds, keeps it where it is.
cdef item *do_item_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil
