"""The hash table, doubled by a thread while in use, and the item locks. memcached: assoc.c, thread.c.

An item lock guards all buckets whose index ends in the lock's index, and the items in them. There are fewer locks than
buckets, so a bucket keeps its lock when the table grows.

store.pxd declares item_unlock, store_debug_lock and store_debug_unlock.
"""

cdef enum:
    HASHPOWER_MAX = 32

cdef struct item_stripe:
    pthread_mutex_t lock        # an item lock
    # The linked items of the stripe: written with the lock held, read with relaxed loads without the lock. count_items
    # adds up these counts, because in the queues' sizes an item moving to another queue may count twice, or not at all.
    uint64_t items
    uint64_t bytes
    uint64_t indexed            # of these, the items in the index of direct reads

cdef struct hash_table:
    # constant
    item_stripe *item_locks
    uint32_t item_lock_mask
    # The item lock guards its buckets. Writers set a bucket's head with relaxed stores, and items_ahead reads the head
    # without the lock. The pointers and masks change with all item locks held; the growing thread writes expand_bucket
    # with the bucket's item lock held.
    item **primary_hashtable
    item **old_hashtable
    uint64_t hash_mask
    uint64_t old_hash_mask
    unsigned int hashpower      # atomic
    unsigned int expanding      # atomic: the old table still has its buckets from expand_bucket on
    uint64_t expand_bucket
    # growth
    pthread_mutex_t grow_lock   # for starting and joining the thread; a thread with another lock only tries this lock
    pthread_t grow_thread
    bint grow_joinable
    unsigned int growing        # atomic: the thread is at work
    uint64_t malloc_fails       # atomic: there was no memory to grow

# Makes the table and the item locks, for store_create. False: no memory.
cdef bint assoc_init(store *s) noexcept nogil
# Waits for the growing thread, for store_stop_threads; store.stopping is set.
cdef void assoc_stop(store *s) noexcept nogil
# Frees the table and the item locks, for store_destroy.
cdef void assoc_destroy(store *s) noexcept nogil
# Starts the growing thread when there are more than 1.5 items per bucket. Called by store_tick, and by a thread linking
# an item (every 256th link into a queue), which holds the item lock.
cdef void assoc_check_load(store *s) noexcept nogil

# --- counts ---
# Counts the linked items of the whole store, and adds up their ITEM_size, stripe by stripe: a caller with all item
# locks gets the state of one moment.
cdef void count_items(store *s, uint64_t *items, uint64_t *nbytes) noexcept nogil

# The item lock of a hash value.
cdef pthread_mutex_t *item_mutex(store *s, uint32_t hv) noexcept nogil
# The item lock of an item's key, for assertions: computes the hash.
cdef pthread_mutex_t *item_mutex_of(store *s, item *it) noexcept nogil
cdef void item_lock(store *s, uint32_t hv) noexcept nogil
# Returns whether the lock was free, and is held now.
cdef bint item_trylock(store *s, uint32_t hv) noexcept nogil

# The head of the chain for a hash; items with other hashes share the chain. The caller has the item lock of hv.
cdef item **assoc_bucket(store *s, uint32_t hv) noexcept nogil
# The functions below are for a caller with the item lock of hv. assoc_find returns NULL if no item has the key; the
# item may be expired.
cdef item *assoc_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil
cdef void assoc_insert(store *s, item *it, uint32_t hv) noexcept nogil
cdef void assoc_delete(store *s, item *it, uint32_t hv) noexcept nogil
# Puts fresh, with the same key, in the item's place.
cdef void assoc_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
