"""The text protocol: classic and meta commands. It answers what 1.6.45 answers (proto_text.c, proto_parser.c)."""

from rmemcached.protocol.conn cimport conn

cdef bint try_read_command_ascii(conn *c) noexcept nogil
cdef void complete_nread_ascii(conn *c) noexcept nogil
