"""The text protocol: the classic commands, and the choice of the module that does a line. It answers what 1.6.45
answers (proto_text.c, proto_parser.c).

Called by `drive_machine` alone. It calls `meta`, `admin`, `admin_stats` and `auth` for the lines that are theirs.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.store.store cimport key_ahead

cdef enum:
    LINE_MAX_LENGTH = 2048   # a longer command line ends the connection, unless it is a multiget

# Does one command of the input. False: it is not complete yet. On return the state says what is next.
cdef bint try_read_command_ascii(conn *c) noexcept nogil
# The payload of a storage command is complete: stores the item and answers.
cdef void complete_nread_ascii(conn *c) noexcept nogil
# The key of the command that begins at p, for items_ahead; of a get the first one. Returns where the next command
# begins, which may be behind `end`. NULL: the line is not complete, or no plain command of a key.
cdef const char *command_ahead(const char *p, const char *end, key_ahead *k) noexcept nogil
