"""The binary protocol. The replies are memcached 1.6.45's (proto_bin.c; memcached's wiki: BinaryProtocolRevamped).

Called by `drive_machine` alone, in the thread of the connection's worker. The packets' format is in `protocol_binary`.
"""

from rmemcached.protocol.conn cimport conn

# Does a command of the input. False: header, extras and key are not complete yet. On return the state says what comes
# next.
cdef bint try_read_command_binary(conn *c) noexcept nogil
# The payload of a storage command is complete: stores the item and answers.
cdef void complete_nread_binary(conn *c) noexcept nogil
# Answers AUTH or STEP of SASL with the outcome in the connection's session, which the worker has taken. The connection
# leaves the state conn_auth.
cdef void complete_sasl_binary(conn *c) noexcept nogil
