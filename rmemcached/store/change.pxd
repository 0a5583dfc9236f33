"""The door for changes of the items found by lookups: every change of a linked item, or of its bytes, goes through one
of these functions. Each function makes the change in the hash table, and tells the listeners in the order needed by
them. The listeners are the index of direct reads, with its seals (direct.pxd), and external storage
(store_config.external), which hears of headers.

Queues and counts are no part of a change: link.pxd has them, and its functions are the callers of link, replace, move
and unlink. Noting a use (do_item_bump, the time of an access) is no change either.

The caller of each function, except change_flush, has the item lock of the item's hash. store.pxd declares further
functions of this part: do_item_set_flags, do_item_clear_flags, do_item_set_exptime and do_item_set_cas.
"""

# Enters an item in the hash table: the key has no item. Until now nobody else had the item. The item gets the table's
# reference, the present time, and this CAS value.
cdef void change_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil
# Enters an item as change_link does, in the place of the key's present item. used: the time of use, in place of the
# present time. The caller still has to give back the table's reference to the old item.
cdef void change_replace(store *s, item *old, item *it, uint32_t hv, uint64_t cas, rel_time_t used) noexcept nogil
# Puts `fresh` in the item's place: a copy of the item, with its flags, at another address. No lookup sees a difference.
# The caller moves the table's reference.
cdef void change_move(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil
# Tells of another copy of a chunk in the item's chain: same bytes, other address.
cdef void change_move_chunk(store *s, uint32_t hv) noexcept nogil
# Enters an item of a memory file, as an earlier run left it: the key has no item. The item gets the table's reference.
cdef void change_restore(store *s, item *it, uint32_t hv) noexcept nogil
# Takes a linked item out of the hash table. The caller still has to give back the table's reference.
cdef void change_unlink(store *s, item *it, uint32_t hv) noexcept nogil
# Between these two calls the caller changes the data of a linked, unchained item in place, and its CAS value by
# ITEM_set_cas. The caller and the table have the only references.
cdef void change_alter(store *s, item *it, uint32_t hv) noexcept nogil
cdef void change_altered(store *s, item *it, uint32_t hv) noexcept nogil
# Gives a linked header (ITEM_HDR) another place of its value. Nobody but the table has a reference.
cdef void change_place(store *s, item *it, const item_hdr *where) noexcept nogil
# Makes all items last used at `oldest` or earlier invalid. The caller has no lock.
cdef void change_flush(store *s, rel_time_t oldest) noexcept nogil
