"""A value as it lies on a page: a head, the key, and the data with its line end. Records begin at multiples of 8.

All functions are without state; any thread calls them.
"""

cdef struct flash_record:
    uint32_t crc                 # CRC-32C of the place (page_version, offset) and all bytes behind this field
    uint32_t length              # of the whole record; 0: the rest of the write buffer is unused
    int32_t nbytes               # of the item
    uint16_t nkey                # 0: a hole of this length, left by a thread killed before the record was whole
    uint16_t pad

cdef enum:
    RECORD_ALIGN = 8
    RECORD_KEY = 256             # room for a key
    RECORD_HEAD = 320            # room for a head and a key
    RECORD_IOV = 64              # extents of an item at a time

# The length of an item's record. The item may be a header.
cdef uint32_t record_length(item *it) noexcept nogil
# Bytes of a page for a record of this length.
cdef uint32_t record_space(uint32_t length) noexcept nogil
# Writes the record of an item with its data, for this place.
cdef void record_write(char *to, item *it, const item_hdr *where) noexcept nogil
# Copies a whole record to another place.
cdef void record_copy(char *to, const char *record, const item_hdr *where) noexcept nogil
# Whether a record of this place is well-formed, whole within `most` bytes, and has its checksum.
cdef bint record_is_whole(const char *record, size_t most, const item_hdr *where) noexcept nogil
# Whether head and key, as read from a page, are of this item's record; without the checksum.
cdef bint record_is_of(const char *head, item *it) noexcept nogil
# ... and the data in the item are, too, and were written for this place.
cdef bint record_fits(const char *head, item *it, const item_hdr *where) noexcept nogil
