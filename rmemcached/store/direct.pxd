"""The index by which clients find items for direct reads (docs/direct-reads.md, rmemcached/direct.pxd). Without
store_config.direct there is no index.

The store makes the index for the first client with the memory, and gives it up store_config.direct_linger seconds after
the last client has gone: without clients no command pays for an index. Commands keep a new index right from the
beginning. A thread enters the earlier items; clients ask for these until then. The same thread gives the index up in
the end. With store_config.direct_remote there always is an index.

A robust mutex tells clients whether the daemon lives. The mutex lies before the arena, and stays locked from
direct_init to direct_destroy.

A thread changes a bucket with an item lock held. All items of a bucket have the same lock, because there are no fewer
buckets than locks, and a hash's last bits choose both.

store.pxd declares the functions for the server: store_direct_give and others.
"""

cdef struct direct_index:
    pthread_mutex_t lock        # DIRECT_LOCK
    pthread_cond_t cond         # with lock: the store is stopping, or the last client has gone
    # Guarded by the lock. `header` changes only with all item locks held, too: so a thread with an item lock may use
    # `header` and the index.
    direct_header *header       # of the index that commands keep right; NULL: none
    direct_header *mapped       # the index's memory, where tell.pxd writes; NULL: no index
    direct_bucket *buckets      # of `header`; written with relaxed stores, as direct_ahead has no lock
    int fd                      # of header and index, for clients
    size_t covered              # bytes of the arena whose items the index can name
    size_t opened               # accessible bytes from the header on
    uint64_t alive              # constant: bytes from the mutex to its word written by the kernel
    bint lives                  # constant: whether the mutex is locked
    pthread_t thread
    bint joinable
    uint64_t readers            # clients with the memory now
    int64_t left_ns             # now_ns() when the last client went
    # atomic
    uint64_t bucket_count       # as in the header, for threads without the lock; 0: no index
    uint64_t building           # the thread still enters the items stored before
    uint64_t left_out           # how often an item found no room in the index
    uint64_t clients            # clients that got the memory since the start

# Makes the mutex and, with direct_remote, the index, for store_create. False: no memory, or the memory limit is too
# large for an index.
cdef bint direct_init(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; store.stopping is set. The index stays as it is, and clients ask for missing
# items.
cdef void direct_stop(store *s) noexcept nogil
# Tells clients of the end, and gives the mutex and the index's descriptor back, for store_destroy. With
# store_config.direct the caller is the thread of direct_init: only the thread that locked the mutex can unlock it.
cdef void direct_destroy(store *s) noexcept nogil

# --- for a caller with the item lock of hv ---
# Enters an item being linked. Without room in the index, the item gets ITEM_LEFT_OUT.
cdef void direct_insert(store *s, item *it, uint32_t hv) noexcept nogil
# Takes an item out of the index, if the index has the item.
cdef void direct_remove(store *s, item *it, uint32_t hv) noexcept nogil
# Puts fresh in the item's slot; if the item has no slot, enters fresh as direct_insert does.
cdef void direct_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
# Notes the first fetch of a linked item: enters the item, if the index had no room for it before.
cdef void direct_note_use(store *s, item *it, uint32_t hv) noexcept nogil
# Between these two calls readers take no item with this hash for valid: the caller changes data or a chain in place.
cdef void direct_begin(store *s, uint32_t hv) noexcept nogil
cdef void direct_end(store *s, uint32_t hv) noexcept nogil
# With direct_remote, a linked item with ITEM_SEAL_ROOM has a seal (docs/direct-reads.md, section 8). The caller writes
# the seal after all changes of the item, and takes the seal away before the first change. For other items both
# functions do nothing, and a stale item gets no seal.
cdef void direct_write_seal(store *s, item *it) noexcept nogil
cdef void direct_take_seal(store *s, item *it) noexcept nogil
# Changes the times of an item, linked or not, and its seal.
cdef void direct_set_times(store *s, item *it, rel_time_t time, rel_time_t exptime) noexcept nogil
# Changes the CAS value of an item, linked or not, and its seal.
cdef void direct_set_cas(store *s, item *it, uint64_t cas) noexcept nogil
# The item in the index at this place (in units of 8 bytes) with this hash, or NULL. hv and place may be anything, but
# the caller, item_note_read, has the item lock of hv.
cdef item *direct_item_at(store *s, uint32_t hv, uint64_t place) noexcept nogil

# --- no lock ---
# Prefetches the bucket for an item with this hash that will be stored soon, for item_alloc.
cdef void direct_ahead(store *s, uint32_t hv) noexcept nogil
# Extra bytes for a seal of an item of so many bytes; 0: no seal.
cdef size_t direct_seal_room(store *s, size_t ntotal) noexcept nogil
# Splits buckets while the index has too many items for them. Called at every 256th link into a queue. The caller may
# hold item locks.
cdef void direct_check_load(store *s) noexcept nogil
