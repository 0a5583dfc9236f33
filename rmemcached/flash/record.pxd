"""A value as it lies on a page: a head, the key, and the data with its line end. Records begin at multiples of 8.

All functions are without state; any thread calls them.
"""

cdef struct flash_record:
    uint32_t crc                 # CRC-32C of all bytes of the record behind this field
    uint32_t length              # of the whole record; 0: the rest of the write buffer is unused
    uint32_t hv                  # hash of the key
    int32_t nbytes               # of the item
    uint32_t version             # of the page: bytes of an earlier use are recognized, also after a lost write
    uint16_t nkey
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
# Writes the record of an item with its data, for a page with this version.
cdef void record_write(char *to, item *it, uint32_t hv, uint32_t version) noexcept nogil
# Copies a record to a page with this version.
cdef void record_copy(char *to, const flash_record *record, uint32_t version) noexcept nogil
# Whether a record is well-formed, whole within `most` bytes, of this version, and has its checksum.
cdef bint record_is_whole(const char *record, size_t most, uint32_t version) noexcept nogil
# Whether head and key, as read from a page with this version, are of this item's record.
cdef bint record_is_of(const char *head, item *it, uint32_t version) noexcept nogil
# ... and the data in the item are, too.
cdef bint record_fits(const char *head, item *it, uint32_t version) noexcept nogil
