"""The meta commands of the text protocol: mg, ms, md, ma, me, mn. memcached: proto_text.c.

Called by `ascii` alone. `meta_flags` reads what stands in a line; here it is done and answered.
"""

from libc.stdint cimport uint64_t

from rmemcached.protocol.conn cimport conn
from rmemcached.store.store cimport item, store_item_type

# Does a line whose command is m and one more letter. False: there is no such command.
cdef bint process_meta_command(conn *c, const char *line, const char *end) noexcept nogil
# Answers an ms whose payload store_item has been given. nbytes: the length that is stored now, with its line end.
cdef void finalize_mset(conn *c, item *it, store_item_type result, int nbytes, uint64_t cas) noexcept nogil
