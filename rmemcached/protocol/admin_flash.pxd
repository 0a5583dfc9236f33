"""The command `extstore`: settings of storage on flash. memcached: proto_text.c.

Called by `admin` alone. As in memcached, the second word may be abbreviated: the first subcommand with this beginning
is meant. memcached takes the settings whether there is storage on flash or not.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# extstore item_size|item_age|low_ttl|recache_rate|compact_under|drop_under|max_sleep|drop_unread|max_frag <number> |
# extstore free_memchunks <class> <number>
cdef void process_extstore_command(conn *c, const token *t, int n) noexcept nogil
