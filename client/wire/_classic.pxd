"""Requests of the classic protocol, for servers and proxies without meta commands (doc/protocol.txt).

The functions of _commands.pxd with the same arguments call them for a Stream with `classic`. The answers are read as
the equivalent meta replies (_reply.pxd).
"""

from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._modes cimport store_mode

# Writes get, gets, gat or gats, without the line's end.
cdef int put_classic_fetch(Stream s, bytes key, bint with_cas, bytes expire) except -1
# Writes the line of a storage command. The caller adds the value.
cdef int put_classic_store(Stream s, store_mode mode, bytes key, size_t length, bytes flags, bytes expire, bytes cas,
                           bint quiet) except -1
# Whether the VALUE line just read has this key. If not, the Connection ends.
cdef bint is_value_of(Stream s, bytes key) noexcept
# Writes a command with a key, and with a number unless None.
cdef int put_classic(Stream s, const char *command, bytes key, bytes number, bint quiet) except -1
