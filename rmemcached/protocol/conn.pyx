"""Connections: their beginning and end, the release of replies, and input and output for engines (see conn.pxd)."""

from libc.stdint cimport int64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free
from libc.string cimport memset

from rmemcached.store.store cimport ITEM_CHUNKED, ITEM_data, ITEM_has, item_iov, item_remove, store_time
from rmemcached.sys.atomics cimport fetch_sub, prefetch
from rmemcached.sys.debug cimport LIVE_CONN, LIVE_RESPONSE, assert_owner, assert_that, live_add, live_sub
from rmemcached.sys.linux cimport snprintf

cdef enum:
    MAX_FREE_RESPS = 4096    # spare mc_resps of a thread, for the next replies


# ---- beginning and end -----------------------------------------------------------------------------------------------

cdef void conn_init(conn *c, conn_thread *thread, const conn_engine *engine) noexcept nogil:
    assert_owner(thread.owner)
    live_add(LIVE_CONN)
    memset(c, 0, sizeof(conn))
    c.thread = thread
    c.engine = engine
    c.state = conn_new_cmd
    c.protocol = thread.binding_protocol
    if thread.hooks.authenticate != NULL or thread.hooks.sasl != NULL:
        c.auth_state = AUTH_WANTED
    c.last_cmd_time = store_time(thread.store)


cdef void conn_release(conn *c) noexcept nogil:
    if c.state == conn_closed:
        return
    assert_owner(c.thread.owner)
    live_sub(LIVE_CONN)
    if c.sasl != NULL:
        c.thread.hooks.sasl.end(c.thread.hooks.sasl.arg, c.sasl)
        c.sasl = NULL
    if c.item != NULL:
        item_remove(c.thread.store, c.item)
        c.item = NULL
    c.rlbytes = 0
    c.mget = 0
    while c.resp_head != NULL:
        resp_finish(c, c.resp_head)
    assert_that(c.npending == 0)
    assert_that(c.pending_bytes == 0)
    assert_that(c.waiting_bytes == 0)
    assert_that(c.external_bytes == 0)
    c.state = conn_closed


cdef void conn_authenticated(conn *c) noexcept nogil:
    c.auth_state = AUTH_DONE
    if c.negotiated:
        c.negotiated = False
        c.protocol = negotiating_prot


cdef void conn_thread_release(conn_thread *t) noexcept nogil:
    cdef mc_resp *resp
    assert_owner(t.owner)
    assert_that(t.stats.response_obj_count == 0)
    while t.free_resps != NULL:
        resp = t.free_resps
        t.free_resps = resp.next
        counter_add(&t.stats.response_obj_bytes, -<int64_t>sizeof(mc_resp))
        free(resp)
    t.nfree_resps = 0


cdef bint conn_memory(conn_thread *t, size_t more) noexcept nogil:
    return t.mem_limit == 0 or t.stats.response_obj_bytes + t.stats.read_buf_bytes + more <= t.mem_limit


cdef const char *conn_state_name(conn_states state) noexcept nogil:
    if state == conn_new_cmd:
        return b"conn_new_cmd"
    if state == conn_waiting:
        return b"conn_waiting"
    if state == conn_read or state == conn_read_keys:
        return b"conn_read"
    if state == conn_parse_cmd or state == conn_resume:
        return b"conn_parse_cmd"
    if state == conn_nread:
        return b"conn_nread"
    if state == conn_rdma_read:
        return b"conn_rdma_read"
    if state == conn_swallow:
        return b"conn_swallow"
    if state == conn_mwrite:
        return b"conn_mwrite"
    if state == conn_watch:
        return b"conn_watch"
    if state == conn_auth:
        return b"conn_auth"
    if state == conn_closing:
        return b"conn_closing"
    return b"conn_closed"


cdef const char *conn_name(const conn *c, char *out) noexcept nogil:
    if c.lane:
        snprintf(out, CONN_NAME, b"%d.%u", c.sfd, <unsigned int>c.lane)
    else:
        snprintf(out, CONN_NAME, b"%d", c.sfd)
    return out


cdef void conn_log(const conn *c, const char *mark, const char *text, size_t length) noexcept nogil:
    cdef char name[CONN_NAME]
    while length and (text[length - 1] == c'\n' or text[length - 1] == c'\r'):
        length -= 1
    fprintf(stderr, b"%s%s %.*s\n", mark, conn_name(c, name), <int>length, text)


# ---- releasing replies -----------------------------------------------------------------------------------------------

cdef void resp_free(conn *c, mc_resp *resp) noexcept nogil:
    cdef conn_thread *t = c.thread
    assert_owner(t.owner)
    live_sub(LIVE_RESPONSE)
    if resp_waits(resp):
        c.waiting_bytes -= resp.data_length
        resp.wait.calls.abandon(resp.wait)
    else:
        c.pending_bytes -= resp.data_length
    if resp.wait != NULL:
        resp.wait.resp = NULL
    if resp.item != NULL:
        item_remove(t.store, resp.item)
    if resp.owned != NULL:
        c.pending_bytes -= resp.wbytes
        free(resp.owned)
    if resp.external_bytes:
        c.external_bytes -= resp.external_bytes
        fetch_sub(t.external.held, resp.external_bytes)
    c.npending -= 1
    counter_add(&t.stats.response_obj_count, -1)
    if t.nfree_resps < MAX_FREE_RESPS:
        resp.next = t.free_resps
        t.free_resps = resp
        t.nfree_resps += 1
    else:
        free(resp)
        counter_add(&t.stats.response_obj_bytes, -<int64_t>sizeof(mc_resp))


cdef void resp_finish(conn *c, mc_resp *resp) noexcept nogil:
    c.resp_head = resp.next
    if c.resp == resp:
        c.resp = NULL
    else:
        # A long reply has driven the next reply's item out of the processor's cache: bring the item back early.
        prefetch(resp.next.item)
    resp_free(c, resp)


# ---- replies that wait -----------------------------------------------------------------------------------------------

cdef void resp_missed(conn *c, mc_resp *resp) noexcept nogil:
    assert_owner(c.thread.owner)
    assert_that(resp.sent == 0)
    c.pending_bytes -= resp.data_length
    resp.data_length = 0
    resp.sink.set = False
    if resp.missed == NULL:
        resp.wbytes = 0
    else:
        resp.missed(resp)
    resp.tosend = resp.wbytes + resp.tail_bytes


cdef void conn_complete(resp_wait *results) noexcept nogil:
    cdef resp_wait *wait = results
    cdef resp_wait *following
    while wait != NULL:
        assert_owner(wait.thread.owner)
        wait.done = True
        if wait.resp != NULL:
            wait.c.waiting_bytes -= wait.resp.data_length
            wait.c.pending_bytes += wait.resp.data_length
        wait.calls.complete(wait)
        wait = wait.next
    # All replies are whole now: so each connection sends as many as possible at once. A connection may end meanwhile,
    # and a sent reply has left its wait.
    wait = results
    while wait != NULL:
        following = wait.next
        if wait.resp != NULL and wait.c.resp_head == wait.resp:
            wait.c.engine.resume_reply(wait.c)
        wait = following
    wait = results
    while wait != NULL:
        following = wait.next
        if wait.resp != NULL:
            wait.resp.wait = NULL
        wait.calls.end(wait)
        wait = following


# ---- output and payloads, for engines --------------------------------------------------------------------------------

cdef struct gathered:
    iovec *iov
    int count
    int max_iov
    size_t max_bytes         # less the bytes described already


cdef inline bint gather_bytes(gathered *g, const char *p, size_t n) noexcept nogil:
    """Adds an extent for n bytes, or for as many as the limits allow. False: the limits do not allow all."""
    if g.count == g.max_iov or g.max_bytes == 0:
        return False
    g.iov[g.count].iov_base = <void *>p
    g.iov[g.count].iov_len = min(n, g.max_bytes)
    g.max_bytes -= g.iov[g.count].iov_len
    n -= g.iov[g.count].iov_len
    g.count += 1
    return n == 0


cdef inline bint gather_item(gathered *g, item *it, size_t offset, size_t n) noexcept nogil:
    """Adds data of an item, as gather_bytes does for other bytes."""
    cdef int i, extents
    if not ITEM_has(it, ITEM_CHUNKED):
        return gather_bytes(g, ITEM_data(it) + offset, n)
    if g.max_bytes == 0:
        return False
    extents = item_iov(it, offset, min(n, g.max_bytes), g.iov + g.count, g.max_iov - g.count)
    for i in range(g.count, g.count + extents):
        g.max_bytes -= g.iov[i].iov_len
        n -= g.iov[i].iov_len
    g.count += extents
    return n == 0


cdef int conn_gather(conn *c, iovec *iov, int max_iov, size_t max_bytes) noexcept nogil:
    cdef mc_resp *resp = c.resp_head
    cdef const char *text
    cdef size_t offset       # in the present part of the reply
    cdef gathered g
    assert_owner(c.thread.owner)
    assert_that(c.state != conn_watch)
    g.iov = iov
    g.count = 0
    g.max_iov = max_iov
    g.max_bytes = max_bytes
    while resp != NULL and not resp.sink.set and not resp_waits(resp):
        assert_that(resp.sent + resp.tosend == resp.wbytes + resp.data_length + resp.tail_bytes)
        offset = resp.sent
        if offset < resp.wbytes:
            text = resp.owned if resp.owned != NULL else &resp.wbuf[0]
            if not gather_bytes(&g, text + offset, resp.wbytes - offset):
                break
            offset = 0
        else:
            offset -= resp.wbytes
        if offset < resp.data_length:
            if not gather_item(&g, resp.item, resp.data_offset + offset, resp.data_length - offset):
                break
            offset = 0
        else:
            offset -= resp.data_length
        if offset < resp.tail_bytes and not gather_bytes(&g, resp.tail + offset, resp.tail_bytes - offset):
            break
        resp = resp.next
    return g.count


cdef void conn_sent(conn *c, size_t n) noexcept nogil:
    cdef mc_resp *resp = c.resp_head
    assert_owner(c.thread.owner)
    # A reply that has become a miss may be empty, and leaves by itself.
    while n or (resp != NULL and resp.tosend == 0 and not resp_waits(resp)):
        assert_that(resp != NULL)
        if n < resp.tosend:
            resp.tosend -= <uint32_t>n
            resp.sent += <uint32_t>n
            return
        n -= resp.tosend
        resp_finish(c, resp)
        resp = c.resp_head


cdef mc_resp *conn_next_write(conn *c) noexcept nogil:
    assert_owner(c.thread.owner)
    if c.resp_head != NULL and c.resp_head.sink.set and not resp_waits(c.resp_head):
        return c.resp_head
    return NULL


cdef item *conn_write_posted(conn *c) noexcept nogil:
    cdef mc_resp *resp = c.resp_head
    cdef item *it = resp.item
    assert_owner(c.thread.owner)
    assert_that(resp.sink.set)
    resp.item = NULL
    resp.sink.set = False
    c.pending_bytes -= resp.data_length
    resp.data_length = 0
    return it


cdef int conn_payload_iov(conn *c, iovec *iov, int max_iov) noexcept nogil:
    assert_owner(c.thread.owner)
    assert_that(c.item != NULL)
    assert_that(c.rlbytes != 0)
    assert_that(c.roffset + c.rlbytes <= <size_t>c.item.nbytes)
    if ITEM_has(c.item, ITEM_CHUNKED):
        return item_iov(c.item, c.roffset, c.rlbytes, iov, max_iov)
    iov[0].iov_base = ITEM_data(c.item) + c.roffset
    iov[0].iov_len = c.rlbytes
    return 1


cdef int conn_payload_piece(conn *c, size_t skip, size_t most, iovec *iov, int max_iov) noexcept nogil:
    assert_owner(c.thread.owner)
    assert_that(c.item != NULL)
    assert_that(skip < c.rlbytes)
    assert_that(c.roffset + c.rlbytes <= <size_t>c.item.nbytes)
    return item_iov(c.item, c.roffset + skip, min(c.rlbytes - skip, most), iov, max_iov)


cdef void conn_payload_received(conn *c, size_t n) noexcept nogil:
    assert_owner(c.thread.owner)
    assert_that(c.item != NULL)
    assert_that(n <= c.rlbytes)
    c.roffset += n
    c.rlbytes -= n
