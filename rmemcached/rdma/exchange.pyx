"""Reads and writes exchange lines (see exchange.pxd)."""

from libc.stdint cimport uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memset, strlen, strncmp

from rmemcached.rdma.wire cimport (
    EXCHANGE_REPLY, RDMA_CREDITS_MAX, RDMA_CREDITS_MIN, RDMA_HOST_MAX, RDMA_LANE_BYTES_MAX,
    RDMA_LANE_BYTES_MIN, RDMA_LINE_MAX, RDMA_MSGSIZE_MAX, RDMA_MSGSIZE_MIN, RDMA_MTU_MAX, RDMA_MTU_MIN, RDMA_QPN_MAX,
    RDMA_READS_MAX, RDMA_TOKEN_LENGTH, RDMA_VERSION,
)
from rmemcached.streams.tls cimport TLS_KEY_LENGTH, TLS_NAME_LENGTH, tls_key
from rmemcached.sys.wipe cimport explicit_bzero

cdef enum:
    UINT32_LAST = 0xffffffff
    QPN_MISSING = RDMA_QPN_MAX + 1

cdef struct number_key:
    const char *name
    unsigned long low
    unsigned long high
    unsigned long *value


# ---- values ----------------------------------------------------------------------------------------------------------

cdef bint parse_number(const char *text, size_t length, const number_key *key) noexcept nogil:
    """Parses decimal digits. False: there are other characters, or not low <= value <= high."""
    cdef unsigned long value = 0
    cdef size_t i
    if length == 0 or length > 10:
        return False
    for i in range(length):
        if not c'0' <= text[i] <= c'9':
            return False
        value = value * 10 + <unsigned long>(text[i] - c'0')
    if value < key.low or value > key.high:
        return False
    key.value[0] = value
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


cdef void to_hex(const uint8_t *data, size_t n, char *out) noexcept nogil:
    """Writes 2 * n digits and a NUL."""
    cdef const char *digits = b"0123456789abcdef"
    cdef size_t i
    for i in range(n):
        out[2 * i] = digits[data[i] >> 4]
        out[2 * i + 1] = digits[data[i] & 15]
    out[2 * n] = 0


cdef bint key_is(const char *text, size_t length, const char *name) noexcept nogil:
    return length == strlen(name) and strncmp(text, name, length) == 0


# ---- the client's line -----------------------------------------------------------------------------------------------

cdef bint take_value(exchange_request *out, const char *key, size_t nkey, const char *value,
                     size_t nvalue) noexcept nogil:
    """Takes a value of the client's line. False: malformed, or out of range. Unknown keys are ignored."""
    cdef number_key[14] numbers = [
        number_key(b"version", 0, UINT32_LAST, &out.version),
        number_key(b"qpn", 0, RDMA_QPN_MAX, &out.qpn),
        number_key(b"psn", 0, RDMA_QPN_MAX, &out.psn),
        number_key(b"lid", 0, 0xffff, &out.lid),
        number_key(b"mtu", RDMA_MTU_MIN, RDMA_MTU_MAX, &out.mtu),
        number_key(b"credits", RDMA_CREDITS_MIN, RDMA_CREDITS_MAX, &out.credits),
        number_key(b"msgsize", RDMA_MSGSIZE_MIN, RDMA_MSGSIZE_MAX, &out.msgsize),
        number_key(b"ird", 1, RDMA_READS_MAX, &out.ird),
        number_key(b"ord", 1, RDMA_READS_MAX, &out.ord),
        number_key(b"crc", 0, 1, &out.crc),
        number_key(b"netns", 1, UINT32_LAST, &out.netns),
        number_key(b"lanebytes", RDMA_LANE_BYTES_MIN, RDMA_LANE_BYTES_MAX, &out.lane_bytes),
        number_key(b"direct", 0, 1, &out.direct),
        number_key(b"tls", 0, 1, &out.tls),
    ]
    cdef size_t i
    for i in range(sizeof(numbers) // sizeof(number_key)):
        if key_is(key, nkey, numbers[i].name):
            return parse_number(value, nvalue, &numbers[i])
    if key_is(key, nkey, b"transport"):
        out.transport = value
        out.transport_length = nvalue
    elif key_is(key, nkey, b"gid"):
        return parse_hex(value, nvalue, out.gid.raw, 16)
    elif key_is(key, nkey, b"host"):
        out.host = value
        out.host_length = nvalue
        return 0 < nvalue <= RDMA_HOST_MAX
    return True


cdef const char *what_is_missing(const exchange_request *request) noexcept nogil:
    """Names a missing key that the line must have. NULL: none."""
    if request.version == 0:
        return b"version is missing"
    if request.version != RDMA_VERSION:
        # The required keys of another version are unknown here.
        return NULL
    if request.transport == NULL:
        return b"transport is missing"
    if request.qpn == QPN_MISSING:
        return b"qpn is missing"
    if request.credits == 0:
        return b"credits is missing"
    if request.msgsize == 0:
        return b"msgsize is missing"
    if request.lane_bytes == 0:
        return b"lanebytes is missing"
    return NULL


cdef const char *parse_exchange(const char *line, size_t length, exchange_request *out) noexcept nogil:
    cdef const char *at = line
    cdef const char *end = line + length
    cdef const char *word
    cdef const char *equals
    memset(out, 0, sizeof(exchange_request))
    out.qpn = QPN_MISSING
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
            # The word is the command's name, or empty at the line's end.
            continue
        equals = <const char *>memchr(word, c'=', at - word)
        if equals == NULL:
            return b"a token is not of the form key=value"
        if not take_value(out, word, equals - word, equals + 1, at - equals - 1):
            return b"a value is malformed or out of range"
    return what_is_missing(out)


# ---- the server's line -----------------------------------------------------------------------------------------------

cdef void write_offer(const exchange_offer *offer, char *out, size_t size) noexcept nogil:
    cdef char gid[33]
    cdef char token[2 * RDMA_TOKEN_LENGTH + 1]
    cdef char key[2 * (TLS_NAME_LENGTH + TLS_KEY_LENGTH) + 1]
    cdef int used
    to_hex(offer.gid.raw, 16, gid)
    used = snprintf(
        out, size,
        b"%s version=%d transport=%s qpn=%u psn=%u gid=%s lid=%u mtu=%u credits=%u msgsize=%u ird=%u ord=%u "
        b"crc=%d eager=%u workers=%u worker=%u lanes=%u lanebytes=%u",
        EXCHANGE_REPLY, <int>RDMA_VERSION, offer.transport, offer.qpn, offer.psn, gid,
        offer.lid, offer.mtu, offer.credits, offer.msgsize, offer.ird, offer.ord, <int>offer.crc, offer.eager,
        offer.workers, offer.worker, offer.lanes, offer.lane_bytes)
    if offer.direct:
        used += snprintf(out + used, size - used, b" direct=1")
    if offer.memory != NULL:
        used += snprintf(out + used, size - used, b" memory=%s", offer.memory)
    if offer.token != NULL:
        to_hex(offer.token, RDMA_TOKEN_LENGTH, token)
        used += snprintf(out + used, size - used, b" token=%s", token)
    if offer.key != NULL:
        to_hex(<const uint8_t *>offer.key, sizeof(tls_key), key)
        used += snprintf(out + used, size - used, b" tls=%s", key)
        explicit_bzero(key, sizeof(key))
    if offer.path != NULL:
        used += snprintf(out + used, size - used, b" path=%s", offer.path)
    snprintf(out + used, size - used, b"\r\n")
