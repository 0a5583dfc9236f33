# Commands that lend the connection to a side thread. Included by ascii.pyx. memcached: proto_text.c.

cdef struct watch_word:
    const char *name
    uint32_t eflag

# In memcached's order: what a word that was cut short means is the first that begins so.
cdef watch_word[10] WATCH_WORDS = [
    watch_word(b"rawcmds", LOG_RAWCMDS), watch_word(b"evictions", LOG_EVICTIONS),
    watch_word(b"fetchers", LOG_FETCHERS), watch_word(b"mutations", LOG_MUTATIONS),
    watch_word(b"sysevents", LOG_SYSEVENTS), watch_word(b"connevents", LOG_CONNEVENTS),
    watch_word(b"proxyreqs", LOG_PROXYREQS), watch_word(b"proxyevents", LOG_PROXYEVENTS),
    watch_word(b"proxyuser", LOG_PROXYUSER), watch_word(b"deletions", LOG_DELETIONS),
]


cdef inline bint begins(const token *t, const char *text, size_t length) noexcept nogil:
    """Whether the token is the word, or the beginning of it."""
    return t.length <= length and memcmp(t.value, text, t.length) == 0


cdef bint can_lend(conn *c, const char *pipelined) noexcept nogil:
    """Whether a side thread can have the connection now; if not, answers why. `pipelined` is the answer to a command
    behind others of the same batch: their replies would have to leave first."""
    if c.engine.watch == NULL:
        out_errstring(c, b"CLIENT_ERROR not on this connection: it has no socket of its own")
        return False
    if c.npending or c.reqs_left != c.thread.reqs_per_event:
        out_errstring(c, pipelined)
        return False
    return True


cdef uint32_t watch_eflag(const token *t) noexcept nogil:
    cdef size_t i
    for i in range(10):
        if strncmp(t.value, WATCH_WORDS[i].name, t.length) == 0:
            return WATCH_WORDS[i].eflag
    return 0


cdef void process_watch_command(conn *c, const token *t, int n) noexcept nogil:
    """watch [word ...]; without a word: fetchers."""
    cdef uint32_t eflags = LOG_FETCHERS if n == 1 else 0
    cdef uint32_t eflag
    cdef lend_result result
    cdef int i
    if not c.thread.watch_enabled:
        out_errstring(c, b"CLIENT_ERROR watch commands not allowed")
        return
    if not can_lend(c, b"ERROR cannot pipeline other commands before watch"):
        return
    for i in range(1, n):
        eflag = watch_eflag(&t[i])
        if eflag == 0:
            out_errstring(c, b"ERROR")
            return
        eflags |= eflag
    # From here on the other thread may be at work already.
    conn_set_state(c, conn_watch)
    result = c.engine.watch(c, eflags)
    if result == LEND_TOO_MANY:
        out_errstring(c, b"WATCHER_TOO_MANY log watcher limit reached")
    elif result != LEND_OK:
        out_errstring(c, b"WATCHER_FAILED failed to add log watcher")


cdef void crawler_refused(conn *c, crawler_result_type result) noexcept nogil:
    if result == CRAWLER_RUNNING:
        out_string(c, b"BUSY currently processing crawler request")
    elif result == CRAWLER_BADCLASS:
        out_string(c, b"BADCLASS invalid class id")
    elif result == CRAWLER_NOTSTARTED:
        out_string(c, b"NOTSTARTED no items to crawl")
    else:
        out_string(c, b"ERROR an unknown error happened")


cdef bint process_dump_command(conn *c, const token *t) noexcept nogil:
    """lru_crawler metadump|mgdump <classes|all|hash>. False: it is another subcommand."""
    cdef dump_kind kind
    cdef crawler_result_type result
    if begins(&t[1], b"metadump", 8):
        kind = DUMP_META
    elif begins(&t[1], b"mgdump", 6):
        kind = DUMP_MG
    else:
        return False
    if not relaxed_load(&store_get_config(c.thread.store).lru_crawler):
        out_string(c, b"CLIENT_ERROR lru crawler disabled")
    elif not c.thread.dump_enabled:
        out_string(c, b"ERROR metadump not allowed" if kind == DUMP_META else b"ERROR key dump not allowed")
    elif can_lend(c, b"ERROR cannot pipeline other commands before metadump" if kind == DUMP_META
                  else b"ERROR cannot pipeline other commands before mgdump"):
        conn_set_state(c, conn_watch)
        result = c.engine.dump(c, kind, t[2].value, t[2].length)
        if result != CRAWLER_OK:
            crawler_refused(c, result)
    return True
