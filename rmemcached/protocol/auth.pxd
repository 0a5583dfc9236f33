"""Authentication of text connections (-Y). memcached: proto_text.c.

Called by `ascii` alone, as long as conn.auth_state is not AUTH_DONE. The server knows the users
(conn_hooks.authenticate).
"""

from rmemcached.protocol.conn cimport conn

# Takes `set <any> <any> <any> <n>` and `user password` of n bytes. Returns as try_read_command_ascii.
cdef bint try_read_command_asciiauth(conn *c) noexcept nogil
