"""The command `watch`, and the condition on which a connection is lent to a side thread. memcached: proto_text.c.

`admin` calls the command, `admin_lru` the condition. The engine does the lending (conn.engine); from then on the side
thread answers.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# watch [word ...]; without a word: fetchers.
cdef void process_watch_command(conn *c, const token *t, int n) noexcept nogil
# Whether a side thread can have the connection now; if not, answers why. `pipelined` is the answer to a command behind
# others of the same batch: their replies would have to leave first.
cdef bint can_lend(conn *c, const char *pipelined) noexcept nogil
