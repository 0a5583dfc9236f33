"""Commands for whoever runs the daemon: which there are, and the short ones among them. memcached: proto_text.c.

Called by `ascii` for lines that are no command on items. The long ones have modules of their own: `admin_watch`,
`admin_slabs`, `admin_lru`; `stats` is in `admin_stats`, which `ascii` calls by itself.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# Does the command of a line of n tokens; c.noreply is what its last token says. False: there is no such command.
cdef bint process_admin_command(conn *c, const token *t, int n) noexcept nogil
