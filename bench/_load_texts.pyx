# The bytes of requests, and of values.
#
# A value begins with a stamp, computed from key and length; behind the stamp comes a part of the pool of random bytes,
# whose place follows from the stamp. So the comparison detects another key's value, an older value of another length,
# and a value with exchanged parts.


cdef size_t put_key(const load *l, char *out, uint32_t number, char filler) noexcept nogil:
    # Writes a key: its number behind fillers. Returns the key's length.
    cdef size_t size = key_size_of(l, number)
    cdef char *p = out + size
    memset(out, filler, size)
    while True:
        p -= 1
        p[0] = <char>(c'0' + number % 10)
        number //= 10
        if number == 0:
            return size


cdef char *put_digits(char *out, uint64_t number) noexcept nogil:
    cdef char digits[20]
    cdef int i = 20
    while True:
        i -= 1
        digits[i] = <char>(c'0' + number % 10)
        number //= 10
        if number == 0:
            break
    memcpy(out, digits + i, 20 - i)
    return out + 20 - i


cdef uint64_t stamp_of(uint32_t number, size_t size) noexcept nogil:
    return mix64((<uint64_t>number << 32) ^ size)


cdef void put_value(const load *l, char *out, uint32_t number, size_t size) noexcept nogil:
    cdef uint64_t stamp = stamp_of(number, size)
    memcpy(out, &stamp, min(size, <size_t>STAMP))
    if size > STAMP:
        memcpy(out + STAMP, l.pool + (stamp & (OFFSETS - 1)), size - STAMP)


cdef size_t first_wrong(const load *l, uint64_t stamp, size_t at, const char *p, size_t length) noexcept nogil:
    # Compares the bytes of a value from `at` on. Returns the number of right bytes before the first wrong byte, or
    # `length`.
    cdef const char *wanted = <const char *>&stamp
    cdef size_t i = 0
    while i < length and at + i < STAMP:
        if p[i] != wanted[at + i]:
            return i
        i += 1
    if i == length:
        return length
    wanted = l.pool + (stamp & (OFFSETS - 1)) + (at + i - STAMP)
    if memcmp(p + i, wanted, length - i) == 0:
        return length
    wanted -= i
    while p[i] == wanted[i]:
        i += 1
    return i


cdef size_t put_header(const load *l, char *out, uint32_t number, size_t size) noexcept nogil:
    # Writes the header of a value in a get's reply. Returns its length.
    cdef char *p = out + 6
    memcpy(out, <const char *>"VALUE ", 6)
    p += put_key(l, p, number, c'k')
    memcpy(p, <const char *>" 0 ", 3)
    p = put_digits(p + 3, size)
    memcpy(p, <const char *>"\r\n", 2)
    return p + 2 - out


# --- requests, at the end of load.out ---


cdef int make_room(load *l) noexcept nogil:
    # Makes room in load.out for another request of any kind. Returns 0, or -ENOMEM.
    cdef size_t need = max(KEY_MOST + 1 + l.value_size, <size_t>l.multiget * (KEY_MOST + 1)) + LINE_MORE
    cdef size_t size = l.out_size
    cdef char *grown
    if l.out_size - l.out_length >= need:
        return 0
    while size - l.out_length < need:
        size = size * 2 if size else 65536
    grown = <char *>realloc(l.out, size)
    if grown == NULL:
        return -ENOMEM
    l.out = grown
    l.out_size = size
    return 0


cdef inline char *put_name(load *l, const char *name, size_t length, uint32_t number, char filler) noexcept nogil:
    # Writes a command and its key. Returns the place behind them.
    cdef char *p = l.out + l.out_length
    memcpy(p, name, length)
    p += length
    return p + put_key(l, p, number, filler)


cdef inline void put_line(load *l, char *p, const char *rest, size_t length) noexcept nogil:
    memcpy(p, rest, length)
    l.out_length = p + length - l.out


cdef void put_set(load *l, uint32_t number) noexcept nogil:
    cdef size_t size = value_size_of(l, number)
    cdef char *p = put_name(l, "set ", 4, number, c'k')
    memcpy(p, <const char *>" 0 0 ", 5)
    p = put_digits(p + 5, size)
    memcpy(p, <const char *>"\r\n", 2)
    p += 2
    put_value(l, p, number, size)
    put_line(l, p + size, "\r\n", 2)


cdef size_t put_new_key(const load *l, char *out, uint32_t number) noexcept nogil:
    # Writes a key with the run's number as well. Returns its length.
    cdef size_t size = put_key(l, out, number, c'n')
    put_digits(out + 1, l.run)
    return size


cdef void put_new(load *l, uint32_t number) noexcept nogil:
    cdef char *p = l.out + l.out_length
    put_set(l, number)
    put_new_key(l, p + 4, number)


cdef void put_meta_set(load *l, uint32_t number) noexcept nogil:
    cdef size_t size = value_size_of(l, number)
    cdef char *p = put_name(l, "ms ", 3, number, c'k')
    p[0] = c' '
    p = put_digits(p + 1, size)
    memcpy(p, <const char *>"\r\n", 2)
    p += 2
    put_value(l, p, number, size)
    put_line(l, p + size, "\r\n", 2)


cdef void put_get(load *l, const uint32_t *numbers, unsigned int keys) noexcept nogil:
    cdef char *p = put_name(l, "get ", 4, numbers[0], c'k')
    cdef unsigned int i
    for i in range(1, keys):
        p[0] = c' '
        p += 1 + put_key(l, p + 1, numbers[i], c'k')
    put_line(l, p, "\r\n", 2)


cdef int put_request(load *l, connection *c, int64_t intended) noexcept nogil:
    # Writes the next request of a connection with room. Returns 0, or -ENOMEM.
    cdef unsigned int place = (c.first + c.count) % l.depth
    cdef request *made = &c.requests[place]
    cdef uint32_t *numbers = c.numbers + <size_t>place * l.multiget
    cdef unsigned int i
    if make_room(l) != 0:
        return -ENOMEM
    made.intended = intended
    made.keys = 1
    c.count += 1
    l.in_flight += 1
    if l.filling:
        made.kind = SET
        numbers[0] = <uint32_t>(l.filled % l.keys)
        l.filled += 1
        if l.filled <= l.keys:
            put_set(l, numbers[0])
        else:
            put_line(l, put_name(l, "set ", 4, numbers[0], c'c'), " 0 0 1\r\n0\r\n", 11)
        return 0
    made.kind = draw_kind(l)
    if made.kind == NEW or l.only == DELETE:
        numbers[0] = l.turn
        l.turn += 1
        if l.only == DELETE and l.turn == l.keys:
            l.until = 0
    else:
        numbers[0] = draw(l)
    if made.kind == SET:
        put_set(l, numbers[0])
    elif made.kind == DELETE:
        put_line(l, put_name(l, "delete ", 7, numbers[0], c'k'), "\r\n", 2)
    elif made.kind == INCR:
        put_line(l, put_name(l, "incr ", 5, numbers[0], c'c'), " 1\r\n", 4)
    elif made.kind == MISS:
        put_line(l, put_name(l, "get ", 4, numbers[0], c'm'), "\r\n", 2)
    elif made.kind == TOUCH:
        put_line(l, put_name(l, "touch ", 6, numbers[0], c'k'), " 0\r\n", 4)
    elif made.kind == META_GET:
        put_line(l, put_name(l, "mg ", 3, numbers[0], c'k'), " v\r\n", 4)
    elif made.kind == META_SET:
        put_meta_set(l, numbers[0])
    elif made.kind == NEW:
        put_new(l, numbers[0])
    else:
        made.keys = l.multiget
        for i in range(1, l.multiget):
            numbers[i] = draw(l)
        put_get(l, numbers, l.multiget)
    return 0
