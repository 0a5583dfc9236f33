"""See port.pxd.

The reasons for the choice among GIDs: both ends of RoCE must use the same type. All present NICs and routers speak RoCE
v2, and administrators know its IPv4-mapped address. Within an InfiniBand subnet any GID does.
"""

from libc.errno cimport errno
from libc.stdio cimport FILE, fclose, fgets, fopen, snprintf
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset, strcmp, strerror, strncmp

from rmemcached.sys.atomics cimport fetch_add
from rmemcached.sys.linux cimport F_OK, access
from rmemcached.verbs.soft cimport soft_provider
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport (
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
    IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_SM_CHANGE,
    IBV_LINK_LAYER_ETHERNET, IBV_MTU_256, IBV_NODE_RNIC, IBV_PORT_ACTIVE,
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_mtu, ibv_port_attr, ibv_qp, ibv_qp_attr,
    verbs_provider,
)

cdef enum:
    MIN_RNR_TIMER = 12           # 0.64 ms; only matters at the start, later credits keep receives posted
    HOP_LIMIT = 64


cdef unsigned int verbs_mtu_bytes(ibv_mtu mtu) noexcept nogil:
    return 128 << <unsigned int>mtu


cdef bint is_zero(const ibv_gid *gid) noexcept nogil:
    cdef int i
    for i in range(16):
        if gid.raw[i]:
            return False
    return True


cdef bint is_mapped_ipv4(const ibv_gid *gid) noexcept nogil:
    cdef int i
    for i in range(10):
        if gid.raw[i]:
            return False
    return gid.raw[10] == 0xff and gid.raw[11] == 0xff


cdef gid_type verbs_gid_type(ibv_device *device, uint8_t port_num, int index) noexcept nogil:
    cdef char path[512]
    cdef char line[64]
    cdef FILE *file
    cdef gid_type kind = GID_UNKNOWN
    if device.ibdev_path[0] == 0:
        return GID_UNKNOWN
    snprintf(path, sizeof(path), b"%s/ports/%d/gid_attrs/types/%d", &device.ibdev_path[0], <int>port_num, index)
    file = fopen(path, b"r")
    if file == NULL:
        return GID_UNKNOWN
    # Reading the file of an unused entry fails.
    if fgets(line, sizeof(line), file) != NULL:
        kind = GID_ROCE_V2 if strncmp(line, b"RoCE v2", 7) == 0 else GID_IB_ROCE_V1
    fclose(file)
    return kind


cdef int verbs_choose_gid(const verbs_provider *provider, ibv_context *context, uint8_t port_num, bint ethernet,
                          gid_type *kind, ibv_gid *gid) noexcept nogil:
    cdef ibv_port_attr attr
    cdef ibv_gid found
    cdef gid_type found_kind
    cdef int index, rank
    cdef int best = -1
    cdef int best_rank = 0
    if provider.query_port(context, port_num, &attr) != 0:
        return -1
    for index in range(attr.gid_tbl_len):
        if provider.query_gid(context, port_num, index, &found) != 0 or is_zero(&found):
            continue
        found_kind = verbs_gid_type(context.device, port_num, index)
        rank = 1
        if ethernet:
            rank += 4 if found_kind == GID_ROCE_V2 else 0
            rank += 2 if is_mapped_ipv4(&found) else 0
            # fe80::/10 does not leave the link
            rank += 1 if found.raw[0] != 0xfe or found.raw[1] & 0xc0 != 0x80 else 0
        if rank > best_rank:
            best, best_rank = index, rank
            kind[0] = found_kind
            gid[0] = found
        if not ethernet:
            break
    return best


cdef int verbs_take_port(const port_spec *spec, verbs_port *out, char *why, size_t size) noexcept nogil:
    cdef ibv_device_attr device
    cdef ibv_port_attr attr
    cdef const char *name = out.provider.get_device_name(out.context.device)
    cdef int number, first, last
    cdef int error = out.provider.query_device(out.context, &device)
    if error:
        snprintf(why, size, b"device %s: %s", name, strerror(error))
        return -1
    if spec.node_guid and device.node_guid != spec.node_guid:
        snprintf(why, size, b"there is no RDMA device with the GUID that rdma_cm has chosen")
        return -1
    out.node_guid = device.node_guid
    out.max_dest_rd_atomic = <uint8_t>min(device.max_qp_rd_atom, 255)
    out.max_rd_atomic = <uint8_t>min(device.max_qp_init_rd_atom, 255)
    out.max_qp_wr = device.max_qp_wr
    out.max_sge = device.max_sge
    out.max_sge_rd = device.max_sge_rd
    out.max_cqe = device.max_cqe
    first = spec.port if spec.port != PORT_ANY else 1
    last = spec.port if spec.port != PORT_ANY else device.phys_port_cnt
    snprintf(why, size, b"device %s has no active port", name)
    for number in range(first, last + 1):
        error = out.provider.query_port(out.context, <uint8_t>number, &attr)
        if error:
            snprintf(why, size, b"device %s has no port %d", name, number)
            continue
        if attr.state != IBV_PORT_ACTIVE:
            if spec.port != PORT_ANY:
                snprintf(why, size, b"port %d of device %s is not active", number, name)
            continue
        out.port_num = <uint8_t>number
        out.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET
        out.lid = attr.lid
        out.mtu = attr.active_mtu
        if spec.gid_index != GID_ANY:
            out.gid_index = spec.gid_index
            if out.provider.query_gid(out.context, out.port_num, spec.gid_index, &out.gid) != 0 or is_zero(&out.gid):
                snprintf(why, size, b"port %d of device %s has no GID %d", number, name, spec.gid_index)
                continue
            out.gid_type = verbs_gid_type(out.context.device, out.port_num, spec.gid_index)
            return 0
        out.gid_index = verbs_choose_gid(out.provider, out.context, out.port_num, out.ethernet, &out.gid_type, &out.gid)
        if out.gid_index >= 0:
            return 0
        snprintf(why, size, b"port %d of device %s has no GID", number, name)
    return -1


cdef int verbs_open_port(const verbs_provider *provider, const port_spec *spec, verbs_port *out, char *why,
                         size_t size) noexcept nogil:
    cdef ibv_device **devices
    cdef const char *name
    cdef int count = 0
    cdef int i
    cdef bint named = False
    memset(out, 0, sizeof(verbs_port))
    out.provider = provider
    devices = provider.get_device_list(&count)
    if devices == NULL:
        snprintf(why, size, b"devices cannot be listed: %s", strerror(errno))
        return -1
    snprintf(why, size, b"there is no RDMA device")
    for i in range(count):
        name = provider.get_device_name(devices[i])
        if spec.device != NULL and strcmp(name, spec.device) != 0:
            continue
        named = True
        out.cm_only = devices[i].node_type == IBV_NODE_RNIC and devices[i].ibdev_path[0]
        if out.cm_only and not spec.iwarp:
            # The kernel gives iWARP queue pairs a stream through rdma_cm only.
            snprintf(why, size, b"device %s is iWARP, which needs rdma_cm", name)
            continue
        out.context = provider.open_device(devices[i])
        if out.context == NULL:
            snprintf(why, size, b"device %s cannot be opened: %s", name, strerror(errno))
            continue
        if verbs_take_port(spec, out, why, size) == 0:
            break
        provider.close_device(out.context)
        out.context = NULL
    if spec.device != NULL and not named:
        snprintf(why, size, b"there is no RDMA device %s", spec.device)
    provider.free_device_list(devices)
    return 0 if out.context != NULL else -1


cdef bint port_moved(const verbs_port *port) noexcept nogil:
    """Whether the port is down, or has lost the address given to peers."""
    cdef ibv_port_attr attr
    cdef ibv_gid gid
    return (port.provider.query_port(port.context, port.port_num, &attr) != 0 or attr.state != IBV_PORT_ACTIVE
            or attr.lid != port.lid
            or port.provider.query_gid(port.context, port.port_num, port.gid_index, &gid) != 0
            or memcmp(gid.raw, port.gid.raw, 16) != 0)


cdef bint verbs_port_lost(const verbs_port *port, uint64_t *events, char *why, size_t size) noexcept nogil:
    cdef const verbs_provider *provider = port.provider
    cdef ibv_async_event event
    cdef ibv_port_attr state
    cdef const char *reason = NULL
    cdef bint moved = False
    while provider.get_async_event(port.context, &event) == 0:
        fetch_add(events, 1)
        if event.event_type == IBV_EVENT_DEVICE_FATAL or event.event_type == IBV_EVENT_CQ_ERR:
            # A completion queue has room for all possible completions and cannot overflow here. So the device has
            # failed.
            reason = b" has failed"
        elif (event.event_type == IBV_EVENT_PORT_ERR or event.event_type == IBV_EVENT_PORT_ACTIVE
                or event.event_type == IBV_EVENT_LID_CHANGE or event.event_type == IBV_EVENT_PKEY_CHANGE
                or event.event_type == IBV_EVENT_SM_CHANGE or event.event_type == IBV_EVENT_CLIENT_REREGISTER
                or event.event_type == IBV_EVENT_GID_CHANGE):
            if event.element.port_num == port.port_num:
                if event.event_type == IBV_EVENT_PORT_ERR:
                    reason = b": its port is down"
                moved = True
        # All remaining events are about one queue pair, whose owner notices them by its flushed receives.
        provider.ack_async_event(&event)
    # Drivers without forced removal (rxe, siw) send no event: they wait until all users have closed the device. There
    # the device's missing file shows the removal.
    if port.context.device.dev_path[0] and access(port.context.device.dev_path, F_OK) != 0:
        reason = b" was removed"
    elif reason == NULL and moved and port_moved(port):
        # The addresses may go before the event of the port's failure comes: so ask for the state.
        if provider.query_port(port.context, port.port_num, &state) == 0 and state.state != IBV_PORT_ACTIVE:
            reason = b": its port is down"
        else:
            reason = b": its port has another address"
    if reason == NULL:
        return False
    snprintf(why, size, b"device %s%s", provider.get_device_name(port.context.device), reason)
    return True


cdef int verbs_qp_init(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil:
    cdef ibv_qp_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = IBV_QPS_INIT
    attr.port_num = port.port_num
    attr.qp_access_flags = rights
    return port.provider.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)


cdef int verbs_qp_allow(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil:
    cdef ibv_qp_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.qp_access_flags = rights
    return port.provider.modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS)


cdef int verbs_qp_connect(const verbs_port *port, ibv_qp *qp, uint32_t psn, const qp_address *peer, unsigned int ird,
                          unsigned int ord) noexcept nogil:
    cdef ibv_qp_attr attr
    cdef unsigned int mtu = <unsigned int>port.mtu
    cdef int error
    while mtu > <unsigned int>IBV_MTU_256 and peer.mtu and verbs_mtu_bytes(<ibv_mtu>mtu) > peer.mtu:
        mtu -= 1
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = IBV_QPS_RTR
    attr.path_mtu = <ibv_mtu>mtu
    attr.dest_qp_num = peer.qpn
    attr.rq_psn = peer.psn
    attr.max_dest_rd_atomic = <uint8_t>min(ird, <unsigned int>port.max_dest_rd_atomic)
    attr.min_rnr_timer = MIN_RNR_TIMER
    attr.ah_attr.dlid = peer.lid
    attr.ah_attr.port_num = port.port_num
    # Within an InfiniBand subnet (the first half of the GID) the LID is the whole address.
    attr.ah_attr.is_global = port.ethernet or peer.lid == 0 or memcmp(peer.gid.raw, port.gid.raw, 8) != 0
    if attr.ah_attr.is_global:
        attr.ah_attr.grh.dgid = peer.gid
        attr.ah_attr.grh.sgid_index = <uint8_t>port.gid_index
        attr.ah_attr.grh.hop_limit = HOP_LIMIT
    error = port.provider.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
    if error:
        return error
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = IBV_QPS_RTS
    attr.timeout = ACK_TIMEOUT
    attr.retry_cnt = RETRY_CNT
    attr.rnr_retry = RNR_RETRY
    attr.sq_psn = psn
    attr.max_rd_atomic = <uint8_t>min(ord, <unsigned int>port.max_rd_atomic)
    return port.provider.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)


def choose(str provider not None, device=None, int port=PORT_ANY, int gid_index=GID_ANY):
    """The choice of verbs_open_port as a dict: device, port, gid_index, gid (16 bytes), mtu (bytes), reads.

    reads: RDMA READs answered, and outstanding, at a time. provider: "system" or "soft". Raises OSError
    with the reason in one line if there is no such device.
    """
    cdef const verbs_provider *table
    cdef const char *absent = NULL
    cdef port_spec spec
    cdef verbs_port found
    cdef char why[256]
    if provider not in ("system", "soft"):
        raise ValueError(f'the provider is "system" or "soft", not {provider!r}')
    table = system_provider(&absent) if provider == "system" else soft_provider()
    if table == NULL:
        raise OSError(absent.decode())
    name = None if device is None else device.encode()
    memset(&spec, 0, sizeof(spec))
    spec.device = <const char *>name if name is not None else NULL
    spec.port = port
    spec.gid_index = gid_index
    if verbs_open_port(table, &spec, &found, why, sizeof(why)) != 0:
        raise OSError((<bytes>why).decode())
    try:
        return {
            "device": table.get_device_name(found.context.device).decode(),
            "port": found.port_num,
            "gid_index": found.gid_index,
            "gid": (<const char *>found.gid.raw)[:16],
            "mtu": verbs_mtu_bytes(found.mtu),
            "reads": (found.max_dest_rd_atomic, found.max_rd_atomic),
        }
    finally:
        table.close_device(found.context)
