"""The transports: functions of each, then the table (see transport.pxd)."""

from libc.stdint cimport uint16_t, uint64_t
from libc.string cimport memcpy, memset, strlen
from posix.uio cimport iovec

from rmemcached.protocol.stats_text cimport stat_append, stat_buf
from rmemcached.rdma.device cimport rdma_device, rdma_limits
from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH, RDMA_TRANSPORTS, SHM_MEMORY_PARTS, SHM_REPLY_KEY, SHM_REQUEST_KEY, TRANSPORT_SOFT_IW,
    TRANSPORT_SOFT_SHM, attach_request, get_attach, get_shm_request, transport_name,
)
from rmemcached.streams.stream cimport plain_stream, stream, stream_send
from rmemcached.sys.linux cimport (
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_SPACE, MSG_DONTWAIT, MSG_NOSIGNAL, SCM_RIGHTS, SOL_SOCKET, cmsghdr,
    msghdr, sendmsg,
)
from rmemcached.verbs.iwarp cimport MPA_REQUEST_KEY
from rmemcached.verbs.soft cimport (
    soft_iw_accept, soft_iw_options, soft_iw_parse_request, soft_iw_reject, soft_iw_request, soft_provider,
    soft_qp_counters, soft_qp_fault, soft_qp_terminated, soft_qp_write_unit, soft_shm_attach, soft_shm_limit,
    soft_shm_limits, soft_shm_query, soft_shm_usage,
)
from rmemcached.verbs.verbs cimport ibv_context, ibv_qp

cdef enum:
    INLINE_MOST = 256            # transport_ops.inline_data, where a copy is faster than a completion
    PAIR_SHARE = 4               # soft_shm maps 1 / PAIR_SHARE of limits.peer_memory for a queue pair, at most
    PAIR_REGIONS = 256           # regions of clients' memory mapped for a queue pair
    PEER_REGIONS = 16384         # ... and for all queue pairs: a quarter of the mappings of a process in Linux


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


cdef bint iw_accept(const rdma_device *dev, ibv_qp *qp, stream *s, const char *data, size_t received,
                    const int *memory) noexcept nogil:
    cdef soft_iw_options options
    memset(&options, 0, sizeof(options))
    options.crc = dev.limits.crc
    options.ird = <uint16_t>dev.limits.ird
    options.ord = <uint16_t>dev.limits.ord
    options.cover = NULL if s.calls == &plain_stream else s
    return soft_iw_accept(qp, s.fd, data, received, &options) == 0


cdef void iw_refuse(stream *s, const char *data, size_t received) noexcept nogil:
    cdef soft_iw_request request
    if soft_iw_parse_request(data, received, &request) > 0:
        soft_iw_reject(s, data, received, NULL, 0)


cdef void iw_append_stats(const soft_qp_counters *counts, ibv_context *context, stat_buf *out) noexcept nogil:
    stat_append(out, b"iw_rx_fpdus", counts.rx_fpdus)
    stat_append(out, b"iw_tx_fpdus", counts.tx_fpdus)
    stat_append(out, b"iw_rx_bytes", counts.rx_bytes)
    stat_append(out, b"iw_tx_bytes", counts.tx_bytes)
    stat_append(out, b"iw_rx_staged_bytes", counts.rx_staged_bytes)
    stat_append(out, b"iw_terminates_sent", counts.terminates_sent)
    stat_append(out, b"iw_terminates_received", counts.terminates_received)


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


cdef bint shm_accept(const rdma_device *dev, ibv_qp *qp, stream *s, const char *data, size_t received,
                     const int *memory) noexcept nogil:
    # The reply comes first: behind the reply the socket belongs to the queue pair.
    if not send_reply(s.fd, memory):
        return False
    return soft_shm_attach(qp, s.fd, <uint16_t>dev.limits.ird, <uint16_t>dev.limits.ord) == 0


cdef void shm_refuse(stream *s, const char *data, size_t received) noexcept nogil:
    cdef const char *refusal = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
    cdef attach_request request
    if get_shm_request(data, received, &request) > 0:
        stream_send(s, refusal, strlen(refusal))


cdef int shm_limit_memory(ibv_context *context, const rdma_limits *limits) noexcept nogil:
    """Limits the mappings of clients' memory. No mapping may allocate a page for a client (soft_shm_limits.paid)."""
    cdef soft_shm_limits windows
    windows.bytes = <uint64_t>limits.peer_memory << 20
    windows.pair_bytes = min(windows.bytes // PAIR_SHARE, <uint64_t>1 << 40)
    windows.pair_regions = PAIR_REGIONS
    windows.regions = PEER_REGIONS
    windows.paid = True
    windows.nobody = limits.nobody
    return soft_shm_limit(context, &windows)


cdef void shm_append_stats(const soft_qp_counters *counts, ibv_context *context, stat_buf *out) noexcept nogil:
    cdef soft_shm_usage mapped
    memset(&mapped, 0, sizeof(mapped))
    if context != NULL:
        soft_shm_query(context, &mapped)
    stat_append(out, b"shm_rx_bytes", counts.rx_bytes)
    stat_append(out, b"shm_tx_bytes", counts.tx_bytes)
    stat_append(out, b"shm_rx_staged_bytes", counts.rx_staged_bytes)
    stat_append(out, b"shm_one_sided", counts.one_sided)
    stat_append(out, b"shm_terminates_sent", counts.terminates_sent)
    stat_append(out, b"shm_terminates_received", counts.terminates_received)
    stat_append(out, b"shm_mapped_regions", mapped.regions)
    stat_append(out, b"shm_mapped_bytes", mapped.bytes)
    stat_append(out, b"shm_declined_offers", mapped.declined)


# ---- the table -------------------------------------------------------------------------------------------------------

# Each row has every entry, in the order of transport_ops. A missing entry ends the build of script/test.
cdef transport_ops[RDMA_TRANSPORTS] rows = [
    transport_ops(
        name=transport_name(TRANSPORT_SOFT_IW), provider=soft_provider(), device=b"soft_iw0",
        near=False, rings=False, pins=False,
        inline_data=0,           # the provider would copy the data twice
        descriptors=2,           # the lifeline, and the stream
        key=MPA_REQUEST_KEY, parse=iw_parse, accept=iw_accept, refuse=iw_refuse,
        limit_memory=NULL, write_unit=soft_qp_write_unit, terminated=soft_qp_terminated, fault=soft_qp_fault,
        append_stats=iw_append_stats),
    transport_ops(
        name=transport_name(TRANSPORT_SOFT_SHM), provider=soft_provider(), device=b"soft_shm0",
        near=True, rings=True, pins=False,
        inline_data=INLINE_MOST,
        descriptors=5,           # the lifeline, the stream, two bells, and a region that waits for its seal
        key=SHM_REQUEST_KEY, parse=get_shm_request, accept=shm_accept, refuse=shm_refuse,
        limit_memory=shm_limit_memory, write_unit=NULL, terminated=soft_qp_terminated, fault=soft_qp_fault,
        append_stats=shm_append_stats),
    transport_ops(
        name=transport_name(TRANSPORT_VERBS), provider=NULL, device=NULL,
        near=False, rings=True, pins=True,
        inline_data=INLINE_MOST,
        descriptors=1,           # the lifeline, or the descriptor of rdma_cm
        key=NULL, parse=NULL, accept=NULL, refuse=NULL,
        limit_memory=NULL, write_unit=NULL, terminated=NULL, fault=NULL, append_stats=NULL),
]


cdef const transport_ops *transport_of(rdma_transport transport) noexcept nogil:
    return &rows[transport]
