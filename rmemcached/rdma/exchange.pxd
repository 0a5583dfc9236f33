"""The exchange line of docs/rdma-protocol.md, section 2: the server reads the client's and writes its own.

Functions on borrowed text: no I/O, no state, no allocation. Any thread.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from rmemcached.streams.tls cimport tls_key
from rmemcached.verbs.verbs cimport ibv_gid


# The client's line. Numbers are in the ranges of wire.pxd, and missing numbers have their defaults. The strings point
# into the line; a missing string is NULL.
cdef struct exchange_request:
    unsigned long version
    unsigned long qpn
    unsigned long psn
    unsigned long lid
    unsigned long mtu
    unsigned long credits
    unsigned long msgsize
    unsigned long ird
    unsigned long ord
    unsigned long crc
    unsigned long netns
    unsigned long lane_bytes
    unsigned long direct         # 1: the client can read the memory itself (docs/direct-reads.md)
    unsigned long tls            # 1: the client wants a stream on the network to be inside TLS
    ibv_gid gid
    const char *host
    size_t host_length
    const char *transport
    size_t transport_length

# The server's line.
cdef struct exchange_offer:
    const char *transport
    uint32_t qpn
    uint32_t psn
    const ibv_gid *gid
    unsigned int lid
    unsigned int mtu
    unsigned int credits
    unsigned int msgsize
    unsigned int ird
    unsigned int ord
    unsigned int eager
    bint crc
    const uint8_t *token         # NULL: the transport needs none
    const tls_key *key           # of the stream's TLS; NULL: the stream has none
    const char *path             # NULL: the socket of the lifeline, or none
    unsigned int workers
    unsigned int worker
    unsigned int lanes
    unsigned int lane_bytes
    bint direct                  # items can be read by READs
    const char *memory           # which clients get the items' memory, or why none does; NULL: the line tells neither


# Fills *out. NULL, or the fault of the line. The caller checks the version: a line of another version has no fault
# here.
cdef const char *parse_exchange(const char *line, size_t length, exchange_request *out) noexcept nogil
# Writes the server's line with its \r\n, as far as it fits into `size` bytes.
cdef void write_offer(const exchange_offer *offer, char *out, size_t size) noexcept nogil
# Whether the text is `name`.
cdef bint key_is(const char *text, size_t length, const char *name) noexcept nogil
