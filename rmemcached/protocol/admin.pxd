"""Administrative commands: the table of them, and the short ones. memcached: proto_text.c.

Called by `ascii` for lines that are no command on items. The longer commands have modules of their own: `admin_watch`,
`admin_slabs`, `admin_lru`. `ascii` calls `admin_stats` by itself.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# Does the command of a line of n tokens, whose last one the caller has read into c.noreply. False: there is no such
# command.
cdef bint process_admin_command(conn *c, const token *t, int n) noexcept nogil
