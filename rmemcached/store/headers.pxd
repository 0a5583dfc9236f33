"""Headers: items whose values are in external storage (ITEM_HDR). Such an item has an item_hdr in place of its data.

store.pxd declares the functions for external storage: store_take_victim, do_header_move and others.
"""

# An unlinked copy of a header, with the same place. NULL: no memory.
cdef item *header_copy(store *s, item *it) noexcept nogil
# Whether the item is a header, and its value is gone: for the crawler. The caller holds the item lock.
cdef bint header_is_lost(store *s, item *it) noexcept nogil
