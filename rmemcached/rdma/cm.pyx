# Connections through rdma_cm (docs/rdma-protocol.md, section 9): the exchange is in the private data, the end of the
# connection takes the place of the lifeline's.


cdef const char *read_hello(const rdma_request *request, exchange_request *out) noexcept nogil:
    """The private data of a request. Returns NULL, or what is wrong. An unknown version is not wrong."""
    cdef rdma_hello hello
    memset(out, 0, sizeof(exchange_request))
    if not get_hello(request.private_data, CM_REQUEST_DATA, &hello):
        return b"the private data does not begin with rdma"
    out.version = hello.version
    out.credits = hello.credits
    out.msgsize = hello.msgsize
    out.ord = request.responder_resources
    out.ird = request.initiator_depth
    if out.version != RDMA_PROTOCOL_VERSION:
        return NULL
    if (not RDMA_CREDITS_MIN <= out.credits <= RDMA_CREDITS_MAX
            or not RDMA_MSGSIZE_MIN <= out.msgsize <= RDMA_MSGSIZE_MAX):
        return b"a value is out of range"
    if out.ird == 0:
        return b"the client answers no RDMA READ"
    return NULL


cdef void rdma_cm_refuse(int cm_fd, uint32_t id, const char *line) noexcept nogil:
    cm_reject(cm_fd, id, line, min(strlen(line), <size_t>CM_REJECT_DATA))


cdef bint welcome(rdma_conn *rc, const exchange_request *req, const cm_way *cm) noexcept nogil:
    """Accepts the connection with the server's part of the exchange."""
    cdef rdma_device *dev = rc.t.dev
    cdef char data[WELCOME_LENGTH]
    cdef rdma_welcome said
    cdef cm_param param
    said.version = RDMA_PROTOCOL_VERSION
    said.credits = <uint16_t>dev.limits.credits
    said.msgsize = dev.limits.msgsize
    said.eager = dev.limits.eager
    put_welcome(data, &said)
    param.qpn = rc.qp.qp_num
    param.responder_resources = min(dev.limits.ird, <unsigned int>req.ord)
    param.initiator_depth = min(dev.limits.ord, <unsigned int>req.ird)
    param.private_data = data
    param.length = WELCOME_LENGTH
    return cm_accept(cm.fd, cm.id, &param) == 0


cdef rdma_conn *rdma_cm_accept(rdma_thread **threads, void *owner, int cm_fd,
                               const rdma_request *request) noexcept nogil:
    cdef rdma_thread *t = threads[TRANSPORT_VERBS]
    cdef rdma_device *dev = t.dev if t != NULL else NULL
    cdef exchange_request req
    cdef const char *wrong = read_hello(request, &req)
    cdef rdma_conn *rc = NULL
    cdef cm_way cm
    cdef char line[CM_REJECT_DATA]
    cm.fd = cm_fd
    cm.id = request.id
    if t == NULL:
        # Of the requests that fail, one has to keep count.
        t = threads[TRANSPORT_SOFT_IW]
    counter_add(&t.counters.exchanges, 1)
    if wrong != NULL:
        snprintf(line, sizeof(line), b"CLIENT_ERROR rdma: %s", wrong)
    elif req.version != RDMA_PROTOCOL_VERSION:
        snprintf(line, sizeof(line), b"CLIENT_ERROR rdma: version %lu is not supported, this server speaks %d",
                 req.version, <int>RDMA_PROTOCOL_VERSION)
    elif dev == NULL:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: no device of the system is in use here")
    elif request.where.node_guid != dev.port.node_guid or request.where.port_num != dev.port.port_num:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: port %d of device %.63s is in use here, not this one",
                 <int>dev.port.port_num, dev.provider.get_device_name(dev.port.context.device))
    else:
        rc = conn_admit(t, owner, &req, &cm)
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: out of resources")
    if rc != NULL:
        rc.sfd = cm_fd
        rc.local = request.where.local
        rc.by_cm = True
        fetch_add(&dev.cm_queue_pairs, 1)
        if welcome(rc, &req, &cm):
            return rc
        # The client has gone.
        rdma_conn_destroy(rc)
    rdma_cm_refuse(cm_fd, request.id, line)
    counter_add(&t.counters.exchange_errors, 1)
    return NULL


cdef const sockaddr_in6 *rdma_cm_local(rdma_conn *rc) noexcept nogil:
    return &rc.local


cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil:
    """A WRITE of nothing: what it names is not looked at, but its packet is acknowledged."""
    cdef ibv_send_wr *wr
    cdef unsigned int index
    if rc.failed or rc.free_bulk < BULK_DEPTH:
        # What is under way is a probe as good.
        return
    rc.free_bulk -= 1
    index = rc.free_wr[rc.free_bulk]
    wr = chain_request(rc, index)
    wr.opcode = IBV_WR_RDMA_WRITE
    rc.wrs[index].kind = WR_PROBE
    ring_doorbell(rc)
    if rc.failed:
        rc_report(rc)


cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil:
    rc_serve(rc)
