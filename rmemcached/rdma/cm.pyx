"""Reads, accepts and rejects requests of rdma_cm (see cm.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint16_t
from libc.string cimport memset, strlen

from rmemcached.rdma.device cimport RDMA_LANE_BYTES, reads_answered
from rmemcached.rdma.wire cimport (
    RDMA_CREDITS_MAX, RDMA_CREDITS_MIN, RDMA_LANE_BYTES_MAX, RDMA_LANE_BYTES_MIN, RDMA_MSGSIZE_MAX, RDMA_MSGSIZE_MIN,
    RDMA_VERSION, WELCOME_LENGTH, get_hello, put_welcome, rdma_hello, rdma_welcome,
)
from rmemcached.verbs.system_cm cimport CM_REJECT_DATA, cm_accept, cm_param, cm_reject


cdef const char *read_hello(const rdma_request *request, exchange_request *out) noexcept nogil:
    cdef rdma_hello hello
    memset(out, 0, sizeof(exchange_request))
    if not get_hello(request.private_data, CM_REQUEST_DATA, &hello):
        return b"the private data does not begin with rdma"
    out.version = hello.version
    out.credits = hello.credits
    out.msgsize = hello.msgsize
    out.lane_bytes = hello.lane_bytes
    out.ord = request.responder_resources
    out.ird = request.initiator_depth
    if out.version != RDMA_VERSION:
        return NULL
    if (not RDMA_CREDITS_MIN <= out.credits <= RDMA_CREDITS_MAX
            or not RDMA_MSGSIZE_MIN <= out.msgsize <= RDMA_MSGSIZE_MAX
            or not RDMA_LANE_BYTES_MIN <= out.lane_bytes <= RDMA_LANE_BYTES_MAX):
        return b"a value is out of range"
    if out.ird == 0:
        return b"the client answers no RDMA READ"
    return NULL


cdef bint send_welcome(const rdma_device *dev, uint32_t worker, uint32_t qpn, const exchange_request *client, int cm_fd,
                       uint32_t id) noexcept nogil:
    cdef char data[WELCOME_LENGTH]
    cdef rdma_welcome welcome
    cdef cm_param param
    welcome.both.version = RDMA_VERSION
    welcome.both.credits = <uint16_t>dev.limits.credits
    welcome.both.msgsize = dev.limits.msgsize
    welcome.both.lane_bytes = RDMA_LANE_BYTES
    welcome.eager = dev.limits.eager
    welcome.lanes = dev.limits.lanes
    welcome.workers = dev.limits.workers
    welcome.worker = worker
    welcome.direct = dev.remote
    put_welcome(data, &welcome)
    param.qpn = qpn
    param.responder_resources = reads_answered(dev, client.ord)
    param.initiator_depth = min(dev.limits.ord, <unsigned int>client.ird)
    param.private_data = data
    param.length = WELCOME_LENGTH
    return cm_accept(cm_fd, id, &param) == 0


cdef void rdma_cm_refuse(int cm_fd, uint32_t id, const char *line) noexcept nogil:
    cm_reject(cm_fd, id, line, min(strlen(line), <size_t>CM_REJECT_DATA))
