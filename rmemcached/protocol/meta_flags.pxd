"""The flags of meta commands: their letters, their arguments, and reading the flags of a line.

Called by `meta` alone. Nothing here answers or touches an item.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.protocol.conn cimport conn, mc_resp, remote_buf
from rmemcached.protocol.parse cimport token
from rmemcached.store.store cimport rel_time_t

cdef enum:
    META_MAX_OPAQUE = 32     # bytes of an opaque, with the O

cdef enum meta_command:      # the second letter
    META_ARITHMETIC = 0x61   # ma
    META_DELETE = 0x64       # md
    META_DEBUG = 0x65        # me
    META_GET = 0x67          # mg
    META_NOOP = 0x6e         # mn
    META_SET = 0x73          # ms

# The requests of a line's flags, as a set.
cdef enum meta_marks:
    MARK_LOCKED = 1          # the flags need the item lock
    MARK_VALUE = 2           # v: the value is to be returned
    MARK_KEY = 4             # k: the key is to be returned
    MARK_QUIET = 8           # q: the usual outcome is not answered
    MARK_NO_UPDATE = 16      # u: the access does not count for the LRU
    MARK_BINARY_KEY = 32     # b: the key is base64
    MARK_VIVIFY = 64         # N: an item is made if the key has none
    MARK_NEW_TTL = 128       # T: the item gets a new expiry time
    MARK_CAS = 256           # C: only if the item has this CAS value
    MARK_NEW_CAS = 512       # E: the item gets the client's CAS value
    MARK_STALE = 1024        # I: md makes the item stale; ms stores a value with an older CAS value, as stale
    MARK_NO_VALUE = 2048     # x: the value is removed and the item stays

cdef inline bint flag_allowed(char letter, char command) noexcept nogil:
    """Whether a flag may begin with this character in a line of the command; if not, the line is malformed. Letters and
    digits without a meaning are a different error, found by parse_meta_flags. A flag without use in the command is
    accepted and ignored."""
    if c'A' <= letter <= c'z' or c'0' <= letter <= c'9':
        return True
    return letter == c'@' and (command == META_GET or command == META_SET)

# A line's key and flags. The bytes are the input's, or the key_buffer of parse_meta_flags.
cdef struct meta_flags:
    const char *key          # decoded
    size_t nkey
    const token *opaque      # NULL: none
    uint32_t marks           # meta_marks
    char mode                # M; 0: none
    rel_time_t exptime       # T
    rel_time_t autoviv_exptime   # N
    rel_time_t recache_time  # R
    uint32_t client_flags    # F
    uint64_t req_cas_id      # C
    uint64_t cas_id_in       # E
    uint64_t delta           # D; 1 if there is none
    uint64_t initial         # J
    remote_buf remote        # @

# Reads the key t[1] and the flags t[first:n]; flag_allowed is true of them all. Returns NULL, or the line to answer.
# key_buffer has KEY_MAX_LENGTH bytes.
cdef const char *parse_meta_flags(conn *c, const token *t, int n, int first, char command, meta_flags *of,
                                  char *key_buffer) noexcept nogil
# mc_resp.missed: turns the line of an mg about a value into its EN, with the opaque and the key.
cdef void meta_lost(mc_resp *resp) noexcept nogil
