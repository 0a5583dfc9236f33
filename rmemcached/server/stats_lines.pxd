"""Lines of `stats` that are not just a name and a number."""

from libc.stdint cimport uint64_t

from rmemcached.protocol.stats_text cimport stat_buf


# Appends a time in seconds, with six decimals.
cdef void append_seconds(stat_buf *out, const char *name, long seconds, long micros) noexcept nogil
# Appends the value in the form of printf's `fmt`.
cdef void append_decimal(stat_buf *out, const char *name, const char *fmt, double value) noexcept nogil
cdef void append_int(stat_buf *out, const char *name, int value) noexcept nogil
# Appends a statistic of a class, with the name <prefix><clsid>:<name>, and with `word` if given, else the value.
cdef void append_class(stat_buf *out, const char *prefix, int clsid, const char *name, uint64_t value,
                       const char *word=?) noexcept nogil
# Returns the text; if the text is NULL, the word.
cdef const char *or_word(const char *text, const char *word) noexcept nogil
cdef const char *yes_no(bint value) noexcept nogil
