"""The second connection of a soft_iw or soft_shm queue pair (docs/rdma-protocol.md, section 3).

The worker that reads a request need not be the one that owns the queue pair. The request names the queue pair by number
and token, the device's table finds it, and from then on the socket is the provider's.
"""

from libc.stddef cimport size_t

from rmemcached.rdma.device cimport rdma_device

# data: the `received` bytes that were read from fd, which begin like a request for a stream of dev's transport. 0: the
# request is not whole; 1: fd now belongs to a queue pair; -1: refused, the caller closes fd. Any thread. Not for
# TRANSPORT_VERBS.
cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil
