"""Replies (see reply.pxd)."""

from libc.stdint cimport INT32_MAX
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen

from rmemcached.protocol.conn cimport (
    CONN_NAME, conn_closing, conn_log, conn_logs, conn_memory, conn_name, conn_new_cmd, conn_set_state, conn_thread,
    resp_free,
)

cdef enum:
    TEXT_PER_COMMAND = 4096      # a text counts as one more command for every so many bytes (-R)


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


cdef void resp_rollback(conn *c, mc_resp *last, uint32_t wbytes) noexcept nogil:
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


cdef inline void log_unsent(conn *c, const char *text, size_t length) noexcept nogil:
    cdef char name[CONN_NAME]
    if conn_logs(c):
        while length and (text[length - 1] == c'\n' or text[length - 1] == c'\r'):
            length -= 1
        fprintf(stderr, b">%s NOREPLY %.*s\n", conn_name(c, name), <int>length, text)


cdef void out_line(conn *c, const char *text, size_t length) noexcept nogil:
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
    c.noreply = False
    out_string(c, text)


cdef bint stat_reply(conn *c, stat_buf *out) noexcept nogil:
    if out.failed:
        free(out.data)
        return False
    return text_reply(c, out.data, out.used)


cdef bint text_reply(conn *c, char *text, size_t length) noexcept nogil:
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
    if c.reqs_left > 1:
        # The machine will count the command itself, so at least 1 must be left.
        c.reqs_left -= <unsigned int>min(length // TEXT_PER_COMMAND, <size_t>(c.reqs_left - 1))
    conn_set_state(c, conn_new_cmd)
    return True
