# Authentication of text connections (-Y). Included in ascii.pyx.

cdef enum:
    MIN_AUTH_LINE = 6        # bytes; a shorter line ends the connection
    MAX_AUTH_LINE = 2048
    MAX_AUTH_TOKEN = 16384


cdef bint try_read_command_asciiauth(conn *c) noexcept nogil:
    """What a connection says before it is authenticated: `set <any> <any> <any> <n>` and `user password` of n bytes.
    Returns as try_read_command_ascii. memcached: proto_text.c."""
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef token t[LINE_TOKENS]
    cdef const char *p = c.rcurr
    cdef const char *end
    cdef const char *space
    cdef uint32_t length = 0
    cdef size_t size
    c.noreply = False
    c.last_cmd_time = store_time(c.thread.store)
    if c.auth_wanted == AUTH_LINE:
        end = <const char *>memchr(p, c'\n', c.rbytes)
        if end == NULL:
            if c.rbytes <= MAX_AUTH_LINE:
                return False
            conn_set_state(c, conn_closing)
            return True
        if end - p < MIN_AUTH_LINE:
            conn_set_state(c, conn_closing)
            return True
        size = <size_t>(end - p) + 1
        c.rcurr += size
        c.rbytes -= size
        if (end - 1)[0] == c'\r':
            end -= 1
        if (tokenize(p, end, t) < 5 or memcmp(p, b"set", 3) != 0
                or not parse_u32(t[4].value, t[4].length, &length)):
            out_string(c, b"CLIENT_ERROR unauthenticated")
            return True
        if length > MAX_AUTH_TOKEN:
            out_string(c, b"CLIENT_ERROR auth token too long")
            return True
        c.auth_wanted = <int32_t>length + 2
        p = c.rcurr
    size = <size_t>c.auth_wanted
    if c.rbytes < size:
        return False
    c.rcurr += size
    c.rbytes -= size
    c.auth_wanted = AUTH_LINE
    end = p + size - 2
    if end[0] != c'\r' or end[1] != c'\n':
        out_string(c, b"CLIENT_ERROR bad command line termination")
        return True
    space = <const char *>memchr(p, c' ', <size_t>(end - p))
    if space == NULL:
        out_string(c, b"CLIENT_ERROR bad authentication token format")
        return True
    counter_add(&c.thread.stats.auth_cmds, 1)
    if hooks.authenticate(hooks.arg, p, <size_t>(space - p), space + 1, <size_t>(end - space) - 1):
        c.auth_wanted = 0
        out_line(c, b"STORED\r\n", 8)
    else:
        counter_add(&c.thread.stats.auth_errors, 1)
        out_string(c, b"CLIENT_ERROR authentication failure")
    return True
