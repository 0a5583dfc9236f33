"""Reads of a server's memory by RDMA READ (docs/direct-reads.md, sections 8 and 9): of `verbs` and `soft_iw`.

The queue pair keeps a RemoteMemory (_reads.pyx): the addresses, remote keys and clock of the server's memory, as far as
known. One call at a time reads through the RemoteMemory; other calls ask the server meanwhile.
"""

from libc.stdint cimport int64_t

from rmemcached.client.api._connection cimport Connection

# The values of encoded keys: a list with (value, flags, CAS value) for each key, or None where the caller must ask the
# server. None: for all keys. The caller has entered the connection, which awaits no answer. Raises the same errors as
# Connection; the connection is useless then, and the caller asks the server on another connection.
cdef list read_values(Connection c, list keys)
# For benchmarks: reads a key's value likewise, and returns the time in nanoseconds. 0: only the server can tell. anew:
# without the remembered place of the item.
cdef int64_t time_read(Connection c, bytes key, bint anew) except -1
# Called after flush_all: every RemoteMemory reads its server's clock again before the next read, so that items older
# than the flush count as missing.
cdef void forget_clocks() noexcept
