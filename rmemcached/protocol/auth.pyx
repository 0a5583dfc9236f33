"""Authentication by a set command whose value is user and password (see auth.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp

from rmemcached.protocol.conn cimport (
    AUTH_TOKEN, AUTH_WANTED, conn_authenticated, conn_closing, conn_hooks, conn_set_state,
)
from rmemcached.protocol.parse cimport LINE_TOKENS, parse_u32, token, tokenize
from rmemcached.protocol.reply cimport out_line, out_string
from rmemcached.store.store cimport store_time
from rmemcached.sys.atomics cimport counter_add
from rmemcached.sys.wipe cimport explicit_bzero

cdef enum:
    MIN_AUTH_LINE = 6        # bytes; a shorter line ends the connection
    MAX_AUTH_LINE = 2048
    MAX_AUTH_TOKEN = 16384


cdef extern from *:
    """
    #define RMC_SASL_FIRST "CLIENT_ERROR unauthenticated: SASL comes first, in the binary protocol (-S)"
    """
    const char *SASL_FIRST "RMC_SASL_FIRST"


cdef bint take_auth_line(conn *c) noexcept nogil:
    """Reads the line. After a well-formed line the connection wants AUTH_TOKEN. False: the line is not complete yet.
    True also after a refused line: the reply says so, or the connection is closing, since the line is too short or too
    long."""
    cdef token t[LINE_TOKENS]
    cdef const char *p = c.rcurr
    cdef const char *end = <const char *>memchr(p, c'\n', c.rbytes)
    cdef uint32_t length = 0
    cdef size_t size
    if end == NULL:
        if c.rbytes <= MAX_AUTH_LINE:
            return False
        conn_set_state(c, conn_closing)
        return True
    if c.thread.hooks.authenticate == NULL:
        # -S alone. memcached -S ends a connection that begins with text, and says nothing.
        out_string(c, SASL_FIRST)
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
    elif length > MAX_AUTH_TOKEN:
        out_string(c, b"CLIENT_ERROR auth token too long")
    else:
        c.auth_state = AUTH_TOKEN
        c.auth_bytes = length + 2
    return True


cdef void check_auth_token(conn *c, const char *p, const char *end) noexcept nogil:
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef const char *space
    if end[0] != c'\r' or end[1] != c'\n':
        out_string(c, b"CLIENT_ERROR bad command line termination")
        return
    space = <const char *>memchr(p, c' ', <size_t>(end - p))
    if space == NULL:
        out_string(c, b"CLIENT_ERROR bad authentication token format")
        return
    counter_add(&c.thread.stats.auth_cmds, 1)
    if hooks.authenticate(hooks.arg, p, <size_t>(space - p), space + 1, <size_t>(end - space) - 1):
        conn_authenticated(c)
        out_line(c, b"STORED\r\n", 8)
    else:
        counter_add(&c.thread.stats.auth_errors, 1)
        out_string(c, b"CLIENT_ERROR authentication failure")


cdef bint take_auth_token(conn *c) noexcept nogil:
    """Reads user and password, answers, and erases them. False: they are not complete yet."""
    cdef char *p = c.rcurr
    cdef size_t size = c.auth_bytes
    if c.rbytes < size:
        return False
    c.rcurr += size
    c.rbytes -= size
    c.auth_state = AUTH_WANTED
    check_auth_token(c, p, p + size - 2)
    explicit_bzero(p, size)
    return True


cdef bint try_read_command_asciiauth(conn *c) noexcept nogil:
    cdef bint taken
    c.noreply = False
    c.last_cmd_time = store_time(c.thread.store)
    if c.auth_state == AUTH_WANTED:
        taken = take_auth_line(c)
        if c.auth_state == AUTH_WANTED:
            return taken
    return take_auth_token(c)
