"""The lines of `stats` about external storage, and the text of `stats extstore`."""

from rmemcached.protocol.conn cimport thread_stats
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.server.layout cimport server


# Append nothing without external storage. Any worker.
# The gets of `stats`.
cdef void flash_gets_text(server *s, const thread_stats *t, stat_buf *out) noexcept nogil
# The storage's own lines of `stats`.
cdef void flash_text(server *s, stat_buf *out) noexcept nogil
# `stats extstore`: the pages.
cdef void flash_pages_text(server *s, stat_buf *out) noexcept nogil
