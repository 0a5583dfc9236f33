"""The state machine of a connection, without I/O: the machine consumes input, appends replies, and returns its next
want.

Engines call drive_machine (`server/worker`, `server/udp`, `rdma_conn`), each in the thread that owns the connection;
rmemcached/protocol/conn.pxd describes input and output. drive_machine calls `ascii` and `binary` for commands and
payloads.
"""

from rmemcached.protocol.conn cimport conn, conn_want

# Does as many commands of the input as reqs_per_event and the bounds of the output allow, and returns the next want. A
# call before the want is met returns the same want. Not to be called while the connection is lent (WANT_LENT).
cdef conn_want drive_machine(conn *c) noexcept nogil
