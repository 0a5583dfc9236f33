"""The connection state machine. It does no I/O: see rmemcached/protocol/conn.pxd for what goes in and comes out."""

from rmemcached.protocol.conn cimport conn, conn_want


cdef conn_want drive_machine(conn *c) noexcept nogil
