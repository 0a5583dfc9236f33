"""The command `stats` of the text protocol. memcached: proto_text.c.

Called by `ascii` alone. The statistics come from the server (conn_hooks.stats), except counts by key prefix, which are
in `stats_prefix`, and the items of `stats cachedump`, which are in the store.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# stats [<sub> ...]. As in memcached, words behind a sub without arguments are ignored, and reset, detail, settings,
# cachedump, conns, extstore and the proxy's subs may be cut short.
cdef void process_stats_command(conn *c, const token *t, int n) noexcept nogil
