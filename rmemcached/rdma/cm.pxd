"""The exchange through rdma_cm (docs/rdma-protocol.md, section 9): both ends' parameters travel in the private data
of the connection's request and reply.

Any thread.
"""

from libc.stdint cimport uint32_t

from rmemcached.rdma.device cimport rdma_device
from rmemcached.rdma.exchange cimport exchange_request
from rmemcached.verbs.system_cm cimport CM_REQUEST_DATA, cm_address

# The request of a client through rdma_cm.
cdef struct rdma_request:
    uint32_t id                  # rdma_cm's name of the connection, which has a descriptor of its own
    cm_address where
    unsigned int responder_resources
    unsigned int initiator_depth
    char private_data[CM_REQUEST_DATA]

# Fills *out from the request. NULL, or the fault of the request. The caller checks the version: a request of another
# version has no fault here.
cdef const char *read_hello(const rdma_request *request, exchange_request *out) noexcept nogil
# Accepts the connection for a queue pair in RTS of the worker with this number. False: the client has gone.
cdef bint send_welcome(const rdma_device *dev, uint32_t worker, uint32_t qpn, const exchange_request *client, int cm_fd,
                       uint32_t id) noexcept nogil
# Rejects the connection with a line (without \r\n) as the reason.
cdef void rdma_cm_refuse(int cm_fd, uint32_t id, const char *line) noexcept nogil
