cdef inline uint32_t _record_head(item *it) noexcept nogil:
    return <uint32_t>sizeof(flash_record) + it.nkey


cdef inline uint32_t record_length(item *it) noexcept nogil:
    return _record_head(it) + <uint32_t>it.nbytes


cdef inline uint32_t record_space(uint32_t length) noexcept nogil:
    return (length + RECORD_ALIGN - 1) & ~<uint32_t>(RECORD_ALIGN - 1)


cdef inline uint32_t _crc(uint32_t state, const char *data, size_t length) noexcept nogil:
    return crc32_iscsi(<unsigned char *>data, <int>length, state)


cdef inline uint32_t _crc_begin(const item_hdr *where) noexcept nogil:
    """The state before a record's bytes: a record left from another use of the page has another checksum."""
    cdef uint32_t place[2]
    place[0] = where.page_version
    place[1] = where.offset
    return _crc(CRC_START, <const char *>place, sizeof(place))


cdef inline uint32_t _crc_of(const flash_record *record, const item_hdr *where) noexcept nogil:
    return _crc(_crc_begin(where), <const char *>record + sizeof(record.crc), record.length - sizeof(record.crc))


cdef void record_write(char *to, item *it, const item_hdr *where) noexcept nogil:
    cdef flash_record *record = <flash_record *>to
    cdef iovec iov[RECORD_IOV]
    cdef size_t offset = 0
    cdef int i, n
    record.length = record_length(it)
    record.nbytes = it.nbytes
    record.nkey = it.nkey
    record.pad = 0
    memcpy(to + sizeof(flash_record), ITEM_key(it), it.nkey)
    to += _record_head(it)
    while offset < <size_t>it.nbytes:
        n = item_iov(it, offset, <size_t>it.nbytes - offset, iov, RECORD_IOV)
        for i in range(n):
            memcpy(to + offset, iov[i].iov_base, iov[i].iov_len)
            offset += iov[i].iov_len
    record.crc = _crc_of(record, where)


cdef void record_copy(char *to, const char *record, const item_hdr *where) noexcept nogil:
    memcpy(to, record, (<const flash_record *>record).length)
    (<flash_record *>to).crc = _crc_of(<flash_record *>to, where)


cdef bint record_is_whole(const char *record, size_t most, const item_hdr *where) noexcept nogil:
    cdef const flash_record *head = <const flash_record *>record
    return (most > sizeof(flash_record) and head.length <= most and head.nkey != 0 and head.nkey < RECORD_KEY
            and head.nbytes >= 2 and head.length == sizeof(flash_record) + head.nkey + <uint32_t>head.nbytes
            and head.crc == _crc_of(head, where))


cdef bint record_is_of(const char *head, item *it) noexcept nogil:
    cdef const flash_record *record = <const flash_record *>head
    return record.length == record_length(it) and record.nkey == it.nkey and record.nbytes == it.nbytes \
        and memcmp(head + sizeof(flash_record), ITEM_key(it), it.nkey) == 0


cdef bint record_fits(const char *head, item *it, const item_hdr *where) noexcept nogil:
    cdef const flash_record *record = <const flash_record *>head
    cdef iovec iov[RECORD_IOV]
    cdef size_t offset = 0
    cdef uint32_t crc
    cdef int i, n
    if not record_is_of(head, it):
        return False
    crc = _crc(_crc_begin(where), head + sizeof(record.crc), _record_head(it) - sizeof(record.crc))
    while offset < <size_t>it.nbytes:
        n = item_iov(it, offset, <size_t>it.nbytes - offset, iov, RECORD_IOV)
        for i in range(n):
            crc = _crc(crc, <const char *>iov[i].iov_base, iov[i].iov_len)
            offset += iov[i].iov_len
    return crc == record.crc
