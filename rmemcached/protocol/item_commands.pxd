"""Steps common to commands on items in all protocols: look up, store, count, put a value into a reply.

Called by the modules of commands on items, such as `ascii`, `meta` and `binary`. Calls `reply` and the store. No
function here answers the client.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy

from rmemcached.logger cimport (
    LOG_DELETIONS, LOG_MUTATIONS, log_delete_cmd, log_deletion, log_item, log_item_store, log_wants,
)
from rmemcached.protocol.conn cimport (
    EXTERNAL_NO_MEMORY, EXTERNAL_THERE, EXTERNAL_WAITS, WRITE_BUFFER_SIZE, conn, conn_closing, conn_nread,
    conn_set_state, conn_swallow, external_result, mc_resp, missed_fn, remote_buf, resp_missed, thread_stats,
)
from rmemcached.protocol.reply cimport resp_add
from rmemcached.protocol.stats_prefix cimport stats_prefix_record_get
from rmemcached.store.store cimport (
    EXISTS, ITEM_CHUNKED, ITEM_HDR, NO_MEMORY, NOT_FOUND, REALTIME_MAXDELTA, STORED, TOO_LARGE, ITEM_clsid, ITEM_data,
    ITEM_has, ITEM_key, ITEM_queue, item, item_get, item_get_ahead, item_remove, item_size_ok, item_touch, item_unlink,
    key_ahead, realtime, rel_time_t, store, store_item_type, store_op,
)
from rmemcached.sys.atomics cimport counter_add, fetch_add, relaxed_load
from rmemcached.sys.debug cimport assert_that

cdef enum:
    RESP_COPY_MAX = 256      # values of up to so many bytes are copied behind their header, longer values referenced
    REFCOUNT_LIMIT = 60000   # an item with so many references is not handed out again: refcount has 16 bits

# ---- looking up ------------------------------------------------------------------------------------------------------

cdef inline rel_time_t expiry(store *s, int32_t exptime) noexcept nogil:
    """The store's time for an exptime of the text protocol; a negative time has passed already."""
    return realtime(s, exptime if exptime >= 0 else <int32_t>REALTIME_MAXDELTA + 1)

cdef inline bint overused(item *it) noexcept nogil:
    """Whether the item has too many references for another reference."""
    return relaxed_load(&it.refcount) > REFCOUNT_LIMIT

cdef inline item *fetch_item(conn *c, const char *key, size_t nkey, bint touch, rel_time_t exptime,
                             const key_ahead *ahead) noexcept nogil:
    """Gets the item of a key, with a reference; `touch` gives the item the expiry time exptime. NULL: no item. Counts
    the command as a hit or a miss. ahead: the key as prepared by items_ahead, or NULL."""
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef item *it
    if touch:
        it = item_touch(s, key, nkey, exptime)
        counter_add(&stats.touch_cmds, 1)
    else:
        it = item_get_ahead(s, ahead, True) if ahead != NULL else item_get(s, key, nkey, True)
        counter_add(&stats.get_cmds, 1)
    if it != NULL:
        if not overused(it):
            stats_prefix_record_get(c.thread.prefixes, key, nkey, True)
            if touch:
                counter_add(&stats.slab[ITEM_clsid(it)].touch_hits, 1)
            else:
                counter_add(&stats.lru_hits[ITEM_queue(it)], 1)
            return it
        item_remove(s, it)
    stats_prefix_record_get(c.thread.prefixes, key, nkey, False)
    counter_add(&stats.touch_misses if touch else &stats.get_misses, 1)
    return NULL

# ---- a value in a reply ----------------------------------------------------------------------------------------------

cdef inline bint fits_copy(item *it, size_t n, size_t room) noexcept nogil:
    """Whether the first n bytes of the item's data are few enough to be copied behind `room` bytes of text."""
    return n <= RESP_COPY_MAX and room + n <= WRITE_BUFFER_SIZE and not ITEM_has(it, ITEM_CHUNKED | ITEM_HDR)

cdef inline void resp_value(conn *c, mc_resp *resp, char *p, item *it, uint32_t n, bint copy) noexcept nogil:
    """Ends the text of resp at p and appends the first n bytes of the item's data, copied or by reference. Takes
    over the caller's reference to the item."""
    if copy:
        memcpy(p, ITEM_data(it), n)
        resp_add(resp, p + n)
        item_remove(c.thread.store, it)
        return
    resp_add(resp, p)
    resp.item = it
    resp.data_offset = 0
    resp.data_length = n
    resp.tosend += n
    c.pending_bytes += n

cdef inline bint resp_external(conn *c, mc_resp *resp, char *p, item *it, uint32_t n, const remote_buf *sink,
                               missed_fn missed) noexcept nogil:
    """Ends the text of resp at p, and has the value of a header (ITEM_HDR) fetched: n bytes of the value follow the
    text, or go to the sink (may be NULL). resp contains nothing else. missed: mc_resp.missed. Takes over the caller's
    reference to the item. False: there is no memory for the value. Then, and when the value is gone, the reply is a
    miss."""
    cdef external_result result
    resp_add(resp, p)
    resp.missed = missed
    resp.data_offset = 0
    resp.data_length = n
    if sink != NULL:
        resp.sink = sink[0]
    else:
        resp.tosend += n
    c.pending_bytes += n
    counter_add(&c.thread.stats.get_extstore, 1)
    result = c.thread.external.fetch(c.thread.external.arg, c, resp, it)
    if result == EXTERNAL_WAITS or result == EXTERNAL_THERE:
        resp.external_bytes = n
        c.external_bytes += n
        fetch_add(c.thread.external.held, n)
        if result == EXTERNAL_WAITS:
            c.pending_bytes -= n
            c.waiting_bytes += n
        return True
    resp_missed(c, resp)
    counter_add(&c.thread.stats.get_oom_extstore, result == EXTERNAL_NO_MEMORY)
    return result != EXTERNAL_NO_MEMORY

# ---- storing ---------------------------------------------------------------------------------------------------------

cdef inline const char *alloc_error(conn *c, store_op op, const char *key, size_t nkey, uint32_t flags, size_t nbytes,
                                    bint drop_old) noexcept nogil:
    """Counts a failed item_alloc of a text command, and returns the error line. drop_old: unlinks the key's present
    item, which is older than the client's new value."""
    cdef bint fits = item_size_ok(c.thread.store, nkey, flags, nbytes)
    cdef log_item logged
    if log_wants(c.thread.log, LOG_MUTATIONS):
        logged = log_item(key, nkey, 0, 0)
        log_item_store(c.thread.log, NO_MEMORY if fits else TOO_LARGE, op, &logged, 0)
    if drop_old:
        item_unlink(c.thread.store, key, nkey)
    if fits:
        counter_add(&c.thread.stats.store_no_memory, 1)
        return b"SERVER_ERROR out of memory storing object"
    counter_add(&c.thread.stats.store_too_large, 1)
    return b"SERVER_ERROR object too large for cache"

cdef inline void expect_payload(conn *c, item *it, size_t n, store_op op) noexcept nogil:
    """Makes the machine receive the next n bytes of input as the item's data. Then complete_nread_ascii or
    complete_nread_binary stores the item. The connection takes over the caller's reference."""
    assert_that(c.item == NULL)
    c.item = it
    c.rlbytes = n
    c.roffset = 0
    c.cas = 0
    c.cmd = op
    c.set_stale = False
    c.mset_res = False
    conn_set_state(c, conn_nread)

cdef inline void swallow(conn *c, size_t n) noexcept nogil:
    """Makes the machine discard n bytes of input behind a command answered with an error."""
    c.sbytes = n
    if c.state != conn_closing:
        conn_set_state(c, conn_swallow)

# ---- counting --------------------------------------------------------------------------------------------------------

cdef inline void count_cas(conn *c, const item *it, store_item_type result) noexcept nogil:
    """Counts a store with a CAS value by its result. `it` is the new item."""
    cdef thread_stats *stats = &c.thread.stats
    if result == STORED:
        counter_add(&stats.slab[ITEM_clsid(it)].cas_hits, 1)
    elif result == EXISTS:
        counter_add(&stats.slab[ITEM_clsid(it)].cas_badval, 1)
    elif result == NOT_FOUND:
        counter_add(&stats.cas_misses, 1)

cdef inline void count_delta(conn *c, const item *it, bint incr) noexcept nogil:
    """Counts an increment or decrement. `it` is NULL if the key has no item."""
    cdef thread_stats *stats = &c.thread.stats
    if it == NULL:
        counter_add(&stats.incr_misses if incr else &stats.decr_misses, 1)
    elif incr:
        counter_add(&stats.slab[ITEM_clsid(it)].incr_hits, 1)
    else:
        counter_add(&stats.slab[ITEM_clsid(it)].decr_hits, 1)

cdef inline void log_deleted(conn *c, item *it, log_delete_cmd cmd) noexcept nogil:
    """Tells watchers of an item's deletion."""
    cdef log_item logged
    if log_wants(c.thread.log, LOG_DELETIONS):
        logged = log_item(ITEM_key(it), it.nkey, it.nbytes, ITEM_clsid(it))
        log_deletion(c.thread.log, cmd, &logged)
