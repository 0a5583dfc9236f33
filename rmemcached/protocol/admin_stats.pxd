"""The command `stats` of the text protocol. memcached: proto_text.c.

Called by `ascii` alone. The statistics themselves come from the server (conn_hooks.stats); those by key prefix are in
`stats_prefix`, those of one slab class in the store.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# stats [<sub> ...]. memcached takes the beginning of some subs for the whole; what stands behind is not looked at.
cdef void process_stats_command(conn *c, const token *t, int n) noexcept nogil
