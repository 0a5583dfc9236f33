"""lru and lru_crawler (see admin_lru.pxd)."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from rmemcached.protocol.admin_watch cimport require_lendable
from rmemcached.protocol.conn cimport conn_set_state, conn_watch
from rmemcached.protocol.dump cimport DUMP_META, DUMP_MG, dump_kind
from rmemcached.protocol.parse cimport abbreviates, parse_double, parse_i32, parse_u32
from rmemcached.protocol.reply cimport BAD_FORMAT, out_string
from rmemcached.store.store cimport (
    CRAWLER_BADCLASS, CRAWLER_NOTSTARTED, CRAWLER_OK, CRAWLER_RUNNING, crawler_result_type, lru_crawler_crawl,
    lru_crawler_disable, lru_crawler_enable, lru_crawler_set_sleep, lru_crawler_set_tocrawl, lru_set_segmented,
    lru_set_temp_ttl, lru_tune, store, store_get_config,
)
from rmemcached.sys.atomics cimport relaxed_load

cdef void process_lru_tune(conn *c, const token *t) noexcept nogil:
    """lru tune <percent hot> <percent warm> <max hot age factor> <max warm age factor>"""
    cdef uint32_t hot_pct, warm_pct
    cdef double hot_factor, warm_factor
    if (not parse_u32(t[2].value, t[2].length, &hot_pct) or not parse_u32(t[3].value, t[3].length, &warm_pct)
            or not parse_double(t[4].value, t[4].length, &hot_factor)
            or not parse_double(t[5].value, t[5].length, &warm_factor)):
        out_string(c, b"ERROR")
    elif <uint64_t>hot_pct + warm_pct > 80:
        out_string(c, b"ERROR hot and warm pcts must not exceed 80")
    elif not (warm_factor > 0 and hot_factor > 0):
        out_string(c, b"ERROR hot/warm age factors must be greater than 0")
    else:
        lru_tune(c.thread.store, hot_pct, warm_pct, hot_factor, warm_factor)
        out_string(c, b"OK")


cdef void process_lru_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef bint maintainer = store_get_config(s).lru_maintainer
    cdef int32_t ttl = 0
    c.noreply = False
    if n >= 6 and abbreviates(&t[1], b"tune"):
        process_lru_tune(c, t)
        return
    if n >= 3 and store_get_config(s).s3fifo and abbreviates(&t[1], b"mode"):
        out_string(c, b"ERROR lru_algorithm is s3fifo, which has no modes")
        return
    if n >= 3 and maintainer and abbreviates(&t[1], b"mode"):
        if abbreviates(&t[2], b"flat"):
            lru_set_segmented(s, False)
            out_string(c, b"OK")
            return
        if abbreviates(&t[2], b"segmented"):
            lru_set_segmented(s, True)
            out_string(c, b"OK")
            return
    elif n >= 3 and maintainer and abbreviates(&t[1], b"temp_ttl") and parse_i32(t[2].value, t[2].length, &ttl):
        lru_set_temp_ttl(s, ttl)
        out_string(c, b"OK")
        return
    out_string(c, b"ERROR")


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
    """lru_crawler metadump|mgdump <classes|all|hash>. False: another subcommand."""
    cdef dump_kind kind
    cdef crawler_result_type result
    if abbreviates(&t[1], b"metadump"):
        kind = DUMP_META
    elif abbreviates(&t[1], b"mgdump"):
        kind = DUMP_MG
    else:
        return False
    if not relaxed_load(&store_get_config(c.thread.store).lru_crawler):
        out_string(c, b"CLIENT_ERROR lru crawler disabled")
    elif not c.thread.dump_enabled:
        out_string(c, b"ERROR metadump not allowed" if kind == DUMP_META else b"ERROR key dump not allowed")
    elif require_lendable(c, b"ERROR cannot pipeline other commands before metadump" if kind == DUMP_META
                          else b"ERROR cannot pipeline other commands before mgdump"):
        conn_set_state(c, conn_watch)
        result = c.engine.dump(c, kind, t[2].value, t[2].length)
        if result != CRAWLER_OK:
            crawler_refused(c, result)
    return True


cdef void process_lru_crawler_switch(conn *c, const token *word) noexcept nogil:
    """lru_crawler enable | disable"""
    if abbreviates(word, b"enable"):
        if lru_crawler_enable(c.thread.store):
            out_string(c, b"OK")
        else:
            out_string(c, b"ERROR failed to start lru crawler thread")
    elif abbreviates(word, b"disable"):
        lru_crawler_disable(c.thread.store)
        out_string(c, b"OK")
    else:
        out_string(c, b"ERROR")


cdef void process_lru_crawler_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef uint32_t value
    cdef crawler_result_type result
    c.noreply = False
    if n == 2:
        process_lru_crawler_switch(c, &t[1])
    elif n != 3:
        out_string(c, b"ERROR")
    elif abbreviates(&t[1], b"crawl"):
        if relaxed_load(&store_get_config(s).lru_crawler):
            result = lru_crawler_crawl(s, t[2].value, t[2].length)
            if result == CRAWLER_OK:
                out_string(c, b"OK")
            else:
                crawler_refused(c, result)
        else:
            out_string(c, b"CLIENT_ERROR lru crawler disabled")
    elif process_dump_command(c, t):
        return
    elif abbreviates(&t[1], b"tocrawl"):
        if parse_u32(t[2].value, t[2].length, &value):
            lru_crawler_set_tocrawl(s, value)
            out_string(c, b"OK")
        else:
            out_string(c, BAD_FORMAT)
    elif abbreviates(&t[1], b"sleep"):
        if not parse_u32(t[2].value, t[2].length, &value):
            out_string(c, BAD_FORMAT)
        elif value > 1000000:
            out_string(c, b"CLIENT_ERROR sleep must be one second or less")
        else:
            lru_crawler_set_sleep(s, value)
            out_string(c, b"OK")
    else:
        out_string(c, b"ERROR")
