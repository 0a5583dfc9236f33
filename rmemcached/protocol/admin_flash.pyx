"""extstore (see admin_flash.pxd)."""

from libc.stdint cimport uint32_t

from rmemcached.protocol.parse cimport abbreviates, parse_double, parse_u32
from rmemcached.protocol.reply cimport out_string
from rmemcached.store.store cimport (
    MAX_NUMBER_OF_SLAB_CLASSES, flash_settings, store_flash_settings, store_set_flash, store_set_flash_max_frag,
)

cdef enum:
    NUMBERS = 8

cdef struct flash_number:
    const char *name
    uint32_t *place


cdef bint accept_free_memchunks(const token *t) noexcept nogil:
    """extstore free_memchunks <class> <number>: checked, without effect in memcached, too."""
    cdef uint32_t clsid, chunks
    return (parse_u32(t[2].value, t[2].length, &clsid) and parse_u32(t[3].value, t[3].length, &chunks)
            and clsid < MAX_NUMBER_OF_SLAB_CLASSES)


cdef bint set_number(conn *c, flash_number number, const token *text) noexcept nogil:
    cdef uint32_t value
    if not parse_u32(text.value, text.length, &value):
        return False
    store_set_flash(c.thread.store, number.place, value)
    return True


cdef bint set_max_frag(conn *c, const token *text) noexcept nogil:
    cdef double share
    if not parse_double(text.value, text.length, &share):
        return False
    store_set_flash_max_frag(c.thread.store, share)
    return True


cdef bint set_flash(conn *c, const token *t, int n) noexcept nogil:
    """False: no such setting, or no such value; nothing has changed."""
    cdef flash_settings *flash = store_flash_settings(c.thread.store)
    cdef flash_number[NUMBERS] numbers = [
        flash_number(b"item_size", &flash.item_size),
        flash_number(b"item_age", &flash.item_age),
        flash_number(b"low_ttl", &flash.low_ttl),
        flash_number(b"recache_rate", &flash.recache_rate),
        flash_number(b"compact_under", &flash.compact_under),
        flash_number(b"drop_under", &flash.drop_under),
        flash_number(b"max_sleep", &flash.max_sleep),
        flash_number(b"drop_unread", &flash.drop_unread),
    ]
    cdef int i
    if n > 3 and abbreviates(&t[1], b"free_memchunks"):
        return accept_free_memchunks(t)
    for i in range(NUMBERS):
        if abbreviates(&t[1], numbers[i].name):
            return set_number(c, numbers[i], &t[2])
    return abbreviates(&t[1], b"max_frag") and set_max_frag(c, &t[2])


cdef void process_extstore_command(conn *c, const token *t, int n) noexcept nogil:
    out_string(c, b"OK" if n >= 3 and set_flash(c, t, n) else b"ERROR")
