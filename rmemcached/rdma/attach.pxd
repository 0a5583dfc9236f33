"""The second connection of a soft_iw or soft_shm queue pair (docs/rdma-protocol.md, section 3).

A worker that has accepted a socket does not know for which queue pair it is, nor which worker has that: the request
names it by number and token, and the device's table finds it. From then on the socket is the provider's.
"""

from libc.stddef cimport size_t

from rmemcached.rdma.device cimport rdma_device

# `received` octets were read from fd, which begin like the request of a stream of dev's transport. 0: more are needed;
# 1: fd now belongs to a queue pair; -1: refused, the caller closes fd. Any thread. Not for TRANSPORT_VERBS.
cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil
