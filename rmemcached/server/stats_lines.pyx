"""Lines of `stats` that are not just a name and a number."""

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf

from rmemcached.protocol.stats_text cimport stat_append, stat_append_text, stat_buf


cdef void append_seconds(stat_buf *out, const char *name, long seconds, long micros) noexcept nogil:
    cdef char text[48]
    snprintf(text, sizeof(text), b"%ld.%06ld", seconds, micros)
    stat_append_text(out, name, text)


cdef void append_decimal(stat_buf *out, const char *name, const char *fmt, double value) noexcept nogil:
    cdef char text[48]
    snprintf(text, sizeof(text), fmt, value)
    stat_append_text(out, name, text)


cdef void append_class(stat_buf *out, const char *prefix, int clsid, const char *name, uint64_t value,
                       const char *word=NULL) noexcept nogil:
    cdef char full[80]
    snprintf(full, sizeof(full), b"%s%d:%s", prefix, clsid, name)
    if word != NULL:
        stat_append_text(out, full, word)
    else:
        stat_append(out, full, value)


cdef void append_int(stat_buf *out, const char *name, int value) noexcept nogil:
    cdef char text[16]
    snprintf(text, sizeof(text), b"%d", value)
    stat_append_text(out, name, text)


cdef const char *or_word(const char *text, const char *word) noexcept nogil:
    return text if text != NULL else word


cdef const char *yes_no(bint value) noexcept nogil:
    return b"yes" if value else b"no"
