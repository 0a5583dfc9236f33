"""The text of `stats conns`."""

from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.server.layout cimport server


# Appends the text. Any worker.
cdef void conns_text(server *s, stat_buf *out) noexcept nogil
