"""The text of statistics: lines of the text protocol, or packets of the binary one, in a buffer that grows.

Whoever has statistics to tell fills a stat_buf (`server/stats`, `server/dumps`, `rdma`). The command that asked for
them (`admin_stats`, `binary`) ends it and answers with it (`reply.stat_reply`). A stat_buf belongs to the thread that
fills it.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

# Zeroed, it is empty and takes lines of text.
cdef struct stat_buf:
    bint binary              # packets instead of lines
    uint32_t opaque          # of the binary request, in network order
    char *data               # malloc'd; owned by whoever fills the buffer until it becomes a reply
    size_t used
    size_t size
    bint failed              # out of memory: nothing more is appended

# Appends ``STAT name value``.
cdef void stat_append(stat_buf *out, const char *name, uint64_t value) noexcept nogil
cdef void stat_append_text(stat_buf *out, const char *name, const char *value) noexcept nogil
# Appends bytes as they are.
cdef void stat_append_raw(stat_buf *out, const char *text, size_t length) noexcept nogil
# Appends one response of the binary protocol to STAT.
cdef void stat_packet(stat_buf *out, const char *name, size_t nname, const char *value, size_t nvalue) noexcept nogil
# Appends what ends the statistics: END, or a packet without key and value.
cdef void stat_end(stat_buf *out) noexcept nogil
