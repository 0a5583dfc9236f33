"""The client's part of the exchange (docs/rdma-protocol.md, sections 2 and 3): text and bytes, no I/O."""

from libc.stdint cimport uint16_t, uint32_t

cdef class Offer:
    cdef readonly uint32_t qpn
    cdef readonly uint32_t psn
    cdef readonly uint16_t lid
    cdef readonly uint32_t mtu           # bytes; 0: unknown
    cdef readonly bytes gid              # 16 bytes
    cdef readonly bytes token            # 16 bytes for a second connection; empty: there is none
    cdef readonly bytes key              # of the second connection's TLS; empty: the server has given none
    cdef readonly str path               # of the second connection's UNIX socket; None: the lifeline's
    cdef readonly unsigned int credits
    cdef readonly size_t msgsize         # bytes
    cdef readonly size_t eager           # bytes
    cdef readonly unsigned int reads     # RDMA READs outstanding from the server at most
    cdef readonly unsigned int answers   # RDMA READs answered by the server at a time
    cdef readonly bint crc
    cdef readonly bint direct            # items can be read by READs (docs/direct-reads.md)
    cdef readonly str memory             # who gets the items' memory on this host, or why nobody does; empty: not said
    cdef readonly unsigned int workers   # of the server
    cdef readonly unsigned int lanes     # of the queue pair, at most
    cdef readonly size_t lane_bytes      # of each lane's payload, kept by the server

# Whether the client can use a server with this version and these limits, read from the exchange line or from the
# private data of rdma_cm's reply.
cdef bint makes_sense(unsigned int version, unsigned int credits, size_t msgsize, size_t lane_bytes,
                      unsigned int lanes, unsigned int workers) noexcept
