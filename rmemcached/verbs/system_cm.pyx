"""Commands of /dev/infiniband/rdma_cm (see system_cm.pxd): a header and a structure in one write()."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from rmemcached.sys.debug cimport assert_that
from rmemcached.sys.linux cimport (
    AF_INET, AF_INET6, O_CLOEXEC, O_NONBLOCK, O_RDWR, open, sockaddr, sockaddr_in, sockaddr_in6, write,
)
from rmemcached.verbs.port cimport ACK_TIMEOUT, RETRY_CNT, RNR_RETRY, verbs_port
from rmemcached.verbs.verbs cimport (
    IBV_QP_STATE, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_state,
)

cdef extern from "<rdma/rdma_user_cm.h>" nogil:
    enum:
        RDMA_USER_CM_CMD_CREATE_ID
        RDMA_USER_CM_CMD_DESTROY_ID
        RDMA_USER_CM_CMD_CONNECT
        RDMA_USER_CM_CMD_LISTEN
        RDMA_USER_CM_CMD_ACCEPT
        RDMA_USER_CM_CMD_REJECT
        RDMA_USER_CM_CMD_INIT_QP_ATTR
        RDMA_USER_CM_CMD_GET_EVENT
        RDMA_USER_CM_CMD_SET_OPTION
        RDMA_USER_CM_CMD_MIGRATE_ID
        RDMA_USER_CM_CMD_QUERY
        RDMA_USER_CM_CMD_BIND
        RDMA_USER_CM_CMD_RESOLVE_ADDR
        RDMA_USER_CM_CMD_RESOLVE_ROUTE
        RDMA_USER_CM_QUERY_ADDR
        RDMA_PS_TCP
        RDMA_OPTION_ID
        RDMA_OPTION_ID_AFONLY

    struct rdma_ucm_cmd_hdr:
        uint32_t cmd
        uint16_t size_in "in"
        uint16_t size_out "out"

    struct rdma_ucm_create_id:
        uint64_t uid
        uint64_t response
        uint16_t ps
        uint8_t qp_type

    struct rdma_ucm_create_id_resp:
        uint32_t id

    struct rdma_ucm_destroy_id:
        uint64_t response
        uint32_t id

    struct rdma_ucm_destroy_id_resp:
        uint32_t events_reported

    struct kernel_address "__kernel_sockaddr_storage":
        pass

    struct rdma_ucm_bind:
        uint32_t id
        uint16_t addr_size
        kernel_address addr

    struct rdma_ucm_resolve_addr:
        uint32_t id
        uint32_t timeout_ms
        uint16_t src_size
        uint16_t dst_size
        kernel_address src_addr
        kernel_address dst_addr

    struct rdma_ucm_resolve_route:
        uint32_t id
        uint32_t timeout_ms

    struct rdma_ucm_query:
        uint64_t response
        uint32_t id
        uint32_t option

    struct rdma_ucm_query_addr_resp:
        uint64_t node_guid
        uint8_t port_num
        uint16_t src_size
        uint16_t dst_size
        kernel_address src_addr
        kernel_address dst_addr

    struct rdma_ucm_conn_param:
        uint32_t qp_num
        uint8_t private_data[256]
        uint8_t private_data_len
        uint8_t responder_resources
        uint8_t initiator_depth
        uint8_t flow_control
        uint8_t retry_count
        uint8_t rnr_retry_count
        uint8_t valid

    struct rdma_ucm_connect:
        rdma_ucm_conn_param conn_param
        uint32_t id

    struct rdma_ucm_listen:
        uint32_t id
        uint32_t backlog

    struct rdma_ucm_accept:
        uint64_t uid
        rdma_ucm_conn_param conn_param
        uint32_t id

    struct rdma_ucm_reject:
        uint32_t id
        uint8_t private_data_len
        uint8_t private_data[256]

    struct rdma_ucm_init_qp_attr:
        uint64_t response
        uint32_t id
        uint32_t qp_state

    struct rdma_ucm_get_event:
        uint64_t response

    union event_param:           # exists only as param of rdma_ucm_event_resp
        rdma_ucm_conn_param conn

    struct rdma_ucm_event_resp:
        uint64_t uid
        uint32_t id
        uint32_t event
        uint32_t status
        event_param param

    struct rdma_ucm_set_option:
        uint64_t optval
        uint32_t id
        uint32_t level
        uint32_t optname
        uint32_t optlen

    struct rdma_ucm_migrate_id:
        uint64_t response
        uint32_t id
        uint32_t fd

    struct rdma_ucm_migrate_resp:
        uint32_t events_reported

    struct ib_uverbs_global_route:
        uint8_t dgid[16]
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class

    struct ib_uverbs_ah_attr:
        ib_uverbs_global_route grh
        uint16_t dlid
        uint8_t sl
        uint8_t src_path_bits
        uint8_t static_rate
        uint8_t is_global
        uint8_t port_num

    struct ib_uverbs_qp_attr:
        uint32_t qp_attr_mask
        uint32_t path_mtu
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        uint32_t qp_access_flags
        ib_uverbs_ah_attr ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry

cdef enum:
    COMMAND_MAX = 512            # bytes of the longest command
    UID = 1                      # any but 0: the kernel reports no events of connections without a uid
    QPT_RC = 2                   # the kernel's IB_QPT_RC


cdef int command(int cm_fd, uint32_t number, const void *data, size_t length, size_t answer) noexcept nogil:
    """Runs a command. answer: size of the kernel's answer to the address in data's `response`. 0 or an errno value."""
    cdef char whole[COMMAND_MAX]
    cdef rdma_ucm_cmd_hdr header
    assert_that(sizeof(header) + length <= sizeof(whole))
    header.cmd = number
    header.size_in = <uint16_t>length
    header.size_out = <uint16_t>answer
    memcpy(whole, &header, sizeof(header))
    memcpy(whole + sizeof(header), data, length)
    while write(cm_fd, whole, sizeof(header) + length) < 0:
        if errno != EINTR:
            return errno
    return 0


cdef size_t address_size(const sockaddr *addr) noexcept nogil:
    if addr.sa_family == AF_INET:
        return sizeof(sockaddr_in)
    return sizeof(sockaddr_in6) if addr.sa_family == AF_INET6 else 0


cdef void copy_address(sockaddr_in6 *out, const void *from_kernel, size_t size) noexcept nogil:
    memset(out, 0, sizeof(sockaddr_in6))
    memcpy(out, from_kernel, min(size, sizeof(sockaddr_in6)))


cdef int cm_open() noexcept nogil:
    return open(b"/dev/infiniband/rdma_cm", O_RDWR | O_NONBLOCK | O_CLOEXEC)


cdef int cm_create(int cm_fd, uint32_t *id) noexcept nogil:
    cdef rdma_ucm_create_id cmd
    cdef rdma_ucm_create_id_resp answer
    cdef int error
    memset(&cmd, 0, sizeof(cmd))
    answer.id = 0
    cmd.uid = UID
    cmd.response = <uint64_t><uintptr_t>&answer
    cmd.ps = RDMA_PS_TCP
    cmd.qp_type = QPT_RC
    error = command(cm_fd, RDMA_USER_CM_CMD_CREATE_ID, &cmd, sizeof(cmd), sizeof(answer))
    id[0] = answer.id
    return error


cdef int cm_destroy(int cm_fd, uint32_t id) noexcept nogil:
    cdef rdma_ucm_destroy_id cmd
    cdef rdma_ucm_destroy_id_resp answer
    memset(&cmd, 0, sizeof(cmd))
    cmd.response = <uint64_t><uintptr_t>&answer
    cmd.id = id
    return command(cm_fd, RDMA_USER_CM_CMD_DESTROY_ID, &cmd, sizeof(cmd), sizeof(answer))


cdef int cm_bind(int cm_fd, uint32_t id, const sockaddr *addr) noexcept nogil:
    cdef rdma_ucm_bind cmd
    cdef rdma_ucm_set_option option
    cdef int one = 1
    cdef int error
    # The wildcards of IPv4 and IPv6 can share a port only if both have this option.
    memset(&option, 0, sizeof(option))
    option.optval = <uint64_t><uintptr_t>&one
    option.id = id
    option.level = RDMA_OPTION_ID
    option.optname = RDMA_OPTION_ID_AFONLY
    option.optlen = sizeof(one)
    error = command(cm_fd, RDMA_USER_CM_CMD_SET_OPTION, &option, sizeof(option), 0)
    if error:
        return error
    memset(&cmd, 0, sizeof(cmd))
    cmd.id = id
    cmd.addr_size = <uint16_t>address_size(addr)
    memcpy(&cmd.addr, addr, cmd.addr_size)
    return command(cm_fd, RDMA_USER_CM_CMD_BIND, &cmd, sizeof(cmd), 0)


cdef int cm_listen(int cm_fd, uint32_t id, int backlog) noexcept nogil:
    cdef rdma_ucm_listen cmd
    cmd.id = id
    cmd.backlog = <uint32_t>backlog
    return command(cm_fd, RDMA_USER_CM_CMD_LISTEN, &cmd, sizeof(cmd), 0)


cdef int cm_resolve_addr(int cm_fd, uint32_t id, const sockaddr *addr, uint32_t timeout) noexcept nogil:
    cdef rdma_ucm_resolve_addr cmd
    memset(&cmd, 0, sizeof(cmd))
    cmd.id = id
    cmd.timeout_ms = timeout
    cmd.dst_size = <uint16_t>address_size(addr)
    memcpy(&cmd.dst_addr, addr, cmd.dst_size)
    return command(cm_fd, RDMA_USER_CM_CMD_RESOLVE_ADDR, &cmd, sizeof(cmd), 0)


cdef int cm_resolve_route(int cm_fd, uint32_t id, uint32_t timeout) noexcept nogil:
    cdef rdma_ucm_resolve_route cmd
    cmd.id = id
    cmd.timeout_ms = timeout
    return command(cm_fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, &cmd, sizeof(cmd), 0)


cdef void fill_param(rdma_ucm_conn_param *out, const cm_param *param) noexcept nogil:
    out.qp_num = param.qpn
    out.private_data_len = <uint8_t>param.length
    if param.length:
        memcpy(out.private_data, param.private_data, param.length)
    out.responder_resources = <uint8_t>param.responder_resources
    out.initiator_depth = <uint8_t>param.initiator_depth
    out.flow_control = 1
    out.retry_count = RETRY_CNT
    out.rnr_retry_count = RNR_RETRY
    out.valid = 1


cdef int cm_connect(int cm_fd, uint32_t id, const cm_param *param) noexcept nogil:
    cdef rdma_ucm_connect cmd
    memset(&cmd, 0, sizeof(cmd))
    cmd.id = id
    fill_param(&cmd.conn_param, param)
    return command(cm_fd, RDMA_USER_CM_CMD_CONNECT, &cmd, sizeof(cmd), 0)


cdef int cm_accept(int cm_fd, uint32_t id, const cm_param *param) noexcept nogil:
    cdef rdma_ucm_accept cmd
    memset(&cmd, 0, sizeof(cmd))
    cmd.uid = UID
    cmd.id = id
    fill_param(&cmd.conn_param, param)
    return command(cm_fd, RDMA_USER_CM_CMD_ACCEPT, &cmd, sizeof(cmd), 0)


cdef int cm_confirm(int cm_fd, uint32_t id) noexcept nogil:
    cdef rdma_ucm_accept cmd
    memset(&cmd, 0, sizeof(cmd))
    cmd.uid = UID
    cmd.id = id
    return command(cm_fd, RDMA_USER_CM_CMD_ACCEPT, &cmd, sizeof(cmd), 0)


cdef int cm_reject(int cm_fd, uint32_t id, const void *private_data, size_t length) noexcept nogil:
    cdef rdma_ucm_reject cmd
    memset(&cmd, 0, sizeof(cmd))
    cmd.id = id
    cmd.private_data_len = <uint8_t>length
    memcpy(cmd.private_data, private_data, length)
    return command(cm_fd, RDMA_USER_CM_CMD_REJECT, &cmd, sizeof(cmd), 0)


cdef int cm_get_event(int cm_fd, cm_event *out) noexcept nogil:
    cdef rdma_ucm_get_event cmd
    cdef rdma_ucm_event_resp answer
    cdef int error
    memset(&answer, 0, sizeof(answer))
    cmd.response = <uint64_t><uintptr_t>&answer
    error = command(cm_fd, RDMA_USER_CM_CMD_GET_EVENT, &cmd, sizeof(cmd), sizeof(answer))
    if error:
        return error
    out.type = <cm_event_type>answer.event
    out.id = answer.id
    out.status = <int>answer.status
    out.responder_resources = answer.param.conn.responder_resources
    out.initiator_depth = answer.param.conn.initiator_depth
    out.length = answer.param.conn.private_data_len
    memcpy(out.private_data, answer.param.conn.private_data, CM_DATA_MAX)
    return 0


cdef int cm_query(int cm_fd, uint32_t id, cm_address *out) noexcept nogil:
    cdef rdma_ucm_query cmd
    cdef rdma_ucm_query_addr_resp answer
    cdef int error
    memset(&cmd, 0, sizeof(cmd))
    memset(&answer, 0, sizeof(answer))
    cmd.response = <uint64_t><uintptr_t>&answer
    cmd.id = id
    cmd.option = RDMA_USER_CM_QUERY_ADDR
    error = command(cm_fd, RDMA_USER_CM_CMD_QUERY, &cmd, sizeof(cmd), sizeof(answer))
    out.node_guid = answer.node_guid
    out.port_num = answer.port_num
    copy_address(&out.local, &answer.src_addr, answer.src_size)
    copy_address(&out.peer, &answer.dst_addr, answer.dst_size)
    return error


cdef int cm_migrate(int to_fd, int from_fd, uint32_t id) noexcept nogil:
    cdef rdma_ucm_migrate_id cmd
    cdef rdma_ucm_migrate_resp answer
    cmd.response = <uint64_t><uintptr_t>&answer
    cmd.id = id
    cmd.fd = <uint32_t>from_fd
    return command(to_fd, RDMA_USER_CM_CMD_MIGRATE_ID, &cmd, sizeof(cmd), sizeof(answer))


cdef int cm_modify_qp(int cm_fd, uint32_t id, const verbs_port *port, ibv_qp *qp, ibv_qp_state state,
                      unsigned int value) noexcept nogil:
    cdef rdma_ucm_init_qp_attr cmd
    cdef ib_uverbs_qp_attr answer
    cdef ibv_qp_attr attr
    cdef int error
    memset(&answer, 0, sizeof(answer))
    cmd.response = <uint64_t><uintptr_t>&answer
    cmd.id = id
    cmd.qp_state = <uint32_t>state
    error = command(cm_fd, RDMA_USER_CM_CMD_INIT_QP_ATTR, &cmd, sizeof(cmd), sizeof(answer))
    if error:
        return error
    if not answer.qp_attr_mask & IBV_QP_STATE:
        # iWARP: the kernel brings the queue pair to RTS together with its stream.
        return 0
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = state
    attr.path_mtu = <ibv_mtu>answer.path_mtu
    attr.rq_psn = answer.rq_psn
    attr.sq_psn = answer.sq_psn
    attr.dest_qp_num = answer.dest_qp_num
    # The kernel's flags would let the peer read and write remotely, in spite of the program's choice.
    attr.qp_access_flags = value if state == IBV_QPS_INIT else answer.qp_access_flags
    attr.pkey_index = answer.pkey_index
    attr.port_num = answer.port_num
    # Before the connection is accepted, the kernel knows only the READs wished by the peer. So `value` counts.
    attr.max_rd_atomic = <uint8_t>value if state == IBV_QPS_RTS else answer.max_rd_atomic
    attr.max_dest_rd_atomic = <uint8_t>value if state == IBV_QPS_RTR else answer.max_dest_rd_atomic
    attr.min_rnr_timer = answer.min_rnr_timer
    attr.retry_cnt = <uint8_t>min(answer.retry_cnt, <uint8_t>RETRY_CNT)
    attr.rnr_retry = answer.rnr_retry
    attr.timeout = answer.timeout
    if port.ethernet:
        # On Ethernet no subnet manager knows the lifetime of packets, and the kernel assumes seconds: too long.
        attr.timeout = <uint8_t>min(attr.timeout, <uint8_t>ACK_TIMEOUT)
    memcpy(attr.ah_attr.grh.dgid.raw, answer.ah_attr.grh.dgid, 16)
    attr.ah_attr.grh.flow_label = answer.ah_attr.grh.flow_label
    attr.ah_attr.grh.sgid_index = answer.ah_attr.grh.sgid_index
    attr.ah_attr.grh.hop_limit = answer.ah_attr.grh.hop_limit
    attr.ah_attr.grh.traffic_class = answer.ah_attr.grh.traffic_class
    attr.ah_attr.dlid = answer.ah_attr.dlid
    attr.ah_attr.sl = answer.ah_attr.sl
    attr.ah_attr.src_path_bits = answer.ah_attr.src_path_bits
    attr.ah_attr.static_rate = answer.ah_attr.static_rate
    attr.ah_attr.is_global = answer.ah_attr.is_global
    attr.ah_attr.port_num = answer.ah_attr.port_num
    return port.provider.modify_qp(qp, &attr, <int>answer.qp_attr_mask)


cdef int cm_ended(int cm_fd) noexcept nogil:
    cdef cm_event event
    cdef int error
    while True:
        error = cm_get_event(cm_fd, &event)
        if error:
            return 0 if error == EAGAIN else <int>CM_CONNECT_ERROR
        if event.type != CM_ESTABLISHED and event.type != CM_ADDR_CHANGE:
            return <int>event.type
