"""The exchange line of docs/rdma-protocol.md, section 2, as the server reads it. Borrowed text, no allocation."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from rmemcached.verbs.verbs cimport ibv_gid


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
    ibv_gid gid
    unsigned long netns
    bint has_qpn
    const char *host
    size_t host_length
    const char *transport
    size_t transport_length


# NULL, or what is wrong with the line. An unknown version is not wrong: the caller looks at it first.
cdef const char *parse_exchange(const char *line, size_t length, exchange_request *out) noexcept nogil
cdef bint key_is(const char *key, size_t nkey, const char *name) noexcept nogil
# Writes 2 * n digits and a NUL.
cdef void to_hex(const uint8_t *data, size_t n, char *out) noexcept nogil
