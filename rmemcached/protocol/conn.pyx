"""Replies in order: filling them, handing their bytes to an engine, releasing what they held."""

from libc.stdint cimport INT32_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset, strlen

from rmemcached.store.store cimport ITEM_CHUNKED, ITEM_data, ITEM_has, item_iov, item_remove, store_time

from rmemcached.protocol.parse cimport U64_TEXT, itoa_u64

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)


cdef enum:
    STAT_HEADER = 24         # bytes of a binary response's header

# The version that `version` answers, -V prints and the statistics give.
memcached_version = MEMCACHED_VERSION.decode()


# ---- life ------------------------------------------------------------------------------------------------------------

cdef void conn_init(conn *c, conn_thread *thread, const conn_engine *engine) noexcept nogil:
    """Prepares a connection. eager is 0; an engine that moves payloads by itself sets it."""
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

cdef mc_resp *resp_allocate(conn *c) noexcept nogil:
    cdef conn_thread *t = c.thread
    cdef mc_resp *resp = NULL
    if conn_memory(t, sizeof(mc_resp)):
        resp = <mc_resp *>malloc(sizeof(mc_resp))
    if resp == NULL:
        counter_add(&t.stats.response_obj_oom, 1)
        conn_set_state(c, conn_closing)
    else:
        counter_add(&t.stats.response_obj_bytes, sizeof(mc_resp))
    return resp


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


cdef void resp_rollback(conn *c, mc_resp *last, uint32_t wbytes) noexcept nogil:
    """Takes back output that has not been gathered: all replies newer than `last` (NULL: all), and text of `last`
    beyond `wbytes`."""
    cdef mc_resp *resp
    cdef mc_resp *following
    if last == NULL:
        resp = c.resp_head
        c.resp_head = NULL
    else:
        resp = last.next
        last.next = NULL
        last.tosend -= last.wbytes - wbytes
        last.wbytes = wbytes
    c.resp = last
    while resp != NULL:
        following = resp.next
        resp_free(c, resp)
        resp = following


cdef void conn_log(const conn *c, const char *mark, const char *text, size_t length) noexcept nogil:
    while length and (text[length - 1] == c'\n' or text[length - 1] == c'\r'):
        length -= 1
    fprintf(stderr, b"%s%d %.*s\n", mark, c.sfd, <int>length, text)


cdef inline void log_unsent(conn *c, const char *text, size_t length) noexcept nogil:
    if conn_logs(c):
        while length and (text[length - 1] == c'\n' or text[length - 1] == c'\r'):
            length -= 1
        fprintf(stderr, b">%d NOREPLY %.*s\n", c.sfd, <int>length, text)


cdef void out_line(conn *c, const char *text, size_t length) noexcept nogil:
    """Answers with `text` (\\r\\n included, at most WRITE_BUFFER_SIZE bytes), unless `noreply` was given."""
    cdef mc_resp *resp
    cdef char *p
    conn_set_state(c, conn_new_cmd)
    if c.noreply:
        log_unsent(c, text, length)
        return
    resp = resp_text(c, length)
    if resp == NULL:
        return
    if conn_logs(c):
        conn_log(c, b">", text, length)
    p = resp.wbuf + resp.wbytes
    memcpy(p, text, length)
    resp_add(resp, p + length)


cdef void out_string(conn *c, const char *text) noexcept nogil:
    """Answers with `text` (without \\r\\n), unless `noreply` was given. The state becomes conn_new_cmd."""
    cdef size_t length
    cdef mc_resp *resp
    cdef char *p
    conn_set_state(c, conn_new_cmd)
    length = strlen(text)
    if c.noreply:
        log_unsent(c, text, length)
        return
    if length > WRITE_BUFFER_SIZE - 2:
        length = WRITE_BUFFER_SIZE - 2
    resp = resp_text(c, length + 2)
    if resp == NULL:
        return
    if conn_logs(c):
        conn_log(c, b">", text, length)
    p = resp.wbuf + resp.wbytes
    memcpy(p, text, length)
    memcpy(p + length, b"\r\n", 2)
    resp_add(resp, p + length + 2)


cdef void out_errstring(conn *c, const char *text) noexcept nogil:
    """out_string for errors that are answered in spite of a quiet flag."""
    c.noreply = False
    out_string(c, text)


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


# ---- statistics text -------------------------------------------------------------------------------------------------

cdef bint stat_room(stat_buf *out, size_t n) noexcept nogil:
    """Makes room for n more bytes."""
    cdef size_t size = out.size
    cdef char *fresh
    if out.failed:
        return False
    if out.used + n <= size:
        return True
    if size == 0:
        size = 1024
    while size < out.used + n:
        size *= 2
    fresh = <char *>realloc(out.data, size)
    if fresh == NULL:
        out.failed = True
        return False
    out.data = fresh
    out.size = size
    return True


cdef void stat_packet(stat_buf *out, const char *name, size_t nname, const char *value, size_t nvalue) noexcept nogil:
    """One response of the binary protocol to STAT (protocol_binary.h)."""
    cdef uint16_t keylen = htobe16(<uint16_t>nname)
    cdef uint32_t bodylen = htobe32(<uint32_t>(nname + nvalue))
    cdef char *p
    if not stat_room(out, STAT_HEADER + nname + nvalue):
        return
    p = out.data + out.used
    memset(p, 0, STAT_HEADER)
    p[0] = <char>0x81
    p[1] = 0x10
    memcpy(p + 2, &keylen, 2)
    memcpy(p + 8, &bodylen, 4)
    memcpy(p + 12, &out.opaque, 4)
    memcpy(p + STAT_HEADER, name, nname)
    memcpy(p + STAT_HEADER + nname, value, nvalue)
    out.used += STAT_HEADER + nname + nvalue


cdef void stat_append_text(stat_buf *out, const char *name, const char *value) noexcept nogil:
    """Appends ``STAT name value``."""
    cdef size_t nname = strlen(name)
    cdef size_t nvalue = strlen(value)
    cdef size_t n = nname + nvalue + 9
    if out.binary:
        stat_packet(out, name, nname, value, nvalue)
    elif stat_room(out, n):
        snprintf(out.data + out.used, n, b"STAT %s %s\r\n", name, value)
        out.used += n - 1


cdef void stat_append(stat_buf *out, const char *name, uint64_t value) noexcept nogil:
    """Appends ``STAT name value`` with a decimal number."""
    cdef char text[U64_TEXT + 1]
    itoa_u64(value, text)[0] = 0
    stat_append_text(out, name, text)


cdef void stat_append_raw(stat_buf *out, const char *text, size_t length) noexcept nogil:
    """Appends text as it is."""
    if stat_room(out, length):
        memcpy(out.data + out.used, text, length)
        out.used += length


cdef void stat_end(stat_buf *out) noexcept nogil:
    """Appends what ends the statistics: END, or a packet without key and value."""
    if out.binary:
        stat_packet(out, b"", 0, b"", 0)
    else:
        stat_append_raw(out, b"END\r\n", 5)


cdef bint stat_reply(conn *c, stat_buf *out) noexcept nogil:
    """Answers with the text, which is freed when it has left. False: out of memory; nothing is answered."""
    if out.failed:
        free(out.data)
        return False
    return text_reply(c, out.data, out.used)


cdef bint text_reply(conn *c, char *text, size_t length) noexcept nogil:
    """The same for malloc'd text."""
    cdef mc_resp *resp
    if length > INT32_MAX:
        free(text)
        return False
    resp = resp_start(c)
    if resp == NULL:
        free(text)
        return True
    resp.owned = text
    resp.wbytes = <uint32_t>length
    resp.tosend = resp.wbytes
    c.pending_bytes += resp.wbytes
    conn_set_state(c, conn_new_cmd)
    return True
