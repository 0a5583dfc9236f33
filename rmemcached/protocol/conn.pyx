"""Connections: their life, the release of replies, and what engines do with input and output (see conn.pxd)."""

from libc.stdint cimport int64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free
from libc.string cimport memset

from rmemcached.store.store cimport ITEM_CHUNKED, ITEM_data, ITEM_has, item_iov, item_remove, store_time
from rmemcached.sys.debug cimport LIVE_CONN, assert_owner, live_add, live_sub


# ---- life ------------------------------------------------------------------------------------------------------------

cdef void conn_init(conn *c, conn_thread *thread, const conn_engine *engine) noexcept nogil:
    """Prepares a connection. eager is 0; an engine that moves payloads by itself sets it."""
    assert_owner(thread.owner)
    live_add(LIVE_CONN)
    memset(c, 0, sizeof(conn))
    c.thread = thread
    c.engine = engine
    c.state = conn_new_cmd
    c.protocol = thread.binding_protocol
    c.last_cmd_time = store_time(thread.store)


cdef void conn_release(conn *c) noexcept nogil:
    """Ends the connection and gives back all that it holds: the waiting replies, and the item whose payload has not
    arrived whole; what the key had stays. The engine has made sure that nothing is written into or read from them any
    more."""
    assert_owner(c.thread.owner)
    if c.state != conn_closed:
        live_sub(LIVE_CONN)
    if c.item != NULL:
        item_remove(c.thread.store, c.item)
        c.item = NULL
    c.rlbytes = 0
    while c.resp_head != NULL:
        resp_finish(c, c.resp_head)
    c.state = conn_closed


cdef void conn_thread_release(conn_thread *t) noexcept nogil:
    """Frees the thread's spare mc_resps. Its connections have been released."""
    cdef mc_resp *resp
    while t.free_resps != NULL:
        resp = t.free_resps
        t.free_resps = resp.next
        counter_add(&t.stats.response_obj_bytes, -<int64_t>sizeof(mc_resp))
        free(resp)
    t.nfree_resps = 0


cdef const char *conn_state_name(conn_states state) noexcept nogil:
    if state == conn_new_cmd:
        return b"conn_new_cmd"
    if state == conn_waiting:
        return b"conn_waiting"
    if state == conn_read:
        return b"conn_read"
    if state == conn_parse_cmd:
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
    if state == conn_closing:
        return b"conn_closing"
    return b"conn_closed"


# ---- replies ---------------------------------------------------------------------------------------------------------

cdef bint conn_memory(conn_thread *t, size_t more) noexcept nogil:
    """Whether the thread's share of read_buf_mem_limit has room for so many bytes."""
    return t.mem_limit == 0 or t.stats.response_obj_bytes + t.stats.read_buf_bytes + more <= t.mem_limit


cdef void resp_free(conn *c, mc_resp *resp) noexcept nogil:
    """Releases what the reply refers to and the reply; it is not in the list any more."""
    cdef conn_thread *t = c.thread
    c.pending_bytes -= resp.data_length
    if resp.item != NULL:
        item_remove(t.store, resp.item)
    if resp.owned != NULL:
        c.pending_bytes -= resp.wbytes
        free(resp.owned)
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
    """Removes the oldest reply."""
    c.resp_head = resp.next
    if c.resp == resp:
        c.resp = NULL
    resp_free(c, resp)


cdef void conn_log(const conn *c, const char *mark, const char *text, size_t length) noexcept nogil:
    while length and (text[length - 1] == c'\n' or text[length - 1] == c'\r'):
        length -= 1
    fprintf(stderr, b"%s%d %.*s\n", mark, c.sfd, <int>length, text)


# ---- for the engine --------------------------------------------------------------------------------------------------

cdef int conn_gather(conn *c, iovec *iov, int max_iov, size_t max_bytes) noexcept nogil:
    """Describes waiting output from its beginning: at most max_iov extents of together at most max_bytes bytes. Returns
    the number of extents. They stay valid until conn_sent accounts for them. Output behind a value that is first to be
    written to its sink (conn_next_write) is not included."""
    cdef mc_resp *resp = c.resp_head
    cdef size_t offset, n
    cdef int count = 0
    cdef int i, extents
    while resp != NULL and not resp.sink.set:
        offset = resp.sent
        if offset < resp.wbytes:
            if count == max_iov or max_bytes == 0:
                break
            n = resp.wbytes - offset
            if n > max_bytes:
                n = max_bytes
            iov[count].iov_base = (resp.owned if resp.owned != NULL else &resp.wbuf[0]) + offset
            iov[count].iov_len = n
            count += 1
            max_bytes -= n
            offset = 0
        else:
            offset -= resp.wbytes
        if resp.data_length:
            if offset < resp.data_length:
                if count == max_iov or max_bytes == 0:
                    break
                n = resp.data_length - offset
                if n > max_bytes:
                    n = max_bytes
                if ITEM_has(resp.item, ITEM_CHUNKED):
                    extents = item_iov(resp.item, resp.data_offset + offset, n, iov + count, max_iov - count)
                    for i in range(count, count + extents):
                        max_bytes -= iov[i].iov_len
                        n -= iov[i].iov_len
                    count += extents
                    if n:
                        break
                else:
                    iov[count].iov_base = ITEM_data(resp.item) + resp.data_offset + offset
                    iov[count].iov_len = n
                    count += 1
                    max_bytes -= n
                offset = 0
            else:
                offset -= resp.data_length
        if offset < resp.tail_bytes:
            if count == max_iov or max_bytes == 0:
                break
            n = resp.tail_bytes - offset
            if n > max_bytes:
                n = max_bytes
            iov[count].iov_base = <char *>resp.tail + offset
            iov[count].iov_len = n
            count += 1
            max_bytes -= n
        resp = resp.next
    return count


cdef void conn_sent(conn *c, size_t n) noexcept nogil:
    """The first n bytes of what conn_gather described have left: releases the replies that are through."""
    cdef mc_resp *resp
    while n:
        resp = c.resp_head
        if n < resp.tosend:
            resp.tosend -= <uint32_t>n
            resp.sent += <uint32_t>n
            return
        n -= resp.tosend
        resp_finish(c, resp)


cdef mc_resp *conn_next_write(conn *c) noexcept nogil:
    """The reply at the head of the output if its value must be written to its sink before its line leaves, else NULL.
    item, data_offset, data_length and sink say what goes where; the write must be followed by conn_write_posted."""
    if c.resp_head != NULL and c.resp_head.sink.set:
        return c.resp_head
    return NULL


cdef item *conn_write_posted(conn *c) noexcept nogil:
    """Marks the value that conn_next_write returned as written, so that its line can be gathered. The reference to the
    item is the caller's now, who gives it back with item_remove when the write is complete."""
    cdef mc_resp *resp = c.resp_head
    cdef item *it = resp.item
    resp.item = NULL
    resp.sink.set = False
    c.pending_bytes -= resp.data_length
    resp.data_length = 0
    return it


cdef int conn_payload_iov(conn *c, iovec *iov, int max_iov) noexcept nogil:
    """Describes where the missing rlbytes of the payload go (WANT_PAYLOAD, WANT_REMOTE_PAYLOAD); the extents may end
    early for want of entries. Returns their number."""
    if ITEM_has(c.item, ITEM_CHUNKED):
        return item_iov(c.item, c.roffset, c.rlbytes, iov, max_iov)
    iov[0].iov_base = ITEM_data(c.item) + c.roffset
    iov[0].iov_len = c.rlbytes
    return 1


cdef void conn_payload_received(conn *c, size_t n) noexcept nogil:
    """n more bytes of the payload are in place. The machine goes on when rlbytes is 0."""
    c.roffset += n
    c.rlbytes -= n
