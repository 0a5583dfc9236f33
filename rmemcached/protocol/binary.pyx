"""Binary commands: a fixed header states all lengths; extras, key and value follow.

Header, extras and key are taken from the input buffer together. A value to store arrives like a text command's
(conn_nread), but without the \\r\\n, which is added in the item. A quiet command leaves out its usual reply: a store
the success, a get the miss.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, fputc, stderr
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec

from rmemcached.logger cimport LOG_MUTATIONS, NORMAL_CLOSE, log_item, log_item_store, log_wants
from rmemcached.protocol.conn cimport (
    AUTH_DONE, AUTH_WANTED, CONN_NAME, SASL_AUTH, SASL_AUTHENTICATED, SASL_CHALLENGE, SASL_STEP, STATS_UNKNOWN,
    WRITE_BUFFER_SIZE, conn_auth, conn_authenticated, conn_closing, conn_hooks, conn_logs, conn_name, conn_new_cmd,
    conn_set_state, mc_resp, missed_fn, sasl_command, sasl_hooks, sasl_session, stats_result,
)
from rmemcached.protocol.item_commands cimport (
    count_cas, count_delta, expect_payload, fetch_item, fits_copy, resp_external, resp_value, swallow,
)
from rmemcached.protocol.parse cimport U64_TEXT, itoa_u64, parse_u64
from rmemcached.protocol.protocol_binary cimport (
    PROTOCOL_BINARY_CMD_ADD, PROTOCOL_BINARY_CMD_APPEND, PROTOCOL_BINARY_CMD_APPENDQ, PROTOCOL_BINARY_CMD_DECREMENT,
    PROTOCOL_BINARY_CMD_DELETE, PROTOCOL_BINARY_CMD_FLUSH, PROTOCOL_BINARY_CMD_FLUSHQ, PROTOCOL_BINARY_CMD_GAT,
    PROTOCOL_BINARY_CMD_GATK, PROTOCOL_BINARY_CMD_GATKQ, PROTOCOL_BINARY_CMD_GATQ, PROTOCOL_BINARY_CMD_GET,
    PROTOCOL_BINARY_CMD_GETK, PROTOCOL_BINARY_CMD_GETKQ, PROTOCOL_BINARY_CMD_GETQ, PROTOCOL_BINARY_CMD_INCREMENT,
    PROTOCOL_BINARY_CMD_NOOP, PROTOCOL_BINARY_CMD_PREPEND, PROTOCOL_BINARY_CMD_PREPENDQ, PROTOCOL_BINARY_CMD_QUIT,
    PROTOCOL_BINARY_CMD_REPLACE, PROTOCOL_BINARY_CMD_SASL_AUTH, PROTOCOL_BINARY_CMD_SASL_LIST_MECHS,
    PROTOCOL_BINARY_CMD_SASL_STEP, PROTOCOL_BINARY_CMD_SET, PROTOCOL_BINARY_CMD_SETQ, PROTOCOL_BINARY_CMD_STAT,
    PROTOCOL_BINARY_CMD_TOUCH, PROTOCOL_BINARY_CMD_VERSION, PROTOCOL_BINARY_REQ, PROTOCOL_BINARY_RES,
    PROTOCOL_BINARY_RESPONSE_AUTH_CONTINUE, PROTOCOL_BINARY_RESPONSE_AUTH_ERROR,
    PROTOCOL_BINARY_RESPONSE_DELTA_BADVAL, PROTOCOL_BINARY_RESPONSE_E2BIG,
    PROTOCOL_BINARY_RESPONSE_EINVAL, PROTOCOL_BINARY_RESPONSE_ENOMEM, PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS,
    PROTOCOL_BINARY_RESPONSE_KEY_ENOENT, PROTOCOL_BINARY_RESPONSE_NOT_STORED, PROTOCOL_BINARY_RESPONSE_SUCCESS,
    PROTOCOL_BINARY_RESPONSE_UNKNOWN_COMMAND, protocol_binary_header,
)
from rmemcached.protocol.reply cimport resp_add, resp_start, resp_text, stat_reply, text_reply
from rmemcached.protocol.stats_prefix cimport (
    stats_prefix_dump, stats_prefix_record_delete, stats_prefix_record_set, stats_prefixes,
)
from rmemcached.protocol.stats_text cimport stat_buf, stat_end, stat_packet
from rmemcached.store.store cimport (
    DELTA_ITEM_CAS_MISMATCH, EXISTS, INCR_MAX_STORAGE_LEN, ITEM_CHUNKED, ITEM_HDR, KEY_MAX_LENGTH, NON_NUMERIC,
    NOT_FOUND, NO_MEMORY, NREAD_ADD, NREAD_APPEND, NREAD_CAS, NREAD_PREPEND, NREAD_REPLACE, NREAD_SET, OK, STORED,
    TOO_LARGE, ITEM_client_flags, ITEM_clsid, ITEM_data, ITEM_get_cas, ITEM_has, ITEM_set_cas, delta_result_type,
    do_add_delta, do_item_remove, do_item_unlink, get_cas_id, item, item_alloc, item_get_locked, item_iov, item_remove,
    item_size_ok, item_unlink, item_unlock, realtime, store, store_flush_all, store_item, store_item_type, store_op,
    store_time, stored_item,
)
from rmemcached.sys.atomics cimport counter_add, relaxed_load, relaxed_store
from rmemcached.sys.debug cimport assert_that
from rmemcached.sys.linux cimport be16toh, be32toh, be64toh, htobe16, htobe32, htobe64
from rmemcached.sys.wipe cimport explicit_bzero

cdef enum:
    HEADER = sizeof(protocol_binary_header)
    BODY_MAX = 1024 * 1024 * 1024    # of a request; a longer body ends the connection
    NO_CREATION = 0xffffffff         # expiration of an increment that must not make an item


# ---- common ----------------------------------------------------------------------------------------------------------

cdef inline uint32_t load_be32(const char *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, sizeof(value))
    return be32toh(value)


cdef inline uint64_t load_be64(const char *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, sizeof(value))
    return be64toh(value)


cdef inline uint8_t loud(uint8_t opcode) noexcept nogil:
    """The command with replies for a quiet command; any other command unchanged."""
    if PROTOCOL_BINARY_CMD_SETQ <= opcode <= PROTOCOL_BINARY_CMD_FLUSHQ:
        return opcode - 0x10
    if opcode == PROTOCOL_BINARY_CMD_GETQ:
        return PROTOCOL_BINARY_CMD_GET
    if opcode == PROTOCOL_BINARY_CMD_APPENDQ or opcode == PROTOCOL_BINARY_CMD_PREPENDQ:
        return opcode - 0x0b
    if (opcode == PROTOCOL_BINARY_CMD_GETKQ or opcode == PROTOCOL_BINARY_CMD_GATQ
            or opcode == PROTOCOL_BINARY_CMD_GATKQ):
        return opcode - 1
    return opcode


cdef void log_header(const conn *c, const char *mark, const char *title, const char *indent,
                     const char *header) noexcept nogil:
    """Writes the 24 bytes of a header to stderr (-vv), in memcached's form."""
    cdef char name[CONN_NAME]
    cdef int i
    fprintf(stderr, b"%s%s %s:", mark, conn_name(c, name), title)
    for i in range(HEADER):
        if i % 4 == 0:
            fprintf(stderr, b"\n%s%s%s", mark, name, indent)
        fprintf(stderr, b" 0x%02x", <unsigned int><uint8_t>header[i])
    fputc(c'\n', stderr)


cdef char *put_header(const conn *c, char *p, uint16_t status, uint8_t extlen, uint16_t keylen, uint32_t bodylen,
                      uint64_t cas) noexcept nogil:
    """Writes a response's header and returns its end."""
    cdef protocol_binary_header h
    h.magic = PROTOCOL_BINARY_RES
    h.opcode = c.opcode
    h.keylen = htobe16(keylen)
    h.extlen = extlen
    h.datatype = 0
    h.status = htobe16(status)
    h.bodylen = htobe32(bodylen)
    h.opaque = c.opaque
    h.cas = htobe64(cas)
    memcpy(p, &h, HEADER)
    if conn_logs(c):
        log_header(c, b">", b"Writing bin response", b"  ", p)
    return p + HEADER


cdef void write_bin(conn *c, uint16_t status, uint16_t keylen, const char *body, size_t length,
                    uint64_t cas) noexcept nogil:
    """Queues a response with a short body, of which the first keylen bytes are the key. Without memory for the response
    the connection closes.
    """
    cdef mc_resp *resp = resp_text(c, HEADER + length)
    cdef char *p
    conn_set_state(c, conn_new_cmd if resp != NULL else conn_closing)
    if resp == NULL:
        return
    p = put_header(c, resp.wbuf + resp.wbytes, status, 0, keylen, <uint32_t>length, cas)
    if length:
        memcpy(p, body, length)
    resp_add(resp, p + length)


cdef const char *error_text(uint16_t status) noexcept nogil:
    if status == PROTOCOL_BINARY_RESPONSE_KEY_ENOENT:
        return b"Not found"
    if status == PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS:
        return b"Data exists for key."
    if status == PROTOCOL_BINARY_RESPONSE_E2BIG:
        return b"Too large."
    if status == PROTOCOL_BINARY_RESPONSE_EINVAL:
        return b"Invalid arguments"
    if status == PROTOCOL_BINARY_RESPONSE_NOT_STORED:
        return b"Not stored."
    if status == PROTOCOL_BINARY_RESPONSE_DELTA_BADVAL:
        return b"Non-numeric server-side value for incr or decr"
    if status == PROTOCOL_BINARY_RESPONSE_AUTH_ERROR:
        return b"Auth failure."
    return b"Unknown command"


cdef void write_bin_text(conn *c, uint16_t status, const char *text) noexcept nogil:
    cdef char name[CONN_NAME]
    if conn_logs(c):
        fprintf(stderr, b">%s Writing an error: %s\n", conn_name(c, name), text)
    write_bin(c, status, 0, text, strlen(text), 0)


cdef void write_bin_error(conn *c, uint16_t status) noexcept nogil:
    """Answers with an error, even to a quiet command."""
    write_bin_text(c, status, error_text(status))


cdef inline void write_bin_response(conn *c, const char *body, size_t length, uint64_t cas) noexcept nogil:
    """Answers a successful command, unless the command is quiet."""
    if c.noreply:
        conn_set_state(c, conn_new_cmd)
    else:
        write_bin(c, PROTOCOL_BINARY_RESPONSE_SUCCESS, 0, body, length, cas)


cdef void out_of_memory(conn *c, const char *text) noexcept nogil:
    write_bin_text(c, PROTOCOL_BINARY_RESPONSE_ENOMEM, text)


cdef inline uint64_t next_cas(conn *c) noexcept nogil:
    """The CAS value for a store. As in memcached, a store takes a CAS value even when nothing is stored."""
    return get_cas_id(c.thread.store) if c.thread.cas_enabled else 0


cdef void log_key(const char *title, const char *key, size_t nkey) noexcept nogil:
    fprintf(stderr, b"%s%.*s\n", title, <int>nkey, key)


# ---- get, touch, gat -------------------------------------------------------------------------------------------------

cdef void bin_missed(mc_resp *resp) noexcept nogil:
    """mc_resp.missed: the response has 4 bytes of flags, and a key or none."""
    cdef protocol_binary_header h
    cdef const char *text = error_text(PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
    cdef size_t length
    memcpy(&h, resp.wbuf, HEADER)
    length = be16toh(h.keylen)
    if length:
        memmove(resp.wbuf + HEADER, resp.wbuf + HEADER + 4, length)
    else:
        length = strlen(text)
        memcpy(resp.wbuf + HEADER, text, length)
    h.extlen = 0
    h.status = htobe16(PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
    h.bodylen = htobe32(<uint32_t>length)
    h.cas = 0
    memcpy(resp.wbuf, &h, HEADER)
    resp.wbytes = <uint32_t>(HEADER + length)


cdef void process_bin_get_or_touch(conn *c, uint8_t cmd, const char *extras, const char *key,
                                   uint16_t nkey) noexcept nogil:
    cdef char name[CONN_NAME]
    cdef bint touch = (cmd == PROTOCOL_BINARY_CMD_TOUCH or cmd == PROTOCOL_BINARY_CMD_GAT
                       or cmd == PROTOCOL_BINARY_CMD_GATK)
    cdef bint with_key = cmd == PROTOCOL_BINARY_CMD_GETK or cmd == PROTOCOL_BINARY_CMD_GATK
    cdef item *it
    cdef mc_resp *resp
    cdef char *p
    cdef size_t room
    cdef uint32_t n, flags
    cdef bint copy, external
    cdef missed_fn missed = NULL
    if conn_logs(c):
        fprintf(stderr, b"<%s ", conn_name(c, name))
        log_key(b"TOUCH " if touch else b"GET ", key, nkey)
    it = fetch_item(c, key, nkey, touch, realtime(c.thread.store, load_be32(extras)) if touch else 0,
                    NULL)
    if it == NULL:
        if c.noreply:
            conn_set_state(c, conn_new_cmd)
        elif with_key:
            write_bin(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT, nkey, key, nkey, 0)
        else:
            write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
        return
    n = <uint32_t>it.nbytes - 2 if cmd != PROTOCOL_BINARY_CMD_TOUCH else 0
    if not with_key:
        nkey = 0
    room = HEADER + sizeof(flags) + nkey
    copy = n == 0 or fits_copy(it, n, room)
    external = n != 0 and ITEM_has(it, ITEM_HDR)
    resp = resp_start(c) if external else resp_text(c, room + (n if copy else 0))
    if resp == NULL:
        item_remove(c.thread.store, it)
        return
    p = put_header(c, resp.wbuf + resp.wbytes, PROTOCOL_BINARY_RESPONSE_SUCCESS, sizeof(flags), nkey,
                   <uint32_t>sizeof(flags) + nkey + n, ITEM_get_cas(it))
    flags = htobe32(ITEM_client_flags(it))
    memcpy(p, &flags, sizeof(flags))
    memcpy(p + sizeof(flags), key, nkey)
    p += sizeof(flags) + nkey
    if external:
        if not c.noreply:
            missed = bin_missed
        resp_external(c, resp, p, it, n, NULL, missed)
    else:
        resp_value(c, resp, p, it, n, copy)
    conn_set_state(c, conn_new_cmd)


# ---- set, add, replace, append, prepend ------------------------------------------------------------------------------

cdef inline store_op stored_by(uint8_t cmd) noexcept nogil:
    if cmd == PROTOCOL_BINARY_CMD_SET:
        return NREAD_SET
    if cmd == PROTOCOL_BINARY_CMD_ADD:
        return NREAD_ADD
    if cmd == PROTOCOL_BINARY_CMD_REPLACE:
        return NREAD_REPLACE
    return NREAD_APPEND if cmd == PROTOCOL_BINARY_CMD_APPEND else NREAD_PREPEND


cdef void process_bin_update(conn *c, const protocol_binary_header *h, const char *extras,
                             const char *key) noexcept nogil:
    cdef char name[CONN_NAME]
    cdef store *s = c.thread.store
    cdef store_op op = stored_by(loud(h.opcode))
    cdef uint16_t nkey = h.keylen
    cdef size_t vlen = h.bodylen - nkey - h.extlen
    cdef uint32_t flags = load_be32(extras) if h.extlen else 0
    cdef uint32_t exptime = load_be32(extras + 4) if h.extlen else 0
    cdef item *it
    cdef log_item logged
    cdef bint fits
    stats_prefix_record_set(c.thread.prefixes, key, nkey)
    it = item_alloc(s, key, nkey, flags, realtime(s, exptime), vlen + 2)
    if conn_logs(c):
        if op != NREAD_APPEND and op != NREAD_PREPEND:
            fprintf(stderr, b"<%s %s %.*s ", conn_name(c, name), <const char *>b"ADD" if op == NREAD_ADD else
                    <const char *>b"SET" if op == NREAD_SET else <const char *>b"REPLACE", <int>nkey, key)
        fprintf(stderr, b"Value len is %zu\n", vlen)
    if it == NULL:
        fits = item_size_ok(s, nkey, flags, vlen + 2)
        if fits:
            out_of_memory(c, b"Out of memory allocating item")
        else:
            write_bin_error(c, PROTOCOL_BINARY_RESPONSE_E2BIG)
        if op != NREAD_APPEND and op != NREAD_PREPEND and log_wants(c.thread.log, LOG_MUTATIONS):
            # As in memcached, the log line has no operation, and has the expiration as requested.
            logged = log_item(key, nkey, 0, 0)
            log_item_store(c.thread.log, NO_MEMORY if fits else TOO_LARGE, 0, &logged, exptime)
        if op == NREAD_SET:
            # The key's item is older than the client's new value.
            item_unlink(s, key, nkey)
        swallow(c, vlen)
        return
    ITEM_set_cas(it, h.cas)
    if op != NREAD_APPEND and op != NREAD_PREPEND and ITEM_get_cas(it):
        op = NREAD_CAS
    expect_payload(c, it, vlen, op)


cdef void terminate(item *it) noexcept nogil:
    """Puts \\r\\n behind the data, as every item has."""
    cdef iovec iov[2]
    cdef const char *end = b"\r\n"
    cdef size_t done = 0
    cdef int i, n
    if not ITEM_has(it, ITEM_CHUNKED):
        memcpy(ITEM_data(it) + it.nbytes - 2, end, 2)
        return
    n = item_iov(it, <size_t>it.nbytes - 2, 2, iov, 2)
    for i in range(n):
        memcpy(iov[i].iov_base, end + done, iov[i].iov_len)
        done += iov[i].iov_len


cdef void complete_nread_binary(conn *c) noexcept nogil:
    cdef store *s = c.thread.store
    cdef item *it = c.item
    cdef stored_item stored
    cdef store_item_type result
    assert_that(c.rlbytes == 0)
    c.item = NULL
    counter_add(&c.thread.stats.slab[ITEM_clsid(it)].set_cmds, 1)
    terminate(it)
    result = store_item(s, it, <store_op>c.cmd, next_cas(c), False, &stored)
    if c.cmd == NREAD_CAS:
        count_cas(c, it, result)
    item_remove(s, it)
    if result == STORED:
        write_bin_response(c, NULL, 0, stored.cas)
    elif result == EXISTS:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS)
    elif result == NOT_FOUND:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
    elif c.cmd == NREAD_ADD:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS)
    elif c.cmd == NREAD_REPLACE:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
    else:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_NOT_STORED)


# ---- delete, increment, decrement ------------------------------------------------------------------------------------

cdef void process_bin_delete(conn *c, const char *key, uint16_t nkey, uint64_t cas) noexcept nogil:
    cdef store *s = c.thread.store
    cdef item *it
    cdef uint32_t hv
    cdef bint same = False
    if conn_logs(c):
        log_key(b"Deleting ", key, nkey)
    stats_prefix_record_delete(c.thread.prefixes, key, nkey)
    it = item_get_locked(s, key, nkey, False, &hv)
    if it != NULL:
        same = cas == 0 or cas == ITEM_get_cas(it)
        if same:
            counter_add(&c.thread.stats.slab[ITEM_clsid(it)].delete_hits, 1)
            do_item_unlink(s, it, hv)
        do_item_remove(s, it)
    item_unlock(s, hv)
    if same:
        write_bin_response(c, NULL, 0, 0)
    elif it != NULL:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS)
    else:
        counter_add(&c.thread.stats.delete_misses, 1)
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)


cdef void create_number(conn *c, const char *key, uint16_t nkey, uint64_t initial, uint32_t exptime) noexcept nogil:
    """Stores the initial value for an increment or decrement of a key without an item."""
    cdef store *s = c.thread.store
    cdef char text[U64_TEXT + 2]
    cdef char *end = itoa_u64(initial, text)
    cdef stored_item stored
    cdef item *it
    memcpy(end, b"\r\n", 2)
    it = item_alloc(s, key, nkey, 0, realtime(s, exptime), <size_t>(end + 2 - text))
    if it == NULL:
        out_of_memory(c, b"Out of memory allocating new item")
        return
    memcpy(ITEM_data(it), text, <size_t>it.nbytes)
    if store_item(s, it, NREAD_ADD, next_cas(c), False, &stored) == STORED:
        initial = htobe64(initial)
        write_bin_response(c, <char *>&initial, sizeof(initial), stored.cas)
    else:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_NOT_STORED)
    item_remove(s, it)


cdef void complete_incr_bin(conn *c, bint incr, const char *extras, const char *key, uint16_t nkey,
                            uint64_t cas) noexcept nogil:
    # Does an increment, or a decrement, of a key. extras: delta, initial value, expiration.
    cdef store *s = c.thread.store
    cdef uint64_t delta = load_be64(extras)
    cdef uint64_t initial = load_be64(extras + 8)
    cdef uint32_t exptime = load_be32(extras + 16)
    cdef uint64_t value = 0
    cdef char text[INCR_MAX_STORAGE_LEN]
    cdef item *it
    cdef uint32_t hv
    cdef delta_result_type result
    if conn_logs(c):
        fprintf(stderr, b"incr %.*s %lld, %llu, %d\n", <int>nkey, key, <long long>delta, <unsigned long long>initial,
                <int>exptime)
    it = item_get_locked(s, key, nkey, False, &hv)
    if it == NULL:
        item_unlock(s, hv)
        if exptime != NO_CREATION:
            create_number(c, key, nkey, initial, exptime)
            return
        count_delta(c, NULL, incr)
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
        return
    result = do_add_delta(s, it, hv, incr, delta, text, &cas)
    if result == OK:
        count_delta(c, it, incr)
    do_item_remove(s, it)
    item_unlock(s, hv)
    if result == OK:
        parse_u64(text, strlen(text), &value)
        value = htobe64(value)
        write_bin_response(c, <char *>&value, sizeof(value), cas)
    elif result == NON_NUMERIC:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_DELTA_BADVAL)
    elif result == DELTA_ITEM_CAS_MISMATCH:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS)
    else:
        out_of_memory(c, b"Out of memory incrementing value")


# ---- stats, flush, dispatch ------------------------------------------------------------------------------------------

cdef inline bint begins(const char *text, size_t length, const char *word) noexcept nogil:
    cdef size_t n = strlen(word)
    return length >= n and memcmp(text, word, n) == 0


cdef inline bint equals(const char *text, size_t length, const char *word) noexcept nogil:
    return length == strlen(word) and memcmp(text, word, length) == 0


cdef stats_result stats_of(conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil:
    """Gets the server's statistics called sub. As in memcached, the text protocol has more, such as `stats conns`."""
    cdef const conn_hooks *hooks = c.thread.hooks
    if begins(sub, nsub, b"reset"):
        nsub = 5
    elif begins(sub, nsub, b"settings"):
        nsub = 8
    elif not (nsub == 0 or equals(sub, nsub, b"items") or equals(sub, nsub, b"slabs") or equals(sub, nsub, b"sizes")
              or equals(sub, nsub, b"rdma")):
        return STATS_UNKNOWN
    return hooks.stats(hooks.arg, c, sub, nsub, out)


cdef bint stats_detail(conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil:
    """Does `stats detail` on, off or dump; dump answers with all lines in a packet. False: unknown, or not allowed."""
    cdef stats_prefixes *prefixes = c.thread.prefixes
    cdef char *text
    cdef size_t length = 0
    if prefixes == NULL or not c.thread.dump_enabled:
        return False
    if begins(sub, nsub, b" dump"):
        text = stats_prefix_dump(prefixes, &length)
        if text == NULL:
            out.failed = True
        else:
            stat_packet(out, b"detailed", 8, text, length)
            free(text)
    elif begins(sub, nsub, b" on"):
        relaxed_store(&prefixes.enabled, 1)
    elif begins(sub, nsub, b" off"):
        relaxed_store(&prefixes.enabled, 0)
    else:
        return False
    return True


cdef void process_bin_stat(conn *c, const char *sub, size_t nsub) noexcept nogil:
    """Answers with a packet for each line of the text protocol, and a last packet without a key."""
    cdef char name[CONN_NAME]
    cdef stat_buf out
    cdef bint known
    memset(&out, 0, sizeof(out))
    out.binary = True
    out.opaque = c.opaque
    if conn_logs(c):
        fprintf(stderr, b"<%s ", conn_name(c, name))
        log_key(b"STATS ", sub, nsub)
    if begins(sub, nsub, b"detail"):
        known = stats_detail(c, sub + 6, nsub - 6, &out)
    else:
        known = stats_of(c, sub, nsub, &out) != STATS_UNKNOWN
    if not known:
        free(out.data)
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_KEY_ENOENT)
        return
    stat_end(&out)
    if not stat_reply(c, &out):
        out_of_memory(c, b"Out of memory generating stats")


cdef void process_bin_flush(conn *c, uint32_t exptime) noexcept nogil:
    if not c.thread.flush_enabled:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_AUTH_ERROR)
        return
    store_flush_all(c.thread.store, exptime)
    counter_add(&c.thread.stats.flush_cmds, 1)
    write_bin_response(c, NULL, 0, 0)


cdef void unknown_command(conn *c, size_t rest) noexcept nogil:
    # rest: bytes to discard behind the command.
    write_bin_error(c, PROTOCOL_BINARY_RESPONSE_UNKNOWN_COMMAND)
    swallow(c, rest)


cdef void fatal_error(conn *c, uint16_t status) noexcept nogil:
    """Answers with an error and ends the connection."""
    write_bin_error(c, status)
    conn_set_state(c, conn_closing)


cdef enum bin_lengths:           # the parts of a command behind its header
    EXTRAS = 31                  # mask: bytes of extras
    NO_EXTRAS = 32               # the extras may be left out
    KEY = 64                     # there is a key
    ANY_KEY = 128                # there may be a key
    VALUE = 256                  # there may be a value; some commands ignore the value, as in memcached
    UNKNOWN = 512                # there is no such command: nothing is checked

cdef uint16_t[256] LENGTHS       # by opcode, with loud() applied


cdef void fill_lengths() noexcept:
    cdef int i
    for i in range(256):
        LENGTHS[i] = UNKNOWN
    LENGTHS[<int>PROTOCOL_BINARY_CMD_GET] = KEY
    LENGTHS[<int>PROTOCOL_BINARY_CMD_GETK] = KEY
    LENGTHS[<int>PROTOCOL_BINARY_CMD_SET] = 8 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_ADD] = 8 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_REPLACE] = 8 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_APPEND] = KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_PREPEND] = KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_DELETE] = KEY
    LENGTHS[<int>PROTOCOL_BINARY_CMD_INCREMENT] = 20 | KEY
    LENGTHS[<int>PROTOCOL_BINARY_CMD_DECREMENT] = 20 | KEY
    LENGTHS[<int>PROTOCOL_BINARY_CMD_TOUCH] = 4 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_GAT] = 4 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_GATK] = 4 | KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_NOOP] = 0
    LENGTHS[<int>PROTOCOL_BINARY_CMD_VERSION] = 0
    LENGTHS[<int>PROTOCOL_BINARY_CMD_QUIT] = 0
    LENGTHS[<int>PROTOCOL_BINARY_CMD_STAT] = ANY_KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_FLUSH] = 4 | NO_EXTRAS
    LENGTHS[<int>PROTOCOL_BINARY_CMD_SASL_LIST_MECHS] = 0
    LENGTHS[<int>PROTOCOL_BINARY_CMD_SASL_AUTH] = KEY | VALUE
    LENGTHS[<int>PROTOCOL_BINARY_CMD_SASL_STEP] = KEY | VALUE


fill_lengths()


cdef inline bint lengths_fit(int lengths, uint8_t extlen, uint16_t nkey, uint32_t vlen) noexcept nogil:
    if lengths & UNKNOWN:
        return True
    if extlen != lengths & EXTRAS and (extlen or not lengths & NO_EXTRAS):
        return False
    if not lengths & ANY_KEY and (nkey != 0) != (lengths & KEY != 0):
        return False
    return vlen == 0 or lengths & VALUE


# ---- SASL ------------------------------------------------------------------------------------------------------------

# A mechanism may wait for a file, a directory or another process, so a side thread does the command, and the connection
# is in the state conn_auth meanwhile. The client's data never become an item, because other clients could read the
# memory of an item directly.

cdef enum:
    SASL_NAME_MAX = 32           # bytes of a mechanism's name; memcached's limit
    SASL_DATA_MAX = 64 * 1024    # bytes of the client's data; a lane keeps no longer command


cdef inline bint for_strangers(uint8_t opcode) noexcept nogil:
    """Whether the command is answered before authentication."""
    return (opcode == PROTOCOL_BINARY_CMD_SASL_LIST_MECHS or opcode == PROTOCOL_BINARY_CMD_SASL_AUTH
            or opcode == PROTOCOL_BINARY_CMD_SASL_STEP or opcode == PROTOCOL_BINARY_CMD_VERSION)


cdef inline size_t sasl_data(const conn *c, const protocol_binary_header *h) noexcept nogil:
    """The bytes behind the key to be waited for before the command begins: the client's data, unless the command is
    going to be refused."""
    cdef size_t n
    if ((h.opcode != PROTOCOL_BINARY_CMD_SASL_AUTH and h.opcode != PROTOCOL_BINARY_CMD_SASL_STEP)
            or c.thread.hooks.sasl == NULL or h.extlen or h.keylen == 0 or h.keylen > SASL_NAME_MAX
            or h.keylen > h.bodylen):
        return 0
    n = h.bodylen - h.keylen
    return n if n <= SASL_DATA_MAX else 0


cdef void write_bin_long(conn *c, uint16_t status, const char *body, size_t length) noexcept nogil:
    """write_bin for a body of any length."""
    cdef char *text
    if HEADER + length <= WRITE_BUFFER_SIZE:
        write_bin(c, status, 0, body, length, 0)
        return
    text = <char *>malloc(HEADER + length)
    if text == NULL:
        conn_set_state(c, conn_closing)
        return
    memcpy(put_header(c, text, status, 0, 0, <uint32_t>length, 0), body, length)
    conn_set_state(c, conn_new_cmd if text_reply(c, text, HEADER + length) else conn_closing)


cdef void deny(conn *c) noexcept nogil:
    counter_add(&c.thread.stats.auth_cmds, 1)
    counter_add(&c.thread.stats.auth_errors, 1)
    write_bin_error(c, PROTOCOL_BINARY_RESPONSE_AUTH_ERROR)


cdef void begin_sasl(conn *c, sasl_command command, const char *name, uint16_t nname, uint32_t vlen) noexcept nogil:
    """Hands the command with its vlen bytes of data, which are there, to a side thread, and erases the data here."""
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    cdef char *data = c.rcurr
    c.rcurr += vlen
    c.rbytes -= vlen
    c.auth_state = AUTH_WANTED
    if command == SASL_STEP and c.sasl == NULL:
        deny(c)
    elif hooks.begin(hooks.arg, c, command, name, nname, data, vlen):
        conn_set_state(c, conn_auth)
    else:
        out_of_memory(c, b"Out of memory")
    explicit_bzero(data, vlen)


cdef void process_bin_sasl(conn *c, uint8_t cmd, const char *key, uint16_t nkey, uint32_t vlen) noexcept nogil:
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    if hooks == NULL:
        unknown_command(c, vlen)
    elif cmd == PROTOCOL_BINARY_CMD_SASL_LIST_MECHS:
        # As in memcached, the question ends an authentication of before.
        c.auth_state = AUTH_WANTED
        write_bin_long(c, PROTOCOL_BINARY_RESPONSE_SUCCESS, hooks.mechanisms, hooks.nmechanisms)
    elif nkey > SASL_NAME_MAX:
        write_bin_error(c, PROTOCOL_BINARY_RESPONSE_EINVAL)
        swallow(c, vlen)
    elif vlen > SASL_DATA_MAX:
        out_of_memory(c, b"Out of memory")
        swallow(c, vlen)
    else:
        begin_sasl(c, SASL_AUTH if cmd == PROTOCOL_BINARY_CMD_SASL_AUTH else SASL_STEP, key, nkey, vlen)


cdef void complete_sasl_binary(conn *c) noexcept nogil:
    cdef const char *text = b"Authenticated"
    cdef const sasl_hooks *hooks = c.thread.hooks.sasl
    cdef sasl_session *session = c.sasl
    assert_that(c.state == conn_auth)
    if session.outcome == SASL_CHALLENGE:
        write_bin_long(c, PROTOCOL_BINARY_RESPONSE_AUTH_CONTINUE, session.challenge, session.nchallenge)
        return
    c.sasl = NULL
    if session.outcome == SASL_AUTHENTICATED:
        conn_authenticated(c)
        counter_add(&c.thread.stats.auth_cmds, 1)
        write_bin(c, PROTOCOL_BINARY_RESPONSE_SUCCESS, 0, text, strlen(text), 0)
    else:
        deny(c)
    hooks.end(hooks.arg, session)


# ---- dispatch --------------------------------------------------------------------------------------------------------

cdef bint dispatch_bin_command(conn *c, const protocol_binary_header *h, const char *extras,
                               const char *key) noexcept nogil:
    """Runs the command. False: the lengths of its extras, key or value are not allowed; the caller answers."""
    cdef uint8_t cmd = loud(h.opcode)
    cdef uint16_t nkey = h.keylen
    cdef uint32_t vlen = h.bodylen - nkey - h.extlen
    if nkey > KEY_MAX_LENGTH:
        return False
    c.noreply = cmd != h.opcode
    if not lengths_fit(LENGTHS[cmd], h.extlen, nkey, vlen):
        return False
    if cmd == PROTOCOL_BINARY_CMD_GET or cmd == PROTOCOL_BINARY_CMD_GETK:
        process_bin_get_or_touch(c, cmd, NULL, key, nkey)
    elif cmd == PROTOCOL_BINARY_CMD_TOUCH or cmd == PROTOCOL_BINARY_CMD_GAT or cmd == PROTOCOL_BINARY_CMD_GATK:
        process_bin_get_or_touch(c, cmd, extras, key, nkey)
    elif (cmd == PROTOCOL_BINARY_CMD_SET or cmd == PROTOCOL_BINARY_CMD_ADD or cmd == PROTOCOL_BINARY_CMD_REPLACE
          or cmd == PROTOCOL_BINARY_CMD_APPEND or cmd == PROTOCOL_BINARY_CMD_PREPEND):
        process_bin_update(c, h, extras, key)
    elif cmd == PROTOCOL_BINARY_CMD_DELETE:
        process_bin_delete(c, key, nkey, h.cas)
    elif cmd == PROTOCOL_BINARY_CMD_INCREMENT or cmd == PROTOCOL_BINARY_CMD_DECREMENT:
        complete_incr_bin(c, cmd == PROTOCOL_BINARY_CMD_INCREMENT, extras, key, nkey, h.cas)
    elif cmd == PROTOCOL_BINARY_CMD_NOOP:
        write_bin_response(c, NULL, 0, 0)
    elif cmd == PROTOCOL_BINARY_CMD_VERSION:
        write_bin_response(c, c.thread.hooks.version, strlen(c.thread.hooks.version), 0)
    elif cmd == PROTOCOL_BINARY_CMD_STAT:
        process_bin_stat(c, key, nkey)
    elif cmd == PROTOCOL_BINARY_CMD_FLUSH:
        process_bin_flush(c, load_be32(extras) if h.extlen else 0)
    elif cmd == PROTOCOL_BINARY_CMD_QUIT:
        write_bin_response(c, NULL, 0, 0)
        c.close_reason = NORMAL_CLOSE
        conn_set_state(c, conn_closing)
    elif (cmd == PROTOCOL_BINARY_CMD_SASL_LIST_MECHS or cmd == PROTOCOL_BINARY_CMD_SASL_AUTH
          or cmd == PROTOCOL_BINARY_CMD_SASL_STEP):
        process_bin_sasl(c, cmd, key, nkey, vlen)
    else:
        # Discards as many bytes as memcached does here, although extras and key have been taken already.
        unknown_command(c, h.bodylen)
    return True


cdef bint try_read_command_binary(conn *c) noexcept nogil:
    cdef char name[CONN_NAME]
    cdef protocol_binary_header h
    cdef const char *extras
    cdef const char *key
    if c.rbytes < HEADER:
        return False
    memcpy(&h, c.rcurr, HEADER)
    h.keylen = be16toh(h.keylen)
    h.bodylen = be32toh(h.bodylen)
    h.cas = be64toh(h.cas)
    if h.magic != PROTOCOL_BINARY_REQ:
        if relaxed_load(&c.thread.hooks.verbose):
            fprintf(stderr, b"Invalid magic:  %x\n", h.magic)
        conn_set_state(c, conn_closing)
        return True
    if c.rbytes < <size_t>HEADER + h.extlen + h.keylen + sasl_data(c, &h):
        return False
    if conn_logs(c):
        log_header(c, b"<", b"Read binary protocol data", b"   ", c.rcurr)
    extras = c.rcurr + HEADER
    key = extras + h.extlen
    c.rcurr += HEADER + h.extlen + h.keylen
    c.rbytes -= HEADER + h.extlen + h.keylen
    c.opcode = h.opcode
    c.opaque = h.opaque
    c.last_cmd_time = store_time(c.thread.store)
    if <uint32_t>h.keylen + h.extlen > h.bodylen:
        fatal_error(c, PROTOCOL_BINARY_RESPONSE_UNKNOWN_COMMAND)
    elif c.auth_state != AUTH_DONE and not for_strangers(h.opcode):
        fatal_error(c, PROTOCOL_BINARY_RESPONSE_AUTH_ERROR)
    elif h.bodylen > BODY_MAX:
        fatal_error(c, PROTOCOL_BINARY_RESPONSE_EINVAL)
    elif not dispatch_bin_command(c, &h, extras, key):
        fatal_error(c, PROTOCOL_BINARY_RESPONSE_EINVAL)
        if relaxed_load(&c.thread.hooks.verbose):
            fprintf(stderr, b"Protocol error (opcode %02x), close connection %s\n", <unsigned int>h.opcode,
                    conn_name(c, name))
    return True
