"""The text of statistics: lines of the text protocol, or packets of the binary protocol, in a growing buffer.

The modules with statistics (`server/stats`, `server/dumps`, `rdma`) fill a stat_buf. The command that asked
(`admin_stats`, `binary`) ends the text and answers with it (`reply.stat_reply`). A stat_buf belongs to the filling
thread.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

# A zeroed stat_buf is empty and takes lines of text.
cdef struct stat_buf:
    bint binary              # packets instead of lines
    uint32_t opaque          # of the binary request, in network order
    char *data               # malloc'd; owned by the filling thread until the reply takes the text
    size_t used
    size_t size
    bint failed              # out of memory: nothing more is appended

# Appends the line ``STAT name value``, or a packet if out.binary.
cdef void stat_append(stat_buf *out, const char *name, uint64_t value) noexcept nogil
# Does so for a value that is text.
cdef void stat_append_text(stat_buf *out, const char *name, const char *value) noexcept nogil
# Appends bytes as they are. Dumps of items use a stat_buf in this way.
cdef void stat_append_raw(stat_buf *out, const char *text, size_t length) noexcept nogil
# Appends a packet: a response to the binary protocol's command STAT.
cdef void stat_packet(stat_buf *out, const char *name, size_t nname, const char *value, size_t nvalue) noexcept nogil
# Appends the end of the statistics: END, or a packet without key and value.
cdef void stat_end(stat_buf *out) noexcept nogil
