# SASL in the binary protocol (-S): the commands SASL_LIST_MECHS, SASL_AUTH and SASL_STEP. memcached: proto_bin.c.
#
# A mechanism may wait for a file, a directory or another process, so a side thread does the command, and the connection
# is in the state conn_auth meanwhile. The client's data never become an item, because other clients could read the
# memory of an item directly.

cdef enum:
    SASL_NAME_MAX = 32           # bytes of a mechanism's name; memcached's limit
    SASL_DATA_MAX = 64 * 1024    # bytes of the client's data; a lane keeps no longer command


cdef inline bint for_strangers(uint8_t opcode) noexcept nogil:
    """Whether the command is answered before authentication."""
    return (opcode == PROTOCOL_BINARY_CMD_SASL_LIST_MECHS or opcode == PROTOCOL_BINARY_CMD_SASL_AUTH
            or opcode == PROTOCOL_BINARY_CMD_SASL_STEP or opcode == PROTOCOL_BINARY_CMD_VERSION)


cdef inline size_t sasl_data(const conn *c, const protocol_binary_header *h) noexcept nogil:
    """The bytes behind the key to be waited for before the command begins: the client's data, unless the command is
    going to be refused."""
    cdef size_t n
    if ((h.opcode != PROTOCOL_BINARY_CMD_SASL_AUTH and h.opcode != PROTOCOL_BINARY_CMD_SASL_STEP)
            or c.thread.hooks.sasl == NULL or h.extlen or h.keylen == 0 or h.keylen > SASL_NAME_MAX
            or h.keylen > h.bodylen):
        return 0
    n = h.bodylen - h.keylen
    return n if n <= SASL_DATA_MAX else 0


cdef void write_bin_long(conn *c, uint16_t status, const char *body, size_t length) noexcept nogil:
    """write_bin for a body of any length."""
    cdef char *text
    if HEADER + length <= WRITE_BUFFER_SIZE:
        write_bin(c, status, 0, body, length, 0)
        return
    text = <char *>malloc(HEADER + length)
    if text == NULL:
        conn_set_state(c, conn_closing)
        return
    memcpy(put_header(c, text, status, 0, 0, <uint32_t>length, 0), body, length)
    conn_set_state(c, conn_new_cmd if text_reply(c, text, HEADER + length) else conn_closing)


cdef void deny(conn *c) noexcept nogil:
    counter_add(&c.thread.stats.auth_cmds, 1)
    counter_add(&c.thread.stats.auth_errors, 1)
    write_bin_error(c, PROTOCOL_BINARY_RESPONSE_AUTH_ERROR)


cdef void begin_sasl(conn *c, sasl_command command, const char *name, uint16_t nname, uint32_t vlen) noexcept nogil:
    """Hands the command with its vlen bytes of data, which are there, to a side thread."""
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    cdef const char *data = c.rcurr
    c.rcurr += vlen
    c.rbytes -= vlen
    c.auth_state = AUTH_WANTED
    if command == SASL_STEP and c.sasl == NULL:
        deny(c)
    elif hooks.begin(hooks.arg, c, command, name, nname, data, vlen):
        conn_set_state(c, conn_auth)
    else:
        out_of_memory(c, b"Out of memory")


cdef void process_bin_sasl(conn *c, uint8_t cmd, const char *key, uint16_t nkey, uint32_t vlen) noexcept nogil:
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    if hooks == NULL:
        unknown_command(c, vlen)
    elif cmd == PROTOCOL_BINARY_CMD_SASL_LIST_MECHS:
        # As in memcached, the question ends an authentication of before.
        c.auth_state = AUTH_WANTED
        write_bin_long(c, PROTOCOL_BINARY_RESPONSE_SUCCESS, hooks.mechanisms, hooks.nmechanisms)
    elif nkey > SASL_NAME_MAX:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_EINVAL)
        swallow(c, vlen)
    elif vlen > SASL_DATA_MAX:
        out_of_memory(c, b"Out of memory")
        swallow(c, vlen)
    else:
        begin_sasl(c, SASL_AUTH if cmd == PROTOCOL_BINARY_CMD_SASL_AUTH else SASL_STEP, key, nkey, vlen)


cdef void complete_sasl_binary(conn *c) noexcept nogil:
    cdef const char *text = b"Authenticated"
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    cdef sasl_session *session = c.sasl
    assert_that(c.state == conn_auth)
    if session.outcome == SASL_CHALLENGE:
        write_bin_long(c, PROTOCOL_BINARY_RESPONSE_AUTH_CONTINUE, session.challenge, session.nchallenge)
        return
    c.sasl = NULL
    if session.outcome == SASL_AUTHENTICATED:
        conn_authenticated(c)
        counter_add(&c.thread.stats.auth_cmds, 1)
        write_bin(c, PROTOCOL_BINARY_RESPONSE_SUCCESS, 0, text, strlen(text), 0)
    else:
        deny(c)
    hooks.end(hooks.arg, session)
