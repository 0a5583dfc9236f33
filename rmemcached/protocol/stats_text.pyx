"""Statistics as lines or packets (see stats_text.pxd)."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset, strlen

from rmemcached.protocol.parse cimport U64_TEXT, itoa_u64
from rmemcached.protocol.protocol_binary cimport (
    PROTOCOL_BINARY_CMD_STAT, PROTOCOL_BINARY_RES, protocol_binary_header,
)
from rmemcached.sys.linux cimport htobe16, htobe32

cdef enum:
    HEADER = sizeof(protocol_binary_header)


cdef bint stat_room(stat_buf *out, size_t n) noexcept nogil:
    """Makes room for n more bytes. False: out of memory, now or before; out.failed is set."""
    cdef size_t size = out.size
    cdef char *fresh
    if out.failed:
        return False
    if out.used + n <= size:
        return True
    if size == 0:
        size = 1024
    while size < out.used + n:
        size *= 2
    fresh = <char *>realloc(out.data, size)
    if fresh == NULL:
        out.failed = True
        return False
    out.data = fresh
    out.size = size
    return True


cdef void stat_packet(stat_buf *out, const char *name, size_t nname, const char *value, size_t nvalue) noexcept nogil:
    cdef protocol_binary_header h
    cdef char *p
    if not stat_room(out, HEADER + nname + nvalue):
        return
    memset(&h, 0, HEADER)
    h.magic = PROTOCOL_BINARY_RES
    h.opcode = PROTOCOL_BINARY_CMD_STAT
    h.keylen = htobe16(<uint16_t>nname)
    h.bodylen = htobe32(<uint32_t>(nname + nvalue))
    h.opaque = out.opaque
    p = out.data + out.used
    memcpy(p, &h, HEADER)
    memcpy(p + HEADER, name, nname)
    memcpy(p + HEADER + nname, value, nvalue)
    out.used += HEADER + nname + nvalue


cdef void stat_append_text(stat_buf *out, const char *name, const char *value) noexcept nogil:
    cdef size_t nname = strlen(name)
    cdef size_t nvalue = strlen(value)
    cdef size_t n = nname + nvalue + 9
    if out.binary:
        stat_packet(out, name, nname, value, nvalue)
    elif stat_room(out, n):
        snprintf(out.data + out.used, n, b"STAT %s %s\r\n", name, value)
        out.used += n - 1


cdef void stat_append(stat_buf *out, const char *name, uint64_t value) noexcept nogil:
    cdef char text[U64_TEXT + 1]
    itoa_u64(value, text)[0] = 0
    stat_append_text(out, name, text)


cdef void stat_append_raw(stat_buf *out, const char *text, size_t length) noexcept nogil:
    if stat_room(out, length):
        memcpy(out.data + out.used, text, length)
        out.used += length


cdef void stat_end(stat_buf *out) noexcept nogil:
    if out.binary:
        stat_packet(out, b"", 0, b"", 0)
    else:
        stat_append_raw(out, b"END\r\n", 5)
