# slabs reassign, slabs automove, cache_memlimit. Included in ascii.pyx. memcached: proto_text.c.
#
# As in memcached, what a second word that was cut short means is the first that begins so.

from libc.stdio cimport fprintf, stderr

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.store.store cimport (
    REASSIGN_BADCLASS, REASSIGN_NOSPARE, REASSIGN_OK, REASSIGN_RUNNING, reassign_result, slabs_reassign,
    slabs_set_automove, slabs_set_automove_freeratio, slabs_set_automove_ratio, slabs_set_automove_window,
    store_set_memory_limit,
)


cdef enum:
    AUTOMOVE_WINDOW_MIN = 3
    AUTOMOVE_WINDOW_MAX = 1800
    MEMLIMIT_MIN = 8                    # megabytes
    MEMLIMIT_MAX = 1000000000


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
    if begins(&t[2], b"ratio", 5) or begins(&t[2], b"freeratio", 9):
        if n < 4 or not parse_double(&t[3], &ratio):
            out_string(c, b"ERROR")
            return
        if t[2].value[0] == c'r':
            slabs_set_automove_ratio(s, ratio)
        else:
            slabs_set_automove_freeratio(s, ratio)
    elif begins(&t[2], b"window", 6):
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
    if n == 4 and begins(&t[1], b"reassign", 8):
        process_slabs_reassign_command(c, t)
    elif n >= 3 and begins(&t[1], b"automove", 8):
        process_slabs_automove_command(c, t, n)
    else:
        out_string(c, b"ERROR")


cdef void process_memlimit_command(conn *c, const token *t, int n) noexcept nogil:
    cdef uint32_t megabytes
    if n < 2 or not parse_u32(t[1].value, t[1].length, &megabytes):
        out_string(c, b"ERROR")
    elif megabytes < MEMLIMIT_MIN:
        out_string(c, b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m")
    elif megabytes > MEMLIMIT_MAX:
        out_string(c, b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes")
    elif not store_set_memory_limit(c.thread.store, <uint64_t>megabytes * 1024 * 1024):
        out_string(c, b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust")
    else:
        if relaxed_load(&c.thread.hooks.verbose) > 0:
            fprintf(stderr, b"maxbytes adjusted to %um\n", megabytes)
        out_line(c, b"OK\r\n", 4)
