"""The binary protocol. It answers what 1.6.45 answers (proto_bin.c; memcached's wiki: BinaryProtocolRevamped).

Called by `drive_machine` alone. The packets' format is in `protocol_binary`.
"""

from rmemcached.protocol.conn cimport conn

# Does one command of the input. False: its header, extras and key are not there yet. On return the state says what is
# next.
cdef bint try_read_command_binary(conn *c) noexcept nogil
# The payload of a storage command is complete: stores the item and answers.
cdef void complete_nread_binary(conn *c) noexcept nogil
