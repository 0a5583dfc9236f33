"""Reads an exchange line (docs/rdma-protocol.md, section 2)."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memset, strlen, strncmp

from rmemcached.rdma.wire cimport (
    RDMA_CREDITS_MAX, RDMA_CREDITS_MIN, RDMA_HOST_MAX, RDMA_LINE_MAX, RDMA_MSGSIZE_MAX, RDMA_MSGSIZE_MIN, RDMA_MTU_MAX,
    RDMA_MTU_MIN, RDMA_PROTOCOL_VERSION, RDMA_QPN_MAX, RDMA_READS_MAX,
)


cdef bint parse_number(const char *text, size_t length, unsigned long low, unsigned long high,
                       unsigned long *out) noexcept nogil:
    """Decimal digits only, low <= value <= high."""
    cdef unsigned long value = 0
    cdef size_t i
    if length == 0 or length > 10:
        return False
    for i in range(length):
        if not c'0' <= text[i] <= c'9':
            return False
        value = value * 10 + <unsigned long>(text[i] - c'0')
    if value < low or value > high:
        return False
    out[0] = value
    return True


cdef int hex_value(char ch) noexcept nogil:
    if c'0' <= ch <= c'9':
        return ch - c'0'
    if c'a' <= ch <= c'f':
        return ch - c'a' + 10
    if c'A' <= ch <= c'F':
        return ch - c'A' + 10
    return -1


cdef bint parse_hex(const char *text, size_t length, uint8_t *out, size_t n) noexcept nogil:
    cdef size_t i
    cdef int high, low
    if length != 2 * n:
        return False
    for i in range(n):
        high = hex_value(text[2 * i])
        low = hex_value(text[2 * i + 1])
        if high < 0 or low < 0:
            return False
        out[i] = <uint8_t>(high << 4 | low)
    return True


cdef bint key_is(const char *key, size_t nkey, const char *name) noexcept nogil:
    return nkey == strlen(name) and strncmp(key, name, nkey) == 0


cdef const char *parse_exchange(const char *line, size_t length, exchange_request *out) noexcept nogil:
    """Fills `out`. Returns NULL, or what is wrong."""
    cdef const char *at = line
    cdef const char *end = line + length
    cdef const char *word
    cdef const char *eq
    cdef const char *value
    cdef size_t nkey, nvalue
    cdef bint good
    memset(out, 0, sizeof(exchange_request))
    out.ird = 1
    out.ord = 1
    if length > RDMA_LINE_MAX:
        return b"the line is longer than 1024 bytes"
    while at < end:
        while at < end and at[0] == c' ':
            at += 1
        word = at
        while at < end and at[0] != c' ':
            at += 1
        if word == at or word == line:
            continue
        eq = <const char *>memchr(word, c'=', at - word)
        if eq == NULL:
            return b"a token is not of the form key=value"
        nkey = eq - word
        value = eq + 1
        nvalue = at - value
        good = True
        if key_is(word, nkey, b"version"):
            good = parse_number(value, nvalue, 0, 0xffffffff, &out.version)
        elif key_is(word, nkey, b"transport"):
            out.transport = value
            out.transport_length = nvalue
        elif key_is(word, nkey, b"qpn"):
            good = parse_number(value, nvalue, 0, RDMA_QPN_MAX, &out.qpn)
            out.has_qpn = True
        elif key_is(word, nkey, b"psn"):
            good = parse_number(value, nvalue, 0, RDMA_QPN_MAX, &out.psn)
        elif key_is(word, nkey, b"lid"):
            good = parse_number(value, nvalue, 0, 0xffff, &out.lid)
        elif key_is(word, nkey, b"mtu"):
            good = parse_number(value, nvalue, RDMA_MTU_MIN, RDMA_MTU_MAX, &out.mtu)
        elif key_is(word, nkey, b"credits"):
            good = parse_number(value, nvalue, RDMA_CREDITS_MIN, RDMA_CREDITS_MAX, &out.credits)
        elif key_is(word, nkey, b"msgsize"):
            good = parse_number(value, nvalue, RDMA_MSGSIZE_MIN, RDMA_MSGSIZE_MAX, &out.msgsize)
        elif key_is(word, nkey, b"ird"):
            good = parse_number(value, nvalue, 1, RDMA_READS_MAX, &out.ird)
        elif key_is(word, nkey, b"ord"):
            good = parse_number(value, nvalue, 1, RDMA_READS_MAX, &out.ord)
        elif key_is(word, nkey, b"crc"):
            good = parse_number(value, nvalue, 0, 1, &out.crc)
        elif key_is(word, nkey, b"gid"):
            good = parse_hex(value, nvalue, out.gid.raw, 16)
        elif key_is(word, nkey, b"host"):
            good = 0 < nvalue <= RDMA_HOST_MAX
            out.host = value
            out.host_length = nvalue
        elif key_is(word, nkey, b"netns"):
            good = parse_number(value, nvalue, 1, 0xffffffff, &out.netns)
        if not good:
            return b"a value is malformed or out of range"
    if out.version == 0:
        return b"version is missing"
    if out.version != RDMA_PROTOCOL_VERSION:
        return NULL
    if out.transport == NULL:
        return b"transport is missing"
    if not out.has_qpn:
        return b"qpn is missing"
    if out.credits == 0:
        return b"credits is missing"
    if out.msgsize == 0:
        return b"msgsize is missing"
    return NULL


cdef void to_hex(const uint8_t *data, size_t n, char *out) noexcept nogil:
    cdef const char *digits = b"0123456789abcdef"
    cdef size_t i
    for i in range(n):
        out[2 * i] = digits[data[i] >> 4]
        out[2 * i + 1] = digits[data[i] & 15]
    out[2 * n] = 0
