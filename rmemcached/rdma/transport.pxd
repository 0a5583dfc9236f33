"""The second connection of a soft_iw or soft_shm queue pair (docs/rdma-protocol.md, section 3).

Not for TRANSPORT_VERBS.
"""

from libc.stddef cimport size_t

from rmemcached.rdma.device cimport rdma_device
from rmemcached.rdma.wire cimport attach_request
from rmemcached.verbs.verbs cimport ibv_qp

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
