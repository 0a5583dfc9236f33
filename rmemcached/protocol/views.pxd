"""The commands rdma_view and rdma_release: a client looks at items where they lie (docs/direct-reads.md, section 5).

Called by `ascii` alone, if the store's memory is for clients to read.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# rdma_view <key>: answers with the value's place, and pins the item, so the value stays there.
cdef void process_view_command(conn *c, const token *t, int n) noexcept nogil
# rdma_release <id>...: [p, end) are the ids. There is no answer.
cdef void process_release_command(conn *c, const char *p, const char *end) noexcept nogil
