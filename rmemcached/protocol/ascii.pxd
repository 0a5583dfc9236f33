"""The text protocol: the classic commands, and the choice of the module for a line. The replies are those of memcached
1.6.45 (proto_text.c, proto_parser.c).

`drive_machine` calls these functions, except command_ahead: the workers call it before they serve input, and this
module for commands that come together. The module calls `meta`, `admin`, `admin_stats`, `auth` and `views` for their
lines.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.store.store cimport key_ahead

cdef enum:
    LINE_MAX_LENGTH = 2048   # a longer command line ends the connection, except for a multiget

# Does a command of the input. False: the command is not complete yet. On return the state says what comes next.
cdef bint try_read_command_ascii(conn *c) noexcept nogil
# Answers further keys of a get, in conn_resume. False: the rest of its line is needed. On return the state says
# what comes next.
cdef bint resume_get(conn *c) noexcept nogil
# The payload of a storage command is complete: stores the item and answers.
cdef void complete_nread_ascii(conn *c) noexcept nogil
# Finds the key of the command at p, for items_ahead; of a get the first key. Returns the beginning of the next command,
# perhaps behind `end`. NULL: the line is not complete, or its key cannot be prefetched (as for gat).
cdef const char *command_ahead(const char *p, const char *end, key_ahead *k) noexcept nogil
