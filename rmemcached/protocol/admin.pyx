# Commands for whoever runs the daemon: verbosity, and debugtime and debugitem for tests. Included in ascii.pyx.

cdef enum:
    MAX_VERBOSITY_LEVEL = 2


cdef void process_verbosity_command(conn *c, token *t, int n) noexcept nogil:
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef uint32_t level
    if n < 2 or not parse_u32(t[1].value, t[1].length, &level):
        out_string(c, BAD_FORMAT)
        return
    if hooks.set_verbosity != NULL:
        hooks.set_verbosity(hooks.arg, <int>level if level < MAX_VERBOSITY_LEVEL else MAX_VERBOSITY_LEVEL)
    out_line(c, b"OK\r\n", 4)


cdef void process_shutdown_command(conn *c, token *t, int n) noexcept nogil:
    """shutdown [graceful]"""
    cdef const conn_hooks *hooks = c.thread.hooks
    if hooks.shutdown == NULL:
        out_string(c, b"SERVER_ERROR: shutdown not enabled")
    elif n > 2 or (n == 2 and not token_is(&t[1], b"graceful", 8)):
        out_string(c, b"CLIENT_ERROR invalid shutdown mode")
    else:
        conn_set_state(c, conn_closing)
        hooks.shutdown(hooks.arg, n == 2)


cdef void process_debugtime_command(conn *c, token *t, int n) noexcept nogil:
    """debugtime p|r|<seconds>: stops the clock, lets it go on, moves it."""
    cdef int64_t seconds
    if n < 2:
        out_line(c, b"ERROR\r\n", 7)
        return
    if token_is(&t[1], b"p", 1):
        store_pause(c.thread.store, True)
    elif token_is(&t[1], b"r", 1):
        store_pause(c.thread.store, False)
    elif parse_i64(t[1].value, t[1].length, &seconds):
        store_advance(c.thread.store, seconds)
    else:
        out_line(c, b"ERROR\r\n", 7)
        return
    out_line(c, b"OK\r\n", 4)


cdef void process_debugitem_command(conn *c, token *t, int n) noexcept nogil:
    """debugitem lock|unlock|ref|unref <key>: takes and gives back item locks and references, across commands.

    `unref reffed` gives back what the worker's last ref took, even if the key has another item by now.
    """
    cdef store *s = c.thread.store
    cdef item *it
    if n < 3 or t[2].length > KEY_MAX_LENGTH:
        out_line(c, b"ERROR\r\n", 7)
        return
    if token_is(&t[1], b"lock", 4):
        store_debug_lock(s, store_hash(t[2].value, t[2].length))
    elif token_is(&t[1], b"unlock", 6):
        store_debug_unlock(s, store_hash(t[2].value, t[2].length))
    elif token_is(&t[1], b"unref", 5) and token_is(&t[2], b"reffed", 6):
        if c.thread.debug_item_reffed != NULL:
            item_remove(s, c.thread.debug_item_reffed)
            c.thread.debug_item_reffed = NULL
    elif token_is(&t[1], b"ref", 3) or token_is(&t[1], b"unref", 5):
        it = item_get(s, t[2].value, t[2].length, False)
        if it == NULL:
            out_line(c, b"MISS\r\n", 6)
            return
        if t[1].length == 3:
            c.thread.debug_item_reffed = it
        else:
            item_remove(s, it)
            item_remove(s, it)
    else:
        out_line(c, b"ERROR\r\n", 7)
        return
    out_line(c, b"OK\r\n", 4)


cdef bint process_debug_command(conn *c, token *t, int n) noexcept nogil:
    """False: the line is none of the debug commands."""
    if token_is(&t[0], b"debugtime", 9):
        process_debugtime_command(c, t, n)
    elif token_is(&t[0], b"debugitem", 9):
        process_debugitem_command(c, t, n)
    else:
        return False
    return True
