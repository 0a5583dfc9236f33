"""The command `slabs`: moving memory between slab classes. memcached: proto_text.c.

Called by `admin` alone. As in memcached, the second word may be abbreviated: the first subcommand with this beginning
is meant.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# slabs reassign <source class> <target class> | automove <0|1|2> | automove ratio|freeratio|window <number>
cdef void process_slabs_command(conn *c, const token *t, int n) noexcept nogil
