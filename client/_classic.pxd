"""Requests of the classic protocol, for servers and proxies that do not know meta commands (doc/protocol.txt).

Their answers are read as the meta replies that say the same (_reply.pxd). Arguments are those of _commands.pxd.
"""

from rmemcached.client._modes cimport store_mode
from rmemcached.client._stream cimport Stream

# get, gets, gat or gats, without its end.
cdef int put_classic_fetch(Stream s, bytes key, bint with_cas, bytes expire) except -1
# Of a command with a value, up to the value.
cdef int put_classic_store(Stream s, store_mode mode, bytes key, size_t length, bytes flags, bytes expire, bytes cas,
                           bint quiet) except -1
# Whether the VALUE line just read is that of the key.
cdef bint is_value_of(Stream s, bytes key) noexcept
# A command of a key, and of a number if there is one.
cdef int put_classic(Stream s, const char *command, bytes key, bytes number, bint quiet) except -1
