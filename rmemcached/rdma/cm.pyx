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
