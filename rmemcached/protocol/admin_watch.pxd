"""The command `watch`, and whether a connection can be lent to a side thread. memcached: proto_text.c.

`admin` calls the command; `admin_lru`, whose dumps lend connections as well, calls require_lendable. The engine lends
the socket (conn.engine), and from then on the side thread answers.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# watch [word ...]; without a word: fetchers.
cdef void process_watch_command(conn *c, const token *t, int n) noexcept nogil
# Whether a side thread can have the connection now. If not, answers why. `pipelined` is the answer if the command is
# behind others of the same batch, whose replies would have to leave first.
cdef bint require_lendable(conn *c, const char *pipelined) noexcept nogil
