"""Meta flags by table (see meta_flags.pxd). memcached: proto_parser.c."""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memchr, memcpy, memmove, memset

from rmemcached.protocol.item_commands cimport expiry
from rmemcached.protocol.parse cimport base64_decode, parse_hex, parse_i32, parse_u32, parse_u64
from rmemcached.protocol.reply cimport BAD_FORMAT
from rmemcached.store.store cimport KEY_MAX_LENGTH
from rmemcached.sys.debug cimport assert_that

cdef enum:
    META_MAX_TOKENS = 20     # command and key included
    LETTERS = 128

cdef enum meta_argument:     # the argument behind a flag's letter
    NO_FLAG                  # no such flag
    ARG_IGNORED              # anything, ignored
    ARG_BASE64               # anything, ignored; the key is decoded
    ARG_OPAQUE
    ARG_MODE
    ARG_TIME                 # stored in the flag's field, as ARG_U32, ARG_U64 and ARG_REMOTE are
    ARG_U32
    ARG_U64
    ARG_REMOTE

cdef struct meta_flag:
    meta_argument argument
    uint32_t marks           # meta_marks set by the flag
    size_t field             # offset in meta_flags
    const char *error        # answered if the argument is malformed; NULL: an earlier flag's error, or BAD_FORMAT


# ---- the table -------------------------------------------------------------------------------------------------------

cdef meta_flag[LETTERS] FLAGS    # by letter; constant after the import
cdef meta_flags SHAPE        # never used but for the offsets of its fields


cdef void add(char letter, meta_argument argument, uint32_t marks=0, void *field=NULL, const char *error=NULL) noexcept:
    # Describes a flag in the table. field: the place of the argument, in SHAPE.
    cdef meta_flag *flag = &FLAGS[<int>letter]
    flag.argument = argument
    flag.marks = marks
    flag.field = <size_t>(<char *>field - <char *>&SHAPE) if field != NULL else 0
    flag.error = error


cdef void fill_table() noexcept:
    cdef const char *bad_token = b"CLIENT_ERROR bad token in command line format"
    # values to return
    add(c's', ARG_IGNORED)
    add(c't', ARG_IGNORED)
    add(c'c', ARG_IGNORED)
    add(c'f', ARG_IGNORED)
    add(c'v', ARG_IGNORED, MARK_VALUE)
    add(c'k', ARG_IGNORED, MARK_KEY)
    add(c'O', ARG_OPAQUE)
    # facts about the item before this access; the lock keeps others from changing them
    add(c'h', ARG_IGNORED, MARK_LOCKED)
    add(c'l', ARG_IGNORED, MARK_LOCKED)
    # how the command is done
    add(c'b', ARG_BASE64, MARK_BINARY_KEY, NULL, b"CLIENT_ERROR error decoding key")
    add(c'q', ARG_IGNORED, MARK_QUIET)
    add(c'u', ARG_IGNORED, MARK_NO_UPDATE)
    add(c'M', ARG_MODE)
    add(c'I', ARG_IGNORED, MARK_STALE)
    add(c'x', ARG_IGNORED, MARK_NO_VALUE)
    add(c'T', ARG_TIME, MARK_LOCKED | MARK_NEW_TTL, &SHAPE.exptime, bad_token)
    add(c'N', ARG_TIME, MARK_LOCKED | MARK_VIVIFY, &SHAPE.autoviv_exptime, bad_token)
    add(c'R', ARG_TIME, MARK_LOCKED, &SHAPE.recache_time, bad_token)
    add(c'F', ARG_U32, 0, &SHAPE.client_flags)
    add(c'C', ARG_U64, MARK_CAS, &SHAPE.req_cas_id, bad_token)
    add(c'E', ARG_U64, MARK_NEW_CAS, &SHAPE.cas_id_in, bad_token)
    add(c'J', ARG_U64, 0, &SHAPE.initial, b"CLIENT_ERROR invalid numeric initial value")
    add(c'D', ARG_U64, 0, &SHAPE.delta, b"CLIENT_ERROR invalid numeric delta value")
    # the value's source or target
    add(c'@', ARG_REMOTE, 0, &SHAPE.remote, bad_token)
    # for memcached's proxy
    add(c'P', ARG_IGNORED)
    add(c'L', ARG_IGNORED)


fill_table()


# ---- reading ---------------------------------------------------------------------------------------------------------

cdef bint parse_remote(const char *p, size_t length, bint with_length, remote_buf *out) noexcept nogil:
    """Parses addr:rkey or addr:rkey:length, all hexadecimal."""
    cdef const char *end = p + length
    cdef const char *colon
    cdef uint64_t addr, rkey
    cdef uint64_t size = 0
    colon = <const char *>memchr(p, c':', length)
    if colon == NULL or not parse_hex(p, <size_t>(colon - p), 16, &addr):
        return False
    p = colon + 1
    if with_length:
        colon = <const char *>memchr(p, c':', <size_t>(end - p))
        if colon == NULL or not parse_hex(colon + 1, <size_t>(end - colon - 1), 8, &size):
            return False
        end = colon
    if not parse_hex(p, <size_t>(end - p), 8, &rkey):
        return False
    out.addr = addr
    out.rkey = <uint32_t>rkey
    out.length = <uint32_t>size
    out.set = True
    return True


cdef bint read_argument(conn *c, const meta_flag *flag, const token *t, char command, meta_flags *of,
                        char *key_buffer) noexcept nogil:
    """Reads the argument behind the letter into *of; for b, decodes the key into key_buffer. False: malformed."""
    cdef void *field = <char *>of + flag.field
    cdef const char *p = t.value + 1
    cdef size_t length = t.length - 1
    cdef int32_t exptime
    if flag.argument == ARG_OPAQUE:
        of.opaque = t
    elif flag.argument == ARG_BASE64:
        of.nkey = base64_decode(of.key, of.nkey, key_buffer)
        of.key = key_buffer
        return of.nkey != 0
    elif flag.argument == ARG_MODE:
        of.mode = p[0] if length else c' '
    elif flag.argument == ARG_TIME:
        if length == 0 or not parse_i32(p, length, &exptime):
            return False
        (<rel_time_t *>field)[0] = expiry(c.thread.store, exptime)
    elif flag.argument == ARG_U32:
        return length != 0 and parse_u32(p, length, <uint32_t *>field)
    elif flag.argument == ARG_U64:
        return length != 0 and parse_u64(p, length, <uint64_t *>field)
    elif flag.argument == ARG_REMOTE:
        # mg names its target with a length. The source of an ms has the value's length, given in the line.
        return parse_remote(p, length, command == META_GET, <remote_buf *>field)
    return True


cdef const char *parse_meta_flags(conn *c, const token *t, int n, int first, char command, meta_flags *of,
                                  char *key_buffer) noexcept nogil:
    cdef uint64_t seen[2]
    cdef const meta_flag *flag
    cdef const char *error = BAD_FORMAT
    cdef bint good = True
    cdef uint8_t letter
    cdef int i
    memset(of, 0, sizeof(meta_flags))
    of.delta = 1
    of.key = t[1].value
    of.nkey = t[1].length
    if of.nkey > KEY_MAX_LENGTH:
        return error
    if n > META_MAX_TOKENS:
        return b"CLIENT_ERROR options flags are too long"
    seen[0] = 0
    seen[1] = 0
    for i in range(first, n):
        letter = <uint8_t>t[i].value[0]
        assert_that(letter < LETTERS)
        if seen[letter >> 6] >> (letter & 63) & 1:
            return b"CLIENT_ERROR duplicate flag"
        seen[letter >> 6] |= <uint64_t>1 << (letter & 63)
        flag = &FLAGS[letter]
        if flag.argument == NO_FLAG:
            return b"CLIENT_ERROR invalid flag"
        if flag.argument == ARG_REMOTE and not c.engine.remote:
            return b"CLIENT_ERROR rdma: no queue pair on this connection"
        of.marks |= flag.marks
        if flag.argument != ARG_IGNORED and not read_argument(c, flag, &t[i], command, of, key_buffer):
            # The last malformed argument decides the answer.
            good = False
            if flag.error != NULL:
                error = flag.error
    if good:
        return NULL
    return error


cdef void meta_lost(mc_resp *resp) noexcept nogil:
    cdef char *p = resp.wbuf + 2
    cdef char *word = p
    cdef char *end = resp.wbuf + resp.wbytes - 2
    cdef char *after
    memcpy(resp.wbuf, b"EN", 2)
    while word < end:
        after = <char *>memchr(word + 1, c' ', <size_t>(end - word - 1))
        if after == NULL:
            after = end
        if word[1] == c'O' or word[1] == c'k' or word[1] == c'b':
            memmove(p, word, <size_t>(after - word))
            p += after - word
        word = after
    memcpy(p, b"\r\n", 2)
    resp.wbytes = <uint32_t>(p + 2 - resp.wbuf)
