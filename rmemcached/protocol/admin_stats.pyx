"""stats (see admin_stats.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from libc.string cimport memset, strlen

from rmemcached.protocol.conn cimport STATS_ANSWERED, STATS_RESET, conn_hooks, stats_result
from rmemcached.protocol.parse cimport abbreviates, parse_u32
from rmemcached.protocol.reply cimport BAD_FORMAT, out_line, out_string, stat_reply, text_reply
from rmemcached.protocol.stats_prefix cimport stats_prefix_dump
from rmemcached.protocol.stats_text cimport stat_buf, stat_end
from rmemcached.store.store cimport MAX_NUMBER_OF_SLAB_CLASSES, store_cachedump
from rmemcached.sys.atomics cimport relaxed_store

cdef enum:
    SUBS = 9

cdef struct stats_sub:
    const char *name
    void (*process)(conn *c, const token *t, int n) noexcept nogil   # NULL: the server has the statistics

cdef const char *NO_MEMORY_FOR_STATS = b"SERVER_ERROR out of memory writing stats"


cdef void process_stats_detail(conn *c, const token *t, int n) noexcept nogil:
    """stats detail on|off|dump"""
    cdef char *text
    cdef size_t length = 0
    if not c.thread.dump_enabled:
        out_string(c, b"CLIENT_ERROR stats detail not allowed")
    elif n > 2 and c.thread.prefixes != NULL and abbreviates(&t[2], b"on"):
        relaxed_store(&c.thread.prefixes.enabled, 1)
        out_line(c, b"OK\r\n", 4)
    elif n > 2 and c.thread.prefixes != NULL and abbreviates(&t[2], b"off"):
        relaxed_store(&c.thread.prefixes.enabled, 0)
        out_line(c, b"OK\r\n", 4)
    elif n > 2 and c.thread.prefixes != NULL and abbreviates(&t[2], b"dump"):
        text = stats_prefix_dump(c.thread.prefixes, &length)
        if text == NULL or not text_reply(c, text, length):
            out_string(c, NO_MEMORY_FOR_STATS)
    else:
        out_string(c, b"CLIENT_ERROR usage: stats detail on|off|dump")


cdef void process_stats_cachedump(conn *c, const token *t, int n) noexcept nogil:
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
            out_string(c, NO_MEMORY_FOR_STATS)


cdef stats_sub[SUBS] ABBREVIATED = [
    stats_sub(b"reset", NULL),
    stats_sub(b"detail", process_stats_detail),
    stats_sub(b"settings", NULL),
    stats_sub(b"cachedump", process_stats_cachedump),
    stats_sub(b"conns", NULL),
    stats_sub(b"extstore", NULL),
    stats_sub(b"proxy", NULL),
    stats_sub(b"proxyfuncs", NULL),
    stats_sub(b"proxybe", NULL),
]


cdef void process_server_stats(conn *c, const char *sub, size_t nsub) noexcept nogil:
    """Answers with the server's statistics called sub."""
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef stat_buf out
    cdef stats_result result
    memset(&out, 0, sizeof(out))
    result = hooks.stats(hooks.arg, c, sub, nsub, &out)
    if result != STATS_ANSWERED:
        free(out.data)
        if result == STATS_RESET:
            out_line(c, b"RESET\r\n", 7)
        else:
            out_line(c, b"ERROR\r\n", 7)
        return
    stat_end(&out)
    if not stat_reply(c, &out):
        out_string(c, NO_MEMORY_FOR_STATS)


cdef void process_stats_command(conn *c, const token *t, int n) noexcept nogil:
    cdef int i
    if n == 1:
        process_server_stats(c, b"", 0)
        return
    for i in range(SUBS):
        if abbreviates(&t[1], ABBREVIATED[i].name):
            if ABBREVIATED[i].process != NULL:
                ABBREVIATED[i].process(c, t, n)
            else:
                process_server_stats(c, ABBREVIATED[i].name, strlen(ABBREVIATED[i].name))
            return
    process_server_stats(c, t[1].value, t[1].length)
