"""The index by which clients find items without asking (docs/direct-reads.md, rmemcached/direct.pxd). All of it does
nothing without store_config.direct.

A bucket is changed with an item lock held: it has items of one lock only, because there are more buckets than locks,
and a hash's last bits choose both.
"""

cdef struct direct_index:
    # constant
    direct_header *header       # NULL: off
    direct_bucket *buckets
    bint remote                 # items have seals, for clients that READ
    size_t opened               # bytes from the header on that can be accessed; of the thread that splits
    # atomic
    uint64_t splitting          # a thread splits buckets
    uint64_t left_out
    uint64_t clients

# False: no memory.
cdef bint direct_init(store *s) noexcept nogil
# By the thread that called direct_init.
cdef void direct_destroy(store *s) noexcept nogil

# Tells readers when the daemon wants to hear of a hit.
cdef void direct_set_algorithm(store *s) noexcept nogil

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
# How much longer an item of so many bytes is for its seal.
cdef size_t direct_seal_room(store *s, size_t ntotal) noexcept nogil
# Splits buckets when there are too many items. The caller may hold item locks.
cdef void direct_check_load(store *s) noexcept nogil
