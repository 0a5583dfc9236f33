"""See _reply.pxd."""

from libc.errno cimport EAGAIN, EBADMSG
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memchr, memcmp, strlen


cdef enum:
    CAS_DIGITS = 20          # of the largest CAS value


cdef inline const char *digits(const char *p, const char *end, uint64_t *value) noexcept nogil:
    # The end of the decimal number at p; p itself when there is no number, or a too large number.
    cdef const char *start = p
    cdef uint64_t v = 0
    while p < end and c'0' <= p[0] <= c'9':
        if p - start == 19:
            return start
        v = v * 10 + <uint64_t>(p[0] - c'0')
        p += 1
    value[0] = v
    return p


cdef inline size_t cas_length(const char *p, const char *end) noexcept nogil:
    # The number of digits of the cas at p, up to a blank or the end; 0 when the text is no number of 64 bits.
    cdef const char *start = p
    while p < end and c'0' <= p[0] <= c'9':
        p += 1
    if p - start > CAS_DIGITS or (p < end and p[0] != c' '):
        return 0
    return p - start


cdef inline reply_code code_of(const char *line, size_t length) noexcept nogil:
    if length < 2 or (length > 2 and line[2] != c' '):
        return REPLY_OTHER
    if line[0] == c'V' and line[1] == c'A':
        return REPLY_VA
    if line[0] == c'H' and line[1] == c'D':
        return REPLY_HD
    if line[0] == c'E' and line[1] == c'N':
        return REPLY_EN
    if line[0] == c'N' and line[1] == c'S':
        return REPLY_NS
    if line[0] == c'E' and line[1] == c'X':
        return REPLY_EX
    if line[0] == c'N' and line[1] == c'F':
        return REPLY_NF
    if line[0] == c'M' and line[1] == c'N':
        return REPLY_MN
    return REPLY_OTHER


cdef int parse_flags(const char *line, const char *p, const char *end, reply_line *out) noexcept nogil:
    # Parses the flags from p on. Skips flags that no request of this client asks for.
    cdef const char *after
    cdef uint64_t value = 0
    while p < end:
        if p[0] == c' ':
            p += 1
            continue
        if p[0] == c'f':
            after = digits(p + 1, end, &value)
            if after <= p + 1 or value > 0xFFFFFFFFULL:
                return -EBADMSG
            out.flags = <uint32_t>value
        elif p[0] == c'c':
            out.cas_offset = p + 1 - line
            out.cas_length = cas_length(p + 1, end)
            if out.cas_length == 0:
                return -EBADMSG
        elif p[0] == c'@':
            out.in_memory = True
        while p < end and p[0] != c' ':
            p += 1
    return 1


cdef int parse_reply(const char *line, size_t length, reply_line *out) noexcept nogil:
    cdef const char *p = line + 2
    cdef const char *end = line + length
    cdef const char *after
    cdef uint64_t value = 0
    out.code = code_of(line, length)
    out.flags = 0
    out.cas_length = 0
    out.in_memory = False
    if out.code == REPLY_VA:
        p += 1
        after = digits(p, end, &value)
        if after <= p or (after < end and after[0] != c' '):
            return -EBADMSG
        out.length = value
        p = after
    elif out.code != REPLY_HD:
        return 1
    return parse_flags(line, p, end, out)


# --- classic replies (memcached's doc/protocol.txt) ---

cdef inline bint is_word(const char *line, size_t length, const char *word) noexcept nogil:
    return length == strlen(word) and memcmp(line, word, length) == 0


cdef int parse_value(const char *line, size_t length, reply_line *out) noexcept nogil:
    # VALUE <key> <flags> <bytes> [<cas>]
    cdef const char *end = line + length
    cdef const char *p = line + 6
    cdef const char *after
    cdef uint64_t value = 0
    while p < end and p[0] != c' ':
        p += 1
    p += 1
    after = digits(p, end, &value) if p < end else p
    if after <= p or value > 0xFFFFFFFFULL or after == end or after[0] != c' ':
        return -EBADMSG
    out.flags = <uint32_t>value
    p = after + 1
    after = digits(p, end, &value)
    if after <= p or (after < end and after[0] != c' '):
        return -EBADMSG
    out.code = REPLY_VA
    out.length = value
    if after < end:
        out.cas_offset = after + 1 - line
        out.cas_length = cas_length(after + 1, end)
        if out.cas_length == 0:
            return -EBADMSG
    return 1


cdef bint is_number(const char *line, size_t length) noexcept nogil:
    # A number that got shorter may have blanks behind it.
    cdef size_t i
    for i in range(length):
        if not (c'0' <= line[i] <= c'9' or (i and line[i] == c' ')):
            return False
    return length != 0


cdef int parse_classic(const char *line, size_t length, reply_line *out) noexcept nogil:
    out.code = REPLY_OTHER
    out.flags = 0
    out.cas_length = 0
    out.in_memory = False
    if length > 6 and memcmp(line, b"VALUE ", 6) == 0:
        return parse_value(line, length, out)
    if is_word(line, length, b"END"):
        out.code = REPLY_EN
    elif (is_word(line, length, b"STORED") or is_word(line, length, b"DELETED") or is_word(line, length, b"TOUCHED")
            or is_word(line, length, b"OK")):
        out.code = REPLY_HD
    elif is_word(line, length, b"NOT_STORED"):
        out.code = REPLY_NS
    elif is_word(line, length, b"EXISTS"):
        out.code = REPLY_EX
    elif is_word(line, length, b"NOT_FOUND"):
        out.code = REPLY_NF
    elif length >= 7 and memcmp(line, b"VERSION", 7) == 0:
        # The answer to the mark behind commands without a reply.
        out.code = REPLY_MN
    elif is_number(line, length):
        out.code = REPLY_NUMBER
    return 1


cdef int read_reply(Stream s, reply_line *reply) noexcept nogil:
    cdef int r
    while True:
        r = s.read_line()
        if r <= 0:
            return r
        if s.classic:
            r = parse_classic(s.line, s.line_length, reply)
        else:
            r = parse_reply(s.line, s.line_length, reply)
        if r <= 0:
            return r
        if s.noreplies == 0:
            return 1
        # Skip error lines of commands without a reply, up to the answer to the mark.
        if reply.code == REPLY_MN:
            s.noreplies = 0


cdef int next_reply(Stream s, reply_line *reply) noexcept nogil:
    cdef char *start = s.rbuf + s.rpos
    cdef char *end
    if s.noreplies:
        return read_reply(s, reply) if s.has_line() else -EAGAIN
    end = <char *>memchr(start, c'\n', s.rend - s.rpos)
    if end == NULL:
        return -EAGAIN
    s.rpos += end - start + 1
    if end > start and (end - 1)[0] == c'\r':
        end -= 1
    s.line = start
    s.line_length = end - start
    if s.classic:
        return parse_classic(start, end - start, reply)
    return parse_reply(start, end - start, reply)
