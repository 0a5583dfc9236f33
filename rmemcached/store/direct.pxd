"""The index by which clients find items without asking (docs/direct-reads.md, rmemcached/direct.pxd). Without
store_config.direct there is none.

It is made for the first client that gets the memory, and goes away when the last one has been gone for
store_config.direct_linger seconds: without such clients nobody pays for it. Whoever stores keeps it right from the
beginning; a thread enters what was there before, which is asked for until then, and gives the index up in the end. With
store_config.direct_remote there always is one.

Clients see by a robust mutex that the daemon lives. It lies before the arena, and is locked from direct_init to
direct_destroy.

A bucket is changed with an item lock held: it has items of one lock only, because there are more buckets than locks,
and a hash's last bits choose both.
"""

cdef struct direct_index:
    pthread_mutex_t lock        # DIRECT_LOCK
    pthread_cond_t cond         # with it: the store is to stop, or the last client has gone
    # The lock. `header` changes with all item locks held as well: who holds one may use it, and what it points to.
    direct_header *header       # NULL: nobody keeps an index
    direct_header *mapped       # NULL: there is none. What is told of the whole store is written here
    direct_bucket *buckets      # of `header`; written with relaxed stores, as direct_ahead has no lock
    int fd                      # of header and index, for clients
    size_t covered              # bytes of the arena of which items can be in it
    size_t opened               # bytes from the header on that can be accessed
    uint64_t alive              # where in the mutex the kernel writes. Constant, as is
    bint lives                  # ... whether it is locked
    pthread_t thread
    bint joinable
    uint64_t readers            # clients that have the memory now
    int64_t left_ns             # when the last one has gone
    # atomic
    uint64_t bucket_count       # as in the header, for who may not look there; 0: no index
    uint64_t building           # the thread enters what was stored before
    uint64_t left_out
    uint64_t clients            # that got the memory

# False: no memory.
cdef bint direct_init(store *s) noexcept nogil
# Ends the thread; store.stopping is set. The index stays as it is, and clients ask.
cdef void direct_stop(store *s) noexcept nogil
cdef void direct_destroy(store *s) noexcept nogil

# --- for a caller that holds the item lock of hv ---
cdef void direct_insert(store *s, item *it, uint32_t hv) noexcept nogil
cdef void direct_remove(store *s, item *it, uint32_t hv) noexcept nogil
# Puts fresh in the item's place, or enters it.
cdef void direct_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
# A linked item was fetched for the first time: it is entered if there was no room for it before.
cdef void direct_note_use(store *s, item *it, uint32_t hv) noexcept nogil
# Between these two no reader takes for valid what an item with this hash holds.
cdef void direct_begin(store *s, uint32_t hv) noexcept nogil
cdef void direct_end(store *s, uint32_t hv) noexcept nogil
# An item's seal (docs/direct-reads.md, section 8) is there while it is linked. It is written when everything else of
# that is done, and taken away before.
cdef void direct_write_seal(store *s, item *it) noexcept nogil
cdef void direct_take_seal(store *s, item *it) noexcept nogil
# Changes the times of an item, which may be linked, and its seal with them.
cdef void direct_set_times(store *s, item *it, rel_time_t time, rel_time_t exptime) noexcept nogil
# The same of its CAS value.
cdef void direct_set_cas(store *s, item *it, uint64_t cas) noexcept nogil
# The linked item at a place, or NULL. hv and place may be anything, as long as the lock is that of hv.
cdef item *direct_item_at(store *s, uint32_t hv, uint64_t place) noexcept nogil

# --- no lock ---
# An item with this hash will be stored soon.
cdef void direct_ahead(store *s, uint32_t hv) noexcept nogil
# How much longer an item of so many bytes is for its seal.
cdef size_t direct_seal_room(store *s, size_t ntotal) noexcept nogil
# Splits buckets when there are too many items. The caller may hold item locks.
cdef void direct_check_load(store *s) noexcept nogil
