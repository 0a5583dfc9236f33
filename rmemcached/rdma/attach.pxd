"""The second connection of a soft_iw or soft_shm queue pair (docs/rdma-protocol.md, section 3).

The worker that reads a request need not be the one that owns the queue pair. The first octets of a token are the number
of the worker that has made it: the reader learns from them whom to hand the socket to, and the owner finds the queue
pair among its own. No worker looks at what belongs to another. Not for TRANSPORT_VERBS.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from rmemcached.rdma.device cimport rdma_device
from rmemcached.rdma.wire cimport attach_request
from rmemcached.verbs.verbs cimport ibv_qp

# A token that nobody can guess, of a queue pair of the worker with this number. False: the system has no random octets.
cdef bint make_token(uint8_t *token, uint32_t worker) noexcept nogil
# The worker that has made a token. If the token is forged: any number.
cdef uint32_t token_worker(const uint8_t *token) noexcept nogil

# data: the `received` bytes that were read from a socket, which begin like a request for a stream of dev's transport.
# 1: *out is what it says, and points into data; 0: it is not whole; -1: it is none. Any thread.
cdef int attach_parse(const rdma_device *dev, const char *data, size_t received, attach_request *out) noexcept nogil
# Answers a whole request, and gives the queue pair the stream: then fd belongs to it. False: it cannot have it; fd is
# the caller's, who refuses. The owner of the queue pair.
# memory: SHM_MEMORY_PARTS descriptors of the items' memory, which the client gets; NULL: it gets none.
cdef bint attach_accept(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                        const int *memory) noexcept nogil
# Tells the peer, if data is a whole request. The caller closes fd. Any thread.
cdef void attach_refuse(const rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil
