# The commands `lru` and `lru_crawler`. Included by ascii.pyx. memcached: proto_text.c.
#
# As in memcached, a subcommand may be cut short ("lru_crawler c all") and noreply is not known here.

from libc cimport errno as c_errno
from libc.stdlib cimport strtod

from rmemcached.store.store cimport (
    lru_crawler_crawl, lru_crawler_disable, lru_crawler_enable, lru_crawler_set_sleep, lru_crawler_set_tocrawl,
    lru_set_segmented, lru_set_temp_ttl, lru_tune,
)


cdef bint parse_double(const token *t, double *out) noexcept nogil:
    """What strtod takes for a number, all of it."""
    cdef char text[32]
    cdef char *end
    if t.length >= sizeof(text):
        return False
    memcpy(text, t.value, t.length)
    text[t.length] = 0
    c_errno.errno = 0
    out[0] = strtod(text, &end)
    return c_errno.errno != c_errno.ERANGE and end != text and (end[0] == 0 or c'\t' <= end[0] <= c'\r')


cdef void process_lru_tune(conn *c, const token *t) noexcept nogil:
    """lru tune <percent hot> <percent warm> <max hot age factor> <max warm age factor>"""
    cdef uint32_t hot_pct, warm_pct
    cdef double hot_factor, warm_factor
    if not parse_u32(t[2].value, t[2].length, &hot_pct) or not parse_u32(t[3].value, t[3].length, &warm_pct) \
            or not parse_double(&t[4], &hot_factor) or not parse_double(&t[5], &warm_factor):
        out_string(c, b"ERROR")
    elif <uint64_t>hot_pct + warm_pct > 80:
        out_string(c, b"ERROR hot and warm pcts must not exceed 80")
    elif not (warm_factor > 0 and hot_factor > 0):
        out_string(c, b"ERROR hot/warm age factors must be greater than 0")
    else:
        lru_tune(c.thread.store, hot_pct, warm_pct, hot_factor, warm_factor)
        out_string(c, b"OK")


cdef void process_lru_command(conn *c, const token *t, int n) noexcept nogil:
    """lru tune ... | mode flat|segmented | temp_ttl <seconds; negative: no TEMP queue>"""
    cdef store *s = c.thread.store
    cdef bint maintainer = store_get_config(s).lru_maintainer
    cdef int32_t ttl
    c.noreply = False
    if n >= 6 and begins(&t[1], b"tune", 4):
        process_lru_tune(c, t)
        return
    if n >= 3 and maintainer and begins(&t[1], b"mode", 4):
        if begins(&t[2], b"flat", 4):
            lru_set_segmented(s, False)
            out_string(c, b"OK")
            return
        if begins(&t[2], b"segmented", 9):
            lru_set_segmented(s, True)
            out_string(c, b"OK")
            return
    elif n >= 3 and maintainer and begins(&t[1], b"temp_ttl", 8) and parse_i32(t[2].value, t[2].length, &ttl):
        lru_set_temp_ttl(s, ttl)
        out_string(c, b"OK")
        return
    out_string(c, b"ERROR")


cdef void process_lru_crawler_switch(conn *c, const token *word) noexcept nogil:
    """lru_crawler enable | disable"""
    if begins(word, b"enable", 6):
        if lru_crawler_enable(c.thread.store):
            out_string(c, b"OK")
        else:
            out_string(c, b"ERROR failed to start lru crawler thread")
    elif begins(word, b"disable", 7):
        lru_crawler_disable(c.thread.store)
        out_string(c, b"OK")
    else:
        out_string(c, b"ERROR")


cdef void process_lru_crawler_command(conn *c, const token *t, int n) noexcept nogil:
    """lru_crawler crawl <classes|all> | metadump|mgdump ... | tocrawl <items; 0: all> | sleep <microseconds> |
    enable | disable"""
    cdef store *s = c.thread.store
    cdef uint32_t value
    cdef crawler_result_type result
    c.noreply = False
    if n == 2:
        process_lru_crawler_switch(c, &t[1])
    elif n != 3:
        out_string(c, b"ERROR")
    elif begins(&t[1], b"crawl", 5):
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
    elif begins(&t[1], b"tocrawl", 7):
        if parse_u32(t[2].value, t[2].length, &value):
            lru_crawler_set_tocrawl(s, value)
            out_string(c, b"OK")
        else:
            out_string(c, BAD_FORMAT)
    elif begins(&t[1], b"sleep", 5):
        if not parse_u32(t[2].value, t[2].length, &value):
            out_string(c, BAD_FORMAT)
        elif value > 1000000:
            out_string(c, b"CLIENT_ERROR sleep must be one second or less")
        else:
            lru_crawler_set_sleep(s, value)
            out_string(c, b"OK")
    else:
        out_string(c, b"ERROR")
