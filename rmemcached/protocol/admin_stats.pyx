# The command stats. Included in ascii.pyx.


cdef inline bint is_start_of(const char *word, const token *t) noexcept nogil:
    """Whether the token is the word or its beginning, which memcached takes for the word."""
    return t.length <= strlen(word) and memcmp(word, t.value, t.length) == 0


cdef void process_stats_detail(conn *c, token *t, int n) noexcept nogil:
    """stats detail on|off|dump"""
    cdef char *text
    cdef size_t length = 0
    if not c.thread.dump_enabled:
        out_string(c, b"CLIENT_ERROR stats detail not allowed")
    elif n > 2 and c.thread.prefixes != NULL and is_start_of(b"on", &t[2]):
        relaxed_store(&c.thread.prefixes.enabled, 1)
        out_line(c, b"OK\r\n", 4)
    elif n > 2 and c.thread.prefixes != NULL and is_start_of(b"off", &t[2]):
        relaxed_store(&c.thread.prefixes.enabled, 0)
        out_line(c, b"OK\r\n", 4)
    elif n > 2 and c.thread.prefixes != NULL and is_start_of(b"dump", &t[2]):
        text = stats_prefix_dump(c.thread.prefixes, &length)
        if text == NULL or not text_reply(c, text, length):
            out_string(c, b"SERVER_ERROR out of memory writing stats")
    else:
        out_string(c, b"CLIENT_ERROR usage: stats detail on|off|dump")


cdef void process_stats_cachedump(conn *c, token *t, int n) noexcept nogil:
    """stats cachedump <class> <limit>"""
    cdef uint32_t clsid = 0, limit = 0
    cdef char *text
    cdef size_t length = 0
    if not c.thread.dump_enabled:
        out_string(c, b"CLIENT_ERROR stats cachedump not allowed")
    elif n < 4:
        out_string(c, b"CLIENT_ERROR bad command line")
    elif not parse_u32(t[2].value, t[2].length, &clsid) or not parse_u32(t[3].value, t[3].length, &limit):
        out_string(c, BAD_FORMAT)
    elif clsid >= MAX_NUMBER_OF_SLAB_CLASSES:
        out_string(c, b"CLIENT_ERROR Illegal slab id")
    else:
        text = store_cachedump(c.thread.store, clsid, limit, &length)
        if text == NULL or not text_reply(c, text, length):
            out_string(c, b"SERVER_ERROR out of memory writing stats")


cdef void process_stats_command(conn *c, token *t, int n) noexcept nogil:
    """stats [<sub>]. memcached takes the beginning of some subs for the whole; what stands behind is not looked at."""
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef stat_buf out
    cdef const char *sub = b""
    cdef size_t nsub = 0
    cdef int known
    if n > 1:
        if is_start_of(b"reset", &t[1]):
            sub = b"reset"
        elif is_start_of(b"detail", &t[1]):
            process_stats_detail(c, t, n)
            return
        elif is_start_of(b"settings", &t[1]):
            sub = b"settings"
        elif is_start_of(b"cachedump", &t[1]):
            process_stats_cachedump(c, t, n)
            return
        elif is_start_of(b"conns", &t[1]):
            sub = b"conns"
        else:
            sub = t[1].value
            nsub = t[1].length
        if nsub == 0:
            nsub = strlen(sub)
    memset(&out, 0, sizeof(out))
    known = hooks.stats(hooks.arg, c, sub, nsub, &out)
    if known != 0:
        free(out.data)
        if known > 0:
            out_line(c, b"RESET\r\n", 7)
        else:
            out_line(c, b"ERROR\r\n", 7)
        return
    stat_end(&out)
    if not stat_reply(c, &out):
        out_string(c, b"SERVER_ERROR out of memory writing stats")
