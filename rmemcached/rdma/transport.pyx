"""Requests for the streams of queue pairs (see transport.pxd)."""

from libc.stdint cimport uint16_t
from libc.string cimport memcpy, memset, strlen
from posix.uio cimport iovec

from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH, RDMA_TRANSPORTS, SHM_KEY_LENGTH, SHM_MEMORY_PARTS, SHM_REPLY_KEY, get_attach, get_shm_request,
)
from rmemcached.sys.linux cimport (
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_SPACE, MSG_DONTWAIT, MSG_NOSIGNAL, SCM_RIGHTS, SOL_SOCKET, cmsghdr,
    msghdr, send, sendmsg,
)
from rmemcached.verbs.soft cimport (
    soft_iw_accept, soft_iw_options, soft_iw_parse_request, soft_iw_reject, soft_iw_request, soft_shm_attach,
)

# Reads and answers the requests of a transport, with the contracts of transport.pxd.
cdef struct attach_functions:
    int (*parse)(const char *data, size_t received, attach_request *out) noexcept nogil
    bint (*accept)(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                   const int *memory) noexcept nogil
    void (*refuse)(int fd, const char *data, size_t received) noexcept nogil


# ---- soft_iw ---------------------------------------------------------------------------------------------------------

cdef int iw_parse(const char *data, size_t received, attach_request *out) noexcept nogil:
    cdef soft_iw_request request
    cdef int whole = soft_iw_parse_request(data, received, &request)
    if whole <= 0:
        return whole
    if request.private_length != ATTACH_LENGTH:
        return -1
    get_attach(request.private_data, out)
    return 1


cdef bint iw_accept(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                    const int *memory) noexcept nogil:
    cdef soft_iw_options options
    memset(&options, 0, sizeof(options))
    options.crc = dev.limits.crc
    options.ird = <uint16_t>dev.limits.ird
    options.ord = <uint16_t>dev.limits.ord
    return soft_iw_accept(qp, fd, data, received, &options) == 0


cdef void iw_refuse(int fd, const char *data, size_t received) noexcept nogil:
    cdef soft_iw_request request
    if soft_iw_parse_request(data, received, &request) > 0:
        soft_iw_reject(fd, data, received, NULL, 0)


# ---- soft_shm --------------------------------------------------------------------------------------------------------

cdef bint send_reply(int fd, const int *memory) noexcept nogil:
    """Sends the reply, and the descriptors of the items' memory unless `memory` is NULL."""
    cdef size_t length = SHM_MEMORY_PARTS * sizeof(int)
    cdef char control[64]
    cdef msghdr message
    cdef iovec iov
    cdef cmsghdr *header
    memset(&message, 0, sizeof(message))
    iov.iov_base = <void *>SHM_REPLY_KEY
    iov.iov_len = SHM_KEY_LENGTH
    message.msg_iov = &iov
    message.msg_iovlen = 1
    if memory != NULL:
        memset(control, 0, sizeof(control))
        message.msg_control = control
        message.msg_controllen = CMSG_SPACE(length)
        header = CMSG_FIRSTHDR(&message)
        header.cmsg_level = SOL_SOCKET
        header.cmsg_type = SCM_RIGHTS
        header.cmsg_len = CMSG_LEN(length)
        memcpy(CMSG_DATA(header), memory, length)
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == SHM_KEY_LENGTH


cdef bint shm_accept(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                     const int *memory) noexcept nogil:
    # The reply comes first: behind the reply the socket belongs to the queue pair.
    if not send_reply(fd, memory):
        return False
    return soft_shm_attach(qp, fd, <uint16_t>dev.limits.ird, <uint16_t>dev.limits.ord) == 0


cdef void shm_refuse(int fd, const char *data, size_t received) noexcept nogil:
    cdef const char *refusal = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
    cdef attach_request request
    if get_shm_request(data, received, &request) > 0:
        send(fd, refusal, strlen(refusal), MSG_NOSIGNAL | MSG_DONTWAIT)


# ---- for all ---------------------------------------------------------------------------------------------------------

# By transport. The queue pairs of verbs get no stream.
cdef attach_functions[RDMA_TRANSPORTS] functions = [
    attach_functions(parse=iw_parse, accept=iw_accept, refuse=iw_refuse),
    attach_functions(parse=get_shm_request, accept=shm_accept, refuse=shm_refuse),
    attach_functions(parse=NULL, accept=NULL, refuse=NULL),
]


cdef int attach_parse(const rdma_device *dev, const char *data, size_t received, attach_request *out) noexcept nogil:
    return functions[dev.transport].parse(data, received, out)


cdef bint attach_accept(const rdma_device *dev, ibv_qp *qp, int fd, const char *data, size_t received,
                        const int *memory) noexcept nogil:
    return functions[dev.transport].accept(dev, qp, fd, data, received, memory)


cdef void attach_refuse(const rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    functions[dev.transport].refuse(fd, data, received)
