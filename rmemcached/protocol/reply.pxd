"""The replies of commands: functions append them to the connection's output, in order.

Called by the command modules (`ascii`, `meta`, `admin*`, `auth`, `binary`), and by an engine with an answer of its own.
A reply is an mc_resp, or a part of the text in a shared mc_resp; `conn` hands the bytes to the engine.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from rmemcached.protocol.conn cimport WRITE_BUFFER_SIZE, conn, conn_thread, mc_resp
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.sys.atomics cimport counter_add
from rmemcached.sys.debug cimport LIVE_RESPONSE, assert_owner, assert_that, live_add

cdef extern from *:
    """
    #define RMC_BAD_FORMAT "CLIENT_ERROR bad command line format"
    #define RMC_BAD_EXPTIME "CLIENT_ERROR invalid exptime argument"
    #define RMC_NOT_A_NUMBER "CLIENT_ERROR cannot increment or decrement non-numeric value"
    #define RMC_NO_MEMORY "SERVER_ERROR out of memory"
    """
    # Error lines common to several commands.
    const char *BAD_FORMAT "RMC_BAD_FORMAT"
    const char *BAD_EXPTIME "RMC_BAD_EXPTIME"
    const char *NOT_A_NUMBER "RMC_NOT_A_NUMBER"
    const char *OUT_OF_MEMORY "RMC_NO_MEMORY"

# ---- whole lines; the state becomes conn_new_cmd ---------------------------------------------------------------------

# Answers with `text` (\r\n included, at most WRITE_BUFFER_SIZE bytes), unless `noreply` was given.
cdef void out_line(conn *c, const char *text, size_t length) noexcept nogil
# out_line for a NUL-terminated string without \r\n: adds the \r\n. Cuts a string too long for WRITE_BUFFER_SIZE.
cdef void out_string(conn *c, const char *text) noexcept nogil
# out_string for an error answered in spite of a quiet flag.
cdef void out_errstring(conn *c, const char *text) noexcept nogil
# Answers with the statistics, and takes over their memory. False: they are incomplete (out.failed) or longer than 2 GB;
# nothing is answered.
cdef bint stat_reply(conn *c, stat_buf *out) noexcept nogil
# Answers with malloc'd text, and frees the text in any case. False: more than 2 GB, nothing is answered. A long text
# counts for several commands of the turn (-R), because making the text took time.
cdef bint text_reply(conn *c, char *text, size_t length) noexcept nogil

# ---- formatting in place ---------------------------------------------------------------------------------------------

# Makes an mc_resp for resp_start when the thread has none free. NULL: as resp_start.
cdef mc_resp *resp_allocate(conn *c) noexcept nogil
# Takes back output not gathered yet: all replies newer than `last` (NULL: all), and text of `last` beyond `wbytes`. For
# a get that fails after its first keys, and for a connection beyond the memory limit.
cdef void resp_rollback(conn *c, mc_resp *last, uint32_t wbytes) noexcept nogil

cdef inline mc_resp *resp_start(conn *c) noexcept nogil:
    """Appends an empty mc_resp to the output, for the caller to fill. NULL: out of memory; the connection closes."""
    cdef conn_thread *t = c.thread
    cdef mc_resp *resp = t.free_resps
    assert_owner(t.owner)
    if resp != NULL:
        t.free_resps = resp.next
        t.nfree_resps -= 1
    else:
        resp = resp_allocate(c)
        if resp == NULL:
            return NULL
    live_add(LIVE_RESPONSE)
    resp.next = NULL
    resp.item = NULL
    resp.tosend = 0
    resp.sent = 0
    resp.wbytes = 0
    resp.data_length = 0
    resp.tail_bytes = 0
    resp.external_bytes = 0
    resp.owned = NULL
    resp.sink.set = False
    resp.wait = NULL
    resp.missed = NULL
    if c.resp == NULL:
        c.resp_head = resp
    else:
        c.resp.next = resp
    c.resp = resp
    c.npending += 1
    counter_add(&t.stats.response_obj_count, 1)
    return resp

cdef inline mc_resp *resp_text(conn *c, size_t room) noexcept nogil:
    """Returns an mc_resp with room for text of up to `room` (at most WRITE_BUFFER_SIZE) bytes, at wbuf + wbytes: the
    newest if its content is nothing but text, else a new mc_resp. The caller writes, and then calls resp_add. NULL: as
    resp_start."""
    cdef mc_resp *resp = c.resp
    if (resp != NULL and resp.data_length == 0 and resp.tail_bytes == 0 and resp.owned == NULL and not resp.sink.set
            and resp.wait == NULL and resp.wbytes + room <= WRITE_BUFFER_SIZE and not c.engine.datagrams):
        return resp
    return resp_start(c)

cdef inline void resp_add(mc_resp *resp, const char *end) noexcept nogil:
    """Makes the text that the caller has written behind wbytes, up to `end`, a part of the reply."""
    cdef uint32_t n = <uint32_t>(end - resp.wbuf) - resp.wbytes
    assert_that(resp.wbytes + n <= WRITE_BUFFER_SIZE)
    resp.wbytes += n
    resp.tosend += n
