"""Lines of dumps, without snprintf because a dump has a million of them (see dump.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from rmemcached.logger cimport uri_encode
from rmemcached.protocol.parse cimport base64_encode, itoa_u32, itoa_u64
from rmemcached.store.store cimport (
    ITEM_FETCHED, ITEM_HDR, ITEM_KEY_BINARY, ITEM_client_flags, ITEM_clsid, ITEM_get_cas, ITEM_get_hdr, ITEM_has,
    ITEM_key, ITEM_ntotal,
)


cdef inline char *put(char *p, const char *text, size_t length) noexcept nogil:
    memcpy(p, text, length)
    return p + length


cdef char *metadump_line(item *it, int64_t started, char *p) noexcept nogil:
    """A space follows every value, also the last."""
    p = put(p, b"key=", 4)
    p = uri_encode(ITEM_key(it), it.nkey, p)
    if it.exptime == 0:
        p = put(p, b" exp=-1", 7)
    else:
        p = itoa_u64(<uint64_t>(it.exptime + started), put(p, b" exp=", 5))
    p = itoa_u64(<uint64_t>(it.time + started), put(p, b" la=", 4))
    p = itoa_u64(ITEM_get_cas(it), put(p, b" cas=", 5))
    if ITEM_has(it, ITEM_FETCHED):
        p = put(p, b" fetch=yes", 10)
    else:
        p = put(p, b" fetch=no", 9)
    p = itoa_u32(ITEM_clsid(it), put(p, b" cls=", 5))
    p = itoa_u64(ITEM_ntotal(it), put(p, b" size=", 6))
    p = itoa_u32(ITEM_client_flags(it), put(p, b" flags=", 7))
    if ITEM_has(it, ITEM_HDR):
        p = itoa_u32(ITEM_get_hdr(it).page_id, put(p, b" ext_page=", 10))
        p = itoa_u32(ITEM_get_hdr(it).offset, put(p, b" ext_offset=", 12))
    return put(p, b" \n", 2)


cdef char *mgdump_line(item *it, char *p) noexcept nogil:
    p = put(p, b"mg ", 3)
    if ITEM_has(it, ITEM_KEY_BINARY):
        p = base64_encode(ITEM_key(it), it.nkey, p)
        p = put(p, b" b", 2)
    else:
        p = put(p, ITEM_key(it), it.nkey)
    return put(p, b"\r\n", 2)


cdef char *dump_line(dump_kind kind, item *it, int64_t started, char *out) noexcept nogil:
    if kind == DUMP_META:
        return metadump_line(it, started, out)
    return mgdump_line(it, out)


cdef const char *dump_end(dump_kind kind) noexcept nogil:
    return b"END\r\n" if kind == DUMP_META else b"EN\r\n"
