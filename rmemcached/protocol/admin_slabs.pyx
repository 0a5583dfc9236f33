"""slabs reassign and slabs automove (see admin_slabs.pxd)."""

from libc.stdint cimport int32_t, uint32_t

from rmemcached.protocol.parse cimport abbreviates, parse_double, parse_i32, parse_u32
from rmemcached.protocol.reply cimport BAD_FORMAT, out_line, out_string
from rmemcached.store.store cimport (
    REASSIGN_BADCLASS, REASSIGN_NOSPARE, REASSIGN_OK, REASSIGN_RUNNING, reassign_result, slabs_reassign,
    slabs_set_automove, slabs_set_automove_freeratio, slabs_set_automove_ratio, slabs_set_automove_window, store,
    store_get_config,
)

cdef enum:
    AUTOMOVE_WINDOW_MIN = 3
    AUTOMOVE_WINDOW_MAX = 1800


cdef void process_slabs_reassign_command(conn *c, const token *t) noexcept nogil:
    cdef store *s = c.thread.store
    cdef int32_t src, dst
    cdef reassign_result result
    if not store_get_config(s).slab_reassign:
        out_string(c, b"CLIENT_ERROR slab reassignment disabled")
        return
    if not parse_i32(t[2].value, t[2].length, &src) or not parse_i32(t[3].value, t[3].length, &dst):
        out_string(c, BAD_FORMAT)
        return
    result = slabs_reassign(s, src, dst, True)
    if result == REASSIGN_OK:
        out_line(c, b"OK\r\n", 4)
    elif result == REASSIGN_RUNNING:
        out_string(c, b"BUSY currently processing reassign request")
    elif result == REASSIGN_BADCLASS:
        out_string(c, b"BADCLASS invalid src or dst class id")
    elif result == REASSIGN_NOSPARE:
        out_string(c, b"NOSPARE source class has no spare pages")
    else:
        out_string(c, b"SAME src and dst class are identical")


cdef void process_slabs_automove_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef uint32_t level
    cdef double ratio
    if abbreviates(&t[2], b"ratio") or abbreviates(&t[2], b"freeratio"):
        if n < 4 or not parse_double(t[3].value, t[3].length, &ratio):
            out_string(c, b"ERROR")
            return
        if t[2].value[0] == c'r':
            slabs_set_automove_ratio(s, ratio)
        else:
            slabs_set_automove_freeratio(s, ratio)
    elif abbreviates(&t[2], b"window"):
        if n < 4 or not parse_u32(t[3].value, t[3].length, &level):
            out_string(c, BAD_FORMAT)
            return
        if not AUTOMOVE_WINDOW_MIN <= level <= AUTOMOVE_WINDOW_MAX:
            out_string(c, b"CLIENT_ERROR automove window too low or too high")
            return
        slabs_set_automove_window(s, level)
    else:
        if not parse_u32(t[2].value, t[2].length, &level):
            out_string(c, BAD_FORMAT)
            return
        if level > 2:
            out_string(c, b"ERROR")
            return
        slabs_set_automove(s, level)
    out_line(c, b"OK\r\n", 4)


cdef void process_slabs_command(conn *c, const token *t, int n) noexcept nogil:
    if n == 4 and abbreviates(&t[1], b"reassign"):
        process_slabs_reassign_command(c, t)
    elif n >= 3 and abbreviates(&t[1], b"automove"):
        process_slabs_automove_command(c, t, n)
    else:
        out_string(c, b"ERROR")
