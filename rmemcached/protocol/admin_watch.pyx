"""watch, and whether a connection can be lent (see admin_watch.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from rmemcached.logger cimport (
    LOG_CONNEVENTS, LOG_DELETIONS, LOG_EVICTIONS, LOG_FETCHERS, LOG_MUTATIONS, LOG_PROXYEVENTS, LOG_PROXYREQS,
    LOG_PROXYUSER, LOG_RAWCMDS, LOG_SYSEVENTS,
)
from rmemcached.protocol.conn cimport LEND_OK, LEND_TOO_MANY, conn_set_state, conn_watch, lend_result
from rmemcached.protocol.parse cimport abbreviates
from rmemcached.protocol.reply cimport out_errstring

cdef enum:
    WATCH_WORDS_COUNT = 10

cdef struct watch_word:
    const char *name
    uint32_t eflag

# The words have memcached's order, because a word may be cut short: the first word with this beginning is meant.
cdef watch_word[WATCH_WORDS_COUNT] WATCH_WORDS = [
    watch_word(b"rawcmds", LOG_RAWCMDS), watch_word(b"evictions", LOG_EVICTIONS),
    watch_word(b"fetchers", LOG_FETCHERS), watch_word(b"mutations", LOG_MUTATIONS),
    watch_word(b"sysevents", LOG_SYSEVENTS), watch_word(b"connevents", LOG_CONNEVENTS),
    watch_word(b"proxyreqs", LOG_PROXYREQS), watch_word(b"proxyevents", LOG_PROXYEVENTS),
    watch_word(b"proxyuser", LOG_PROXYUSER), watch_word(b"deletions", LOG_DELETIONS),
]


cdef bint require_lendable(conn *c, const char *pipelined) noexcept nogil:
    if c.engine.watch == NULL:
        out_errstring(c, b"CLIENT_ERROR not on this connection: it has no socket of its own")
        return False
    if c.npending or c.reqs_left != c.thread.reqs_per_event:
        out_errstring(c, pipelined)
        return False
    return True


cdef uint32_t watch_eflag(const token *t) noexcept nogil:
    cdef size_t i
    for i in range(<size_t>WATCH_WORDS_COUNT):
        if abbreviates(t, WATCH_WORDS[i].name):
            return WATCH_WORDS[i].eflag
    return 0


cdef void process_watch_command(conn *c, const token *t, int n) noexcept nogil:
    cdef uint32_t eflags = LOG_FETCHERS if n == 1 else 0
    cdef uint32_t eflag
    cdef lend_result result
    cdef int i
    if not c.thread.watch_enabled:
        out_errstring(c, b"CLIENT_ERROR watch commands not allowed")
        return
    if not require_lendable(c, b"ERROR cannot pipeline other commands before watch"):
        return
    for i in range(1, n):
        eflag = watch_eflag(&t[i])
        if eflag == 0:
            out_errstring(c, b"ERROR")
            return
        eflags |= eflag
    # Set the state before the call: the logger thread may use the connection before the call returns.
    conn_set_state(c, conn_watch)
    result = c.engine.watch(c, eflags)
    if result == LEND_TOO_MANY:
        out_errstring(c, b"WATCHER_TOO_MANY log watcher limit reached")
    elif result != LEND_OK:
        out_errstring(c, b"WATCHER_FAILED failed to add log watcher")
