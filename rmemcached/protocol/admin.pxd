"""Administrative commands: their table, and the short commands. memcached: proto_text.c.

Called by `ascii` for lines that are no command on items. The longer commands have modules of their own: `admin_watch`,
`admin_slabs`, `admin_lru`, `admin_flash`. `ascii` calls `admin_stats` by itself.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# Does the command in a line of n tokens. The caller has set c.noreply by the last token. False: no such command.
cdef bint process_admin_command(conn *c, const token *t, int n) noexcept nogil
