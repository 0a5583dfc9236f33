"""flush_all, verbosity, shutdown, cache_memlimit, refresh_certs; for tests debugtime and debugitem (see admin.pxd)."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen

from rmemcached.protocol.admin_flash cimport process_extstore_command
from rmemcached.protocol.admin_lru cimport process_lru_command, process_lru_crawler_command
from rmemcached.protocol.admin_slabs cimport process_slabs_command
from rmemcached.protocol.admin_watch cimport process_watch_command
from rmemcached.protocol.conn cimport REFRESH_WHY_MAX, conn_closing, conn_hooks, conn_set_state
from rmemcached.protocol.parse cimport parse_i32, parse_i64, parse_u32, token_is
from rmemcached.protocol.reply cimport BAD_EXPTIME, BAD_FORMAT, OUT_OF_MEMORY, out_line, out_string, text_reply
from rmemcached.store.store cimport (
    KEY_MAX_LENGTH, item, item_get, item_remove, store, store_advance, store_debug_lock, store_debug_unlock,
    store_flush_all, store_hash, store_pause, store_set_memory_limit,
)
from rmemcached.sys.atomics cimport counter_add, relaxed_load

cdef enum:
    ADMIN_COMMANDS = 12
    DEBUG_COMMANDS = 2
    MAX_VERBOSITY_LEVEL = 2
    MEMLIMIT_MIN = 8             # megabytes
    MEMLIMIT_MAX = 1000000000

cdef struct admin_command:
    const char *name
    void (*process)(conn *c, const token *t, int n) noexcept nogil


cdef void process_flush_all_command(conn *c, const token *t, int n) noexcept nogil:
    cdef int32_t exptime = 0
    counter_add(&c.thread.stats.flush_cmds, 1)
    if not c.thread.flush_enabled:
        out_string(c, b"CLIENT_ERROR flush_all not allowed")
        return
    if n != (2 if c.noreply else 1) and not parse_i32(t[1].value, t[1].length, &exptime):
        out_string(c, BAD_EXPTIME)
        return
    store_flush_all(c.thread.store, exptime if exptime > 0 else 0)
    out_line(c, b"OK\r\n", 4)


cdef void process_verbosity_command(conn *c, const token *t, int n) noexcept nogil:
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef uint32_t level
    if n < 2 or not parse_u32(t[1].value, t[1].length, &level):
        out_string(c, BAD_FORMAT)
        return
    if hooks.set_verbosity != NULL:
        hooks.set_verbosity(hooks.arg, <int>level if level < MAX_VERBOSITY_LEVEL else MAX_VERBOSITY_LEVEL)
    out_line(c, b"OK\r\n", 4)


cdef void process_shutdown_command(conn *c, const token *t, int n) noexcept nogil:
    """shutdown [graceful]"""
    cdef const conn_hooks *hooks = c.thread.hooks
    if hooks.shutdown == NULL:
        out_string(c, b"SERVER_ERROR: shutdown not enabled")
    elif n > 2 or (n == 2 and not token_is(&t[1], b"graceful", 8)):
        out_string(c, b"CLIENT_ERROR invalid shutdown mode")
    else:
        conn_set_state(c, conn_closing)
        hooks.shutdown(hooks.arg, n == 2)


cdef void process_memlimit_command(conn *c, const token *t, int n) noexcept nogil:
    cdef uint32_t megabytes
    if n < 2 or not parse_u32(t[1].value, t[1].length, &megabytes):
        out_string(c, b"ERROR")
    elif megabytes < MEMLIMIT_MIN:
        out_string(c, b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m")
    elif megabytes > MEMLIMIT_MAX:
        out_string(c, b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes")
    elif not store_set_memory_limit(c.thread.store, <uint64_t>megabytes * 1024 * 1024):
        out_string(c, b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust")
    else:
        if relaxed_load(&c.thread.hooks.verbose) > 0:
            fprintf(stderr, b"maxbytes adjusted to %um\n", megabytes)
        out_line(c, b"OK\r\n", 4)


cdef void process_refresh_certs_command(conn *c, const token *t, int n) noexcept nogil:
    cdef const conn_hooks *hooks = c.thread.hooks
    cdef char *why
    cdef size_t length
    c.noreply = False
    if hooks.refresh_certs == NULL:
        out_string(c, b"Error TLS not enabled")
        return
    why = <char *>malloc(REFRESH_WHY_MAX + 2)
    if why == NULL:
        out_string(c, OUT_OF_MEMORY)
    elif hooks.refresh_certs(hooks.arg, why):
        free(why)
        out_line(c, b"OK\r\n", 4)
    else:
        length = strlen(why)
        memcpy(why + length, b"\r\n", 2)
        text_reply(c, why, length + 2)


cdef void process_debugtime_command(conn *c, const token *t, int n) noexcept nogil:
    """debugtime p|r|<seconds>: stops the store's clock, starts the clock again, or moves the clock."""
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


cdef void process_debugitem_command(conn *c, const token *t, int n) noexcept nogil:
    """debugitem lock|unlock|ref|unref <key>: takes and gives back item locks and references, across commands.

    `unref reffed` gives back the item of the worker's last ref, even if the key has another item by now.
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


cdef admin_command[ADMIN_COMMANDS] COMMANDS = [
    admin_command(b"flush_all", process_flush_all_command),
    admin_command(b"verbosity", process_verbosity_command),
    admin_command(b"lru_crawler", process_lru_crawler_command),
    admin_command(b"lru", process_lru_command),
    admin_command(b"shutdown", process_shutdown_command),
    admin_command(b"slabs", process_slabs_command),
    admin_command(b"cache_memlimit", process_memlimit_command),
    admin_command(b"watch", process_watch_command),
    admin_command(b"extstore", process_extstore_command),
    admin_command(b"refresh_certs", process_refresh_certs_command),
    # The last DEBUG_COMMANDS commands exist only with thread.debug_commands.
    admin_command(b"debugtime", process_debugtime_command),
    admin_command(b"debugitem", process_debugitem_command),
]


cdef bint process_admin_command(conn *c, const token *t, int n) noexcept nogil:
    cdef int i
    for i in range(ADMIN_COMMANDS if c.thread.debug_commands else ADMIN_COMMANDS - DEBUG_COMMANDS):
        if token_is(&t[0], COMMANDS[i].name, strlen(COMMANDS[i].name)):
            COMMANDS[i].process(c, t, n)
            return True
    return False
