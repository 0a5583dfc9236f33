"""Tokens, numbers and base64 of the text protocols: length-checked readers of borrowed memory, writers without bounds.

Used by the whole protocol; imports no other module of the protocol. The accepted forms are memcached's
(vendor/mcmc/mcmc.c, util.c, base64.c). No function reads beyond the given length or needs a terminator. Writers return
the end of their output; the caller has made sure of the room.
"""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT64_MAX, UINT32_MAX, UINT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc cimport errno as c_errno
from libc.stdlib cimport strtod
from libc.string cimport memcmp, memcpy, strlen

cdef enum:
    LINE_TOKENS = 23         # words behind the 23rd token of a line are ignored
    U32_DIGITS = 11          # a longer number is refused, even with leading zeros
    U64_DIGITS = 22
    U32_TEXT = 10            # most bytes written by itoa_u32
    U64_TEXT = 20

cdef struct token:
    const char *value
    size_t length

cdef inline int tokenize(const char *p, const char *end, token *tokens) noexcept nogil:
    """Splits [p, end) at spaces into at most LINE_TOKENS tokens, and returns their number."""
    cdef int n = 0
    while n < LINE_TOKENS:
        while p < end and p[0] == c' ':
            p += 1
        if p == end:
            break
        tokens[n].value = p
        while p < end and p[0] != c' ':
            p += 1
        tokens[n].length = <size_t>(p - tokens[n].value)
        n += 1
    return n

cdef inline bint token_is(const token *t, const char *text, size_t length) noexcept nogil:
    cdef size_t i
    if t.length != length:
        return False
    for i in range(length):
        if t.value[i] != text[i]:
            return False
    return True

cdef inline bint abbreviates(const token *t, const char *word) noexcept nogil:
    """Whether the token is the word or its beginning: in some commands memcached accepts both."""
    return t.length <= strlen(word) and memcmp(t.value, word, t.length) == 0

# ---- numbers: False if malformed or out of range; *out is then untouched, except by parse_double ---------------------

cdef inline bint parse_u32(const char *p, size_t length, uint32_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef size_t i
    cdef unsigned int digit
    if length > U32_DIGITS:
        return False
    for i in range(length):
        digit = <unsigned int><uint8_t>p[i] - c'0'
        if digit > 9:
            return False
        value = value * 10 + digit
    if value > UINT32_MAX:
        return False
    out[0] = <uint32_t>value
    return True

cdef inline bint parse_i32(const char *p, size_t length, int32_t *out) noexcept nogil:
    cdef int64_t value = 0
    cdef size_t i = 0
    cdef unsigned int digit
    cdef bint negative = length > 0 and p[0] == c'-'
    if length > U32_DIGITS:
        return False
    if negative:
        i = 1
    while i < length:
        digit = <unsigned int><uint8_t>p[i] - c'0'
        if digit > 9:
            return False
        value = value * 10 + digit
        i += 1
    if negative:
        value = -value
    if value > INT32_MAX or value < -<int64_t>INT32_MAX - 1:
        return False
    out[0] = <int32_t>value
    return True

cdef inline bint parse_u64(const char *p, size_t length, uint64_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef size_t i
    cdef unsigned int digit
    if length > U64_DIGITS:
        return False
    for i in range(length):
        digit = <unsigned int><uint8_t>p[i] - c'0'
        if digit > 9 or value > (UINT64_MAX - digit) / 10:
            return False
        value = value * 10 + digit
    out[0] = value
    return True

cdef inline bint parse_i64(const char *p, size_t length, int64_t *out) noexcept nogil:
    cdef uint64_t value
    cdef bint negative = length > 0 and p[0] == c'-'
    if negative:
        p += 1
        length -= 1
    if length == 0 or not parse_u64(p, length, &value) or value > <uint64_t>INT64_MAX:
        return False
    out[0] = -<int64_t>value if negative else <int64_t>value
    return True

cdef inline bint parse_double(const char *p, size_t length, double *out) noexcept nogil:
    """Parses a number as strtod does; nothing but white space may follow. May change *out even if it returns
    False."""
    cdef char text[32]
    cdef char *end
    if length >= sizeof(text):
        return False
    memcpy(text, p, length)
    text[length] = 0
    c_errno.errno = 0
    out[0] = strtod(text, &end)
    return c_errno.errno != c_errno.ERANGE and end != text and (end[0] == 0 or c'\t' <= end[0] <= c'\r')

cdef inline bint parse_hex(const char *p, size_t length, size_t max_digits, uint64_t *out) noexcept nogil:
    """Parses 1 to max_digits (at most 16) hexadecimal digits of either case."""
    cdef uint64_t value = 0
    cdef size_t i
    cdef unsigned int digit
    if length == 0 or length > max_digits:
        return False
    for i in range(length):
        digit = <unsigned int><uint8_t>p[i] - c'0'
        if digit > 9:
            digit = (<unsigned int><uint8_t>p[i] | 0x20) - c'a'
            if digit > 5:
                return False
            digit += 10
        value = value << 4 | digit
    out[0] = value
    return True

cdef inline bint number_ends(const char *p, const char *end) noexcept nogil:
    """Whether a number of a storage command ends at p. `end` is the end of its token. As in memcached, white space
    other than the separator, or a NUL, may follow the digits within the token."""
    return p == end or c'\t' <= p[0] <= c'\r' or p[0] == 0

cdef inline bint parse_flags(const char *p, size_t length, uint32_t *out) noexcept nogil:
    """Parses a storage command's client flags. A plus sign is allowed, and a minus sign unless strtoul would make a
    large number of it (-0 passes). Of a number beyond 32 bits the low 32 count."""
    cdef const char *end = p + length
    cdef uint64_t value = 0
    cdef unsigned int digit
    cdef bint negative = p < end and p[0] == c'-'
    if p < end and (negative or p[0] == c'+'):
        p += 1
    if p == end or not c'0' <= p[0] <= c'9':
        return False
    while p < end:
        digit = <unsigned int><uint8_t>p[0] - c'0'
        if digit > 9:
            break
        if value > (UINT64_MAX - digit) / 10:
            return False
        value = value * 10 + digit
        p += 1
    if not number_ends(p, end):
        return False
    if negative:
        value = 0 - value
        if <int64_t>value < 0:
            return False
    out[0] = <uint32_t>value
    return True

cdef inline bint parse_exptime(const char *p, size_t length, int32_t *out) noexcept nogil:
    """Parses the expiry time of a storage command, a signed number. Of a number beyond 32 bits the low 32 count."""
    cdef const char *end = p + length
    cdef uint64_t value = 0
    cdef unsigned int digit
    cdef bint negative = False
    if p < end and (p[0] == c'+' or p[0] == c'-'):
        negative = p[0] == c'-'
        p += 1
    if p == end or not c'0' <= p[0] <= c'9':
        return False
    while p < end:
        digit = <unsigned int><uint8_t>p[0] - c'0'
        if digit > 9:
            break
        if value > (<uint64_t>INT64_MAX - digit) / 10:
            return False
        value = value * 10 + digit
        p += 1
    if not number_ends(p, end):
        return False
    out[0] = <int32_t><uint32_t>(0 - value if negative else value)
    return True

cdef inline char *itoa_u64(uint64_t value, char *p) noexcept nogil:
    cdef char digits[U64_TEXT]
    cdef int n = U64_TEXT
    while True:
        n -= 1
        digits[n] = <char>(c'0' + value % 10)
        value = value / 10
        if value == 0:
            break
    memcpy(p, &digits[n], <size_t>(U64_TEXT - n))
    return p + (U64_TEXT - n)

cdef inline char *itoa_u32(uint32_t value, char *p) noexcept nogil:
    cdef char digits[U32_TEXT]
    cdef int n = U32_TEXT
    while True:
        n -= 1
        digits[n] = <char>(c'0' + value % 10)
        value = value / 10
        if value == 0:
            break
    memcpy(p, &digits[n], <size_t>(U32_TEXT - n))
    return p + (U32_TEXT - n)

# ---- base64 (RFC 4648 section 4) -------------------------------------------------------------------------------------

cdef inline char base64_digit(unsigned int value) noexcept nogil:
    if value < 26:
        return <char>(c'A' + value)
    if value < 52:
        return <char>(c'a' + value - 26)
    if value < 62:
        return <char>(c'0' + value - 52)
    return c'+' if value == 62 else c'/'

cdef inline int base64_value(char digit) noexcept nogil:
    """Returns 0 to 63; 0 for the padding sign; -1 for anything else."""
    if c'A' <= digit <= c'Z':
        return digit - c'A'
    if c'a' <= digit <= c'z':
        return digit - c'a' + 26
    if c'0' <= digit <= c'9':
        return digit - c'0' + 52
    if digit == c'+':
        return 62
    if digit == c'/':
        return 63
    return 0 if digit == c'=' else -1

cdef inline char *base64_encode(const char *data, size_t length, char *p) noexcept nogil:
    """Writes 4 * ceil(length / 3) bytes."""
    cdef const uint8_t *s = <const uint8_t *>data
    while length >= 3:
        p[0] = base64_digit(s[0] >> 2)
        p[1] = base64_digit((s[0] & 3) << 4 | s[1] >> 4)
        p[2] = base64_digit((s[1] & 15) << 2 | s[2] >> 6)
        p[3] = base64_digit(s[2] & 63)
        s += 3
        p += 4
        length -= 3
    if length:
        p[0] = base64_digit(s[0] >> 2)
        if length == 1:
            p[1] = base64_digit((s[0] & 3) << 4)
            p[2] = c'='
        else:
            p[1] = base64_digit((s[0] & 3) << 4 | s[1] >> 4)
            p[2] = base64_digit((s[1] & 15) << 2)
        p[3] = c'='
        p += 4
    return p

cdef inline size_t base64_decode(const char *text, size_t length, char *out) noexcept nogil:
    """Writes at most 3 * (length / 4) bytes and returns their number; 0 if the text is not base64. As in memcached,
    characters outside the alphabet are skipped and the first group with padding is the last."""
    cdef uint32_t group = 0
    cdef size_t i, count = 0, written = 0
    cdef int value, padding = 0
    for i in range(length):
        if base64_value(text[i]) >= 0:
            count += 1
    if count == 0 or count % 4:
        return 0
    count = 0
    for i in range(length):
        value = base64_value(text[i])
        if value < 0:
            continue
        if text[i] == c'=':
            padding += 1
        group = group << 6 | <uint32_t>value
        count += 1
        if count == 4:
            out[written] = <char>(group >> 16 & 255)
            out[written + 1] = <char>(group >> 8 & 255)
            out[written + 2] = <char>(group & 255)
            written += 3
            if padding:
                return 0 if padding > 2 else written - <size_t>padding
            group = 0
            count = 0
    return written
