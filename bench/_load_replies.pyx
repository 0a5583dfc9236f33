# The replies: a machine that takes pieces of any length, compares them, and counts.


cdef void count_latency(uint64_t *buckets, int64_t ns) noexcept nogil:
    # Counts in the buckets of an HdrHistogram with three digits: 2048 buckets of a nanosecond, then 1024 buckets for
    # each power of two.
    cdef uint64_t v = <uint64_t>min(max(ns, <int64_t>1), <int64_t>LONGEST)
    cdef size_t shift = 0
    if v >= 2048:
        shift = 53 - leading_zeros(v)
    buckets[shift * 1024 + (v >> shift)] += 1


cdef int wrong(load *l, connection *c, const char *got, size_t length) noexcept nogil:
    l.wrong_unasked = c.count == 0
    if not l.wrong_unasked:
        l.wrong_kind = c.requests[c.first].kind
        l.wrong_number = c.numbers[<size_t>c.first * l.multiget + min(c.key, c.requests[c.first].keys - 1)]
    l.wrong_length = min(length, <size_t>80)
    memcpy(l.wrong_got, got, l.wrong_length)
    return WRONG


cdef int wrong_value(load *l, connection *c, const char *got, size_t length, size_t at) noexcept nogil:
    l.wrong_in_value = True
    l.wrong_at = at
    return wrong(l, c, got, min(min(length, c.value_size + 2 - at), <size_t>16))


cdef inline int done(load *l, connection *c, int64_t now) noexcept nogil:
    # Takes note of the answer to the oldest request.
    cdef request *q = &c.requests[c.first]
    count_latency(l.latencies[q.kind], now - q.intended)
    l.answered = now
    l.done[q.kind] += 1
    c.first += 1
    if c.first == l.depth:
        c.first = 0
    c.count -= 1
    c.key = 0
    l.in_flight -= 1
    return 0


cdef int take_get_line(load *l, connection *c, const char *line, size_t length, int64_t now) noexcept nogil:
    # Takes a line of the reply to a get: a header, whose value follows, or END. Keys may be missing.
    cdef request *q = &c.requests[c.first]
    cdef const uint32_t *numbers = c.numbers + <size_t>c.first * l.multiget
    cdef char header[LINE_MOST]
    cdef unsigned int key = c.key
    cdef size_t size
    if length == 5 and memcmp(line, <const char *>"END\r\n", 5) == 0:
        if l.complete and c.key < q.keys:
            return wrong(l, c, line, length)
        l.misses += q.keys - c.key
        return done(l, c, now)
    while key < q.keys:
        size = value_size_of(l, numbers[key])
        if put_header(l, header, numbers[key], size) == length and memcmp(header, line, length) == 0:
            if l.complete and key != c.key:
                return wrong(l, c, <const char *>"END\r\n", 5)
            l.misses += key - c.key
            l.hits += 1
            c.key = key
            c.in_value = True
            c.value_at = 0
            c.value_size = size
            c.stamp = stamp_of(numbers[key], size)
            return 0
        key += 1
    return wrong(l, c, line, length)


cdef inline bint says(const char *line, size_t length, const char *text) noexcept nogil:
    return length == strlen(text) and memcmp(line, text, length) == 0


cdef int take_meta_get_line(load *l, connection *c, const char *line, size_t length, int64_t now) noexcept nogil:
    # Takes the header of the reply to a META_GET. The value follows.
    cdef uint32_t number = c.numbers[<size_t>c.first * l.multiget]
    cdef size_t size = value_size_of(l, number)
    cdef char header[LINE_MOST]
    cdef char *p = put_digits(header + 3, size)
    memcpy(header, <const char *>"VA ", 3)
    memcpy(p, <const char *>"\r\n", 2)
    if <size_t>(p + 2 - header) == length and memcmp(header, line, length) == 0:
        l.hits += 1
        c.in_value = True
        c.value_at = 0
        c.value_size = size
        c.stamp = stamp_of(number, size)
        return 0
    if says(line, length, "EN\r\n") and not l.complete:
        l.misses += 1
        return done(l, c, now)
    return wrong(l, c, line, length)


cdef int take_other_line(load *l, connection *c, const char *line, size_t length, int64_t now) noexcept nogil:
    # Takes the reply to a MISS, TOUCH, META_SET or NEW.
    cdef unsigned int kind = c.requests[c.first].kind
    if kind == MISS and says(line, length, "END\r\n"):
        l.misses += 1
        return done(l, c, now)
    if kind == TOUCH and says(line, length, "TOUCHED\r\n"):
        l.hits += 1
        return done(l, c, now)
    if (kind == META_SET and says(line, length, "HD\r\n")) or (kind == NEW and says(line, length, "STORED\r\n")):
        return done(l, c, now)
    if kind == NEW and says(line, length, "SERVER_ERROR out of memory storing object\r\n"):
        l.refused += 1
        return done(l, c, now)
    return wrong(l, c, line, length)


cdef inline bint is_number(const char *line, size_t length) noexcept nogil:
    # Whether the line is a positive number.
    cdef size_t i
    if length < 3 or line[0] < c'1' or line[length - 2] != c'\r':
        return False
    for i in range(length - 2):
        if line[i] < c'0' or line[i] > c'9':
            return False
    return True


cdef int take_line(load *l, connection *c, const char *line, size_t length, int64_t now) noexcept nogil:
    cdef unsigned int kind
    if c.count == 0:
        return wrong(l, c, line, length)
    kind = c.requests[c.first].kind
    if kind == GET:
        return take_get_line(l, c, line, length, now)
    if kind == SET:
        if length != 8 or memcmp(line, <const char *>"STORED\r\n", 8) != 0:
            return wrong(l, c, line, length)
        return done(l, c, now)
    if says(line, length, "NOT_FOUND\r\n") and not l.complete:
        l.misses += 1
        return done(l, c, now)
    if kind == DELETE and length == 9 and memcmp(line, <const char *>"DELETED\r\n", 9) == 0:
        l.hits += 1
        return done(l, c, now)
    if kind == INCR and is_number(line, length):
        l.hits += 1
        return done(l, c, now)
    if kind == META_GET:
        return take_meta_get_line(l, c, line, length, now)
    return take_other_line(l, c, line, length, now)


cdef const char *take_value(load *l, connection *c, const char *p, const char *end, int64_t now) noexcept nogil:
    # Takes part of a value, or of the \r\n behind it. Returns the end of the part; NULL: the bytes are wrong.
    cdef size_t length, right
    if c.value_at < c.value_size:
        length = min(<size_t>(end - p), c.value_size - c.value_at)
        right = first_wrong(l, c.stamp, c.value_at, p, length) if l.verify else length
        if right < length:
            wrong_value(l, c, p + right, length - right, c.value_at + right)
            return NULL
        c.value_at += length
        p += length
    while p < end and c.value_at < c.value_size + 2:
        if p[0] != (c'\r' if c.value_at == c.value_size else c'\n'):
            wrong_value(l, c, p, end - p, c.value_at)
            return NULL
        c.value_at += 1
        p += 1
    if c.value_at == c.value_size + 2:
        c.in_value = False
        c.key += 1
        if c.requests[c.first].kind == META_GET:
            done(l, c, now)
    return p


cdef int take_bytes(load *l, connection *c, const char *p, size_t length, int64_t now) noexcept nogil:
    # Takes the bytes received on a connection. Returns 0, or WRONG.
    cdef const char *end = p + length
    cdef const char *newline
    cdef size_t more
    cdef int r = 0
    while p < end and r == 0:
        if c.in_value:
            p = take_value(l, c, p, end, now)
            if p == NULL:
                return WRONG
            continue
        newline = <const char *>memchr(p, c'\n', end - p)
        more = <size_t>(end - p) if newline == NULL else <size_t>(newline + 1 - p)
        if newline != NULL and c.line_length == 0:
            r = take_line(l, c, p, more, now)
        elif c.line_length + more > LINE_MOST:
            return wrong(l, c, p, more)
        else:
            memcpy(c.line + c.line_length, p, more)
            c.line_length += more
            if newline != NULL:
                r = take_line(l, c, c.line, c.line_length, now)
                c.line_length = 0
        p += more
    return r
