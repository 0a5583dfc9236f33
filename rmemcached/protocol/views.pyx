"""Views of items (see views.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.protocol.conn cimport NOT_GIVEN, conn, thread_stats
from rmemcached.protocol.item_commands cimport overused
from rmemcached.protocol.parse cimport U32_TEXT, U64_TEXT, itoa_u32, itoa_u64, token
from rmemcached.protocol.reply cimport BAD_FORMAT, OUT_OF_MEMORY, out_line, out_string, text_reply
from rmemcached.protocol.stats_prefix cimport stats_prefix_record_get
from rmemcached.store.store cimport (
    ITEM_CHUNKED, ITEM_HDR, KEY_MAX_LENGTH, ITEM_client_flags, ITEM_data, ITEM_has, ITEM_queue, ITEM_schunk, item,
    item_chunk, item_get, item_iov, item_remove, store, store_direct_base,
)
from rmemcached.sys.atomics cimport counter_add

cdef enum:
    PIECES_MOST = 2048       # of a value: 1 GB in chunks of 512 KB. Clients accept lines of up to 64 KB
    PIECES_AT_A_TIME = 64    # pieces got by one item_iov
    PIECE_TEXT = 2 * (16 + 1)            # most bytes of " place:length"
    SHORT_PIECES = 8         # pieces of a line that an mc_resp has room for
    HEAD_TEXT = 5 + U32_TEXT + 1 + U32_TEXT + 1 + 16 + 1 + U64_TEXT + 2    # most bytes of a line without its pieces


cdef inline char *put_hex(char *p, uint64_t value) noexcept nogil:
    cdef char digits[16]
    cdef int n = 16
    while value or n == 16:
        n -= 1
        digits[n] = <char>(c'0' + (value & 15)) if value & 15 < 10 else <char>(c'a' + (value & 15) - 10)
        value >>= 4
    memcpy(p, digits + n, 16 - n)
    return p + 16 - n


cdef inline char *put_piece(char *p, const char *memory, const void *data, size_t length) noexcept nogil:
    p[0] = c' '
    p = put_hex(p + 1, <uint64_t>(<const char *>data - memory))
    p[0] = c':'
    return put_hex(p + 1, length)


cdef unsigned int count_pieces(item *it) noexcept nogil:
    """The number of pieces in a line about the item, at most. PIECES_MOST + 1: too many."""
    cdef unsigned int pieces = 1
    cdef const item_chunk *ch
    if ITEM_has(it, ITEM_CHUNKED):
        ch = ITEM_schunk(it).next
        while ch != NULL and pieces <= <unsigned int>PIECES_MOST:
            pieces += 1
            ch = ch.next
    return pieces


cdef char *put_pieces(char *p, const char *memory, item *it) noexcept nogil:
    """Writes the pieces of the value. The caller's reference keeps the item's chain of chunks unchanged."""
    cdef iovec iov[PIECES_AT_A_TIME]
    cdef size_t length = <size_t>it.nbytes - 2
    cdef size_t offset = 0
    cdef int i, n
    if length == 0:
        return put_piece(p, memory, ITEM_data(it), 0)
    while offset < length:
        n = item_iov(it, offset, length - offset, iov, PIECES_AT_A_TIME)
        for i in range(n):
            p = put_piece(p, memory, iov[i].iov_base, iov[i].iov_len)
            offset += iov[i].iov_len
    return p


cdef size_t put_view(store *s, char *line, item *it, uint32_t id) noexcept nogil:
    """Writes the answer. Returns its length."""
    cdef const char *memory = <const char *>store_direct_base(s)
    cdef char *p = line
    memcpy(p, b"VIEW ", 5)
    p = itoa_u32(id, p + 5)
    p[0] = c' '
    p = itoa_u32(ITEM_client_flags(it), p + 1)
    p[0] = c' '
    # Places count from the beginning of the memory, as direct_place does.
    p = put_hex(p + 1, <uint64_t>(<const char *>it - memory))
    p[0] = c' '
    p = itoa_u64(<uint64_t>it.nbytes - 2, p + 1)
    p = put_pieces(p, memory, it)
    memcpy(p, b"\r\n", 2)
    return <size_t>(p + 2 - line)


cdef const char *answer_view(conn *c, item *it) noexcept nogil:
    """Pins the item with the caller's reference, and answers. Returns NULL, or the error: the caller keeps its
    reference.
    """
    cdef char short_line[HEAD_TEXT + SHORT_PIECES * PIECE_TEXT]
    cdef unsigned int pieces = count_pieces(it)
    cdef uint32_t id
    cdef char *line = short_line
    cdef const char *refused
    cdef size_t length
    if pieces > <unsigned int>PIECES_MOST:
        return b"SERVER_ERROR rdma: the value is in too many pieces for a view"
    if pieces > <unsigned int>SHORT_PIECES:
        line = <char *>malloc(HEAD_TEXT + <size_t>pieces * PIECE_TEXT)
        if line == NULL:
            return OUT_OF_MEMORY
    refused = c.engine.pin(c, it, &id)
    if refused != NULL:
        if line != short_line:
            free(line)
        return refused
    length = put_view(c.thread.store, line, it, id)
    if line == short_line:
        out_line(c, line, length)
    else:
        # Without memory for the reply the connection closes, and its end gives the item back.
        text_reply(c, line, length)
    return NULL


cdef void process_view_command(conn *c, const token *t, int n) noexcept nogil:
    cdef thread_stats *stats = &c.thread.stats
    cdef const char *refused
    cdef unsigned int queue
    cdef item *it
    c.noreply = False
    if n != 2 or t[1].length > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    if c.engine.pin == NULL:
        out_string(c, NOT_GIVEN)
        return
    it = item_get(c.thread.store, t[1].value, t[1].length, True)
    if it == NULL:
        counter_add(&stats.get_cmds, 1)
        counter_add(&stats.get_misses, 1)
        stats_prefix_record_get(c.thread.prefixes, t[1].value, t[1].length, False)
        out_line(c, b"EN\r\n", 4)
        return
    queue = ITEM_queue(it)
    if overused(it):
        refused = b"SERVER_ERROR rdma: the item has too many references for a view"
    elif ITEM_has(it, ITEM_HDR):
        refused = b"SERVER_ERROR rdma: the value is in external storage"
    else:
        refused = answer_view(c, it)
    if refused != NULL:
        # The client gets the value by another command, which counts the hit.
        item_remove(c.thread.store, it)
        out_string(c, refused)
        return
    counter_add(&stats.get_cmds, 1)
    counter_add(&stats.lru_hits[queue], 1)
    stats_prefix_record_get(c.thread.prefixes, t[1].value, t[1].length, True)


cdef void process_release_command(conn *c, const char *p, const char *end) noexcept nogil:
    cdef const char *start
    cdef uint64_t id
    while p < end:
        id = 0
        start = p
        while p < end and c'0' <= p[0] <= c'9' and id <= UINT32_MAX:
            id = id * 10 + <uint64_t>(p[0] - c'0')
            p += 1
        if p > start and (p == end or p[0] == c' ') and id <= UINT32_MAX and c.engine.unpin != NULL:
            c.engine.unpin(c, <uint32_t>id)
        while p < end and p[0] != c' ':
            p += 1
        p += 1
    c.noreply = True
    out_string(c, b"")
