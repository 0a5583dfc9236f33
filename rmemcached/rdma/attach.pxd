"""The second connection of a soft_iw or soft_shm queue pair (docs/rdma-protocol.md, section 3).

Any worker may read a request. The first octets of the token are the number of the queue pair's worker: the reader hands
the socket to this worker, and the worker finds the queue pair among its own. No worker looks at the objects of another
worker. Not for TRANSPORT_VERBS.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from rmemcached.rdma.device cimport rdma_device
from rmemcached.rdma.wire cimport attach_request
from rmemcached.verbs.verbs cimport ibv_qp

# An unguessable token for a queue pair of the worker with this number. False: the system has no random octets.
cdef bint make_token(uint8_t *token, uint32_t worker) noexcept nogil
# The number of a token's worker; of a forged token any number.
cdef uint32_t token_worker(const uint8_t *token) noexcept nogil

# data: the `received` bytes of a socket, which begin like a request for a stream of dev's transport. 1: the request is
# in *out, which points into data; 0: the request is not whole; -1: the data is no request. Any thread.
cdef int attach_parse(const rdma_device *dev, const char *data, size_t received, attach_request *out) noexcept nogil
# Answers a whole request, and gives the queue pair the stream: fd then belongs to the queue pair. False: the caller
# keeps fd, and refuses the request. Called by the owner of the queue pair. memory: SHM_MEMORY_PARTS descriptors of the
# items' memory, for the client; NULL: the client gets none.
cdef bint attach_accept(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                        const int *memory) noexcept nogil
# Refuses a whole request; an incomplete request gets no answer. The caller closes fd. Any thread.
cdef void attach_refuse(const rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil
