"""The connection state machine. It does no I/O: it consumes input, appends replies, and says what it wants.

Engines call it (`server/worker`, `server/udp`, `rdma_conn`), each in the thread that owns the connection;
rmemcached/protocol/conn.pxd says what goes in and comes out. It calls `ascii` and `binary` for commands and payloads.
"""

from rmemcached.protocol.conn cimport conn, conn_want

# Does as many of the commands in the input as reqs_per_event and the bounds of the output allow. What it returns holds
# for the state that the connection is in then: a call that has not been given what was wanted returns the same again.
# Not to be called while the connection is lent (WANT_LENT).
cdef conn_want drive_machine(conn *c) noexcept nogil
