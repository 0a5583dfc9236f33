"""The meta commands of the text protocol: mg, ms, md, ma, me, mn. memcached: proto_text.c.

Called by `ascii` alone. `meta_flags` reads the flags of a line; this module carries them out and answers.
"""

from libc.stdint cimport uint64_t

from rmemcached.protocol.conn cimport conn
from rmemcached.store.store cimport item, store_item_type

# Does a line with the command m and a second letter. False: no such command.
cdef bint process_meta_command(conn *c, const char *line, const char *end) noexcept nogil
# Answers an ms, for complete_nread_ascii. result: store_item's, for the item `it`. nbytes: the length of the value now
# stored, with its line end. cas: its CAS value.
cdef void finalize_mset(conn *c, item *it, store_item_type result, int nbytes, uint64_t cas) noexcept nogil
