"""The text of `stats` and its subcommands."""

from rmemcached.protocol.conn cimport conn, stats_result
from rmemcached.protocol.stats_text cimport stat_buf


# conn_hooks.stats; arg is a server. Any worker.
cdef stats_result server_stats(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil
