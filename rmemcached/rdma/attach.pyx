# A connection's making and end: the exchange, the queue pair and its resources, the stream that is given to it.


cdef struct cm_way:              # a connection of rdma_cm
    int fd
    uint32_t id


cdef bint bring_up(rdma_conn *rc, const exchange_request *req, const cm_way *cm) noexcept nogil:
    """INIT, receives posted, RTR, RTS."""
    cdef rdma_device *dev = rc.t.dev
    cdef qp_address peer
    cdef unsigned int ird = min(dev.limits.ird, <unsigned int>req.ord)
    cdef unsigned int ord = min(dev.limits.ord, <unsigned int>req.ird)
    cdef unsigned int i
    cdef int error
    if cm != NULL:
        error = cm_modify_qp(cm.fd, cm.id, &dev.port, rc.qp, IBV_QPS_INIT, 0)
    else:
        error = verbs_qp_init(&dev.port, rc.qp, 0)
    if error:
        return False
    for i in range(dev.limits.credits):
        if not post_receive(rc, i):
            return False
    if cm != NULL:
        return (cm_modify_qp(cm.fd, cm.id, &dev.port, rc.qp, IBV_QPS_RTR, ird) == 0
                and cm_modify_qp(cm.fd, cm.id, &dev.port, rc.qp, IBV_QPS_RTS, ord) == 0)
    peer.qpn = <uint32_t>req.qpn
    peer.psn = <uint32_t>req.psn
    peer.lid = <uint16_t>req.lid
    peer.mtu = <uint32_t>req.mtu
    peer.gid = req.gid
    return verbs_qp_connect(&dev.port, rc.qp, rc.qp.qp_num & 0xffffff, &peer, ird, ord) == 0


cdef rdma_conn *conn_make(rdma_thread *t, void *owner, const exchange_request *req,
                          const cm_way *cm) noexcept nogil:
    """cm: how the queue pair gets to its peer through rdma_cm; NULL: by the addresses in req."""
    cdef rdma_device *dev = t.dev
    cdef rdma_conn *rc = <rdma_conn *>calloc(1, sizeof(rdma_conn))
    cdef ibv_qp_init_attr init
    cdef size_t size
    cdef void *buffer = NULL
    cdef unsigned int bucket
    cdef int i
    if rc == NULL:
        return NULL
    rc.t = t
    rc.owner = owner
    rc.send_msgsize = <unsigned int>min(req.msgsize, dev.limits.msgsize)
    rc.tx_credits = <unsigned int>req.credits
    rc.rx_credits = dev.limits.credits
    for i in range(SEND_BUFFERS):
        rc.free_send[i] = <uint16_t>(SEND_BUFFERS - 1 - i)
    rc.free_sends = SEND_BUFFERS
    for i in range(BULK_DEPTH):
        rc.free_wr[i] = <uint16_t>(SEND_DEPTH - 1 - i)
    rc.free_bulk = BULK_DEPTH
    size = <size_t>dev.limits.credits * dev.limits.msgsize + <size_t>SEND_BUFFERS * rc.send_msgsize
    if posix_memalign(&buffer, 4096, size) == 0:
        rc.buffer = <char *>buffer
        rc.mr = dev.provider.reg_mr(dev.pd, buffer, size, IBV_ACCESS_LOCAL_WRITE)
    if rc.mr != NULL:
        counter_add(&t.counters.registrations, 1)
        rc.cq = dev.provider.create_cq(dev.port.context, <int>dev.limits.credits + SEND_DEPTH, rc, t.channel, 0)
    if rc.cq != NULL:
        memset(&init, 0, sizeof(init))
        init.send_cq = rc.cq
        init.recv_cq = rc.cq
        init.qp_type = IBV_QPT_RC
        init.cap.max_send_wr = SEND_DEPTH
        init.cap.max_recv_wr = dev.limits.credits
        init.cap.max_send_sge = max(dev.read_sges, dev.write_sges)
        init.cap.max_recv_sge = 1
        rc.qp = dev.provider.create_qp(dev.pd, &init)
    if rc.qp != NULL:
        counter_add(&t.counters.queue_pairs, 1)
        counter_add(&t.counters.total_queue_pairs, 1)
        if (getrandom(rc.token, RDMA_TOKEN_LENGTH, 0) == RDMA_TOKEN_LENGTH and bring_up(rc, req, cm)
                and ibv_req_notify_cq(rc.cq, 0) == 0):
            pthread_mutex_lock(&dev.lock)
            bucket = token_bucket(rc.token)
            rc.token_next = dev.tokens[bucket]
            dev.tokens[bucket] = rc
            pthread_mutex_unlock(&dev.lock)
            return rc
    conn_free(rc)
    return NULL


cdef rdma_conn *conn_admit(rdma_thread *t, void *owner, const exchange_request *req,
                           const cm_way *cm) noexcept nogil:
    """Makes the connection unless there are too many. NULL: out of resources."""
    cdef rdma_conn *rc = NULL
    if fetch_add(&t.dev.queue_pairs, 1) < t.dev.limits.max_qps:
        rc = conn_make(t, owner, req, cm)
    if rc == NULL:
        fetch_sub(&t.dev.queue_pairs, 1)
    return rc


cdef inline unsigned int token_bucket(const uint8_t *token) noexcept nogil:
    return (<unsigned int>token[0] << 8 | token[1]) % TOKEN_BUCKETS


cdef void add_counters(soft_qp_counters *total, const soft_qp_counters *more) noexcept nogil:
    cdef size_t i
    for i in range(sizeof(soft_qp_counters) // sizeof(uint64_t)):
        (<uint64_t *>total)[i] += (<const uint64_t *>more)[i]


cdef uint32_t rdma_conn_last_cmd(rdma_conn *rc) noexcept nogil:
    return rc.last_cmd_time


cdef void rdma_conn_destroy(rdma_conn *rc) noexcept nogil:
    """Frees the queue pair and all that belongs to the connection. No RDMA touches an item after it returns."""
    fetch_sub(&rc.t.dev.queue_pairs, 1)
    if rc.by_cm:
        fetch_sub(&rc.t.dev.cm_queue_pairs, 1)
    conn_free(rc)


cdef void conn_free(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.t
    cdef rdma_device *dev = t.dev
    cdef rdma_conn **link
    cdef soft_qp_counters last
    cdef int i
    # Out of the table first: no other thread can attach a stream to it from here on.
    pthread_mutex_lock(&dev.lock)
    link = &dev.tokens[token_bucket(rc.token)]
    while link[0] != NULL and link[0] != rc:
        link = &link[0].token_next
    if link[0] == rc:
        link[0] = rc.token_next
    if rc.qp != NULL and dev.transport != TRANSPORT_VERBS and soft_query_counters(rc.qp, &last) == 0:
        add_counters(&dev.gone, &last)
    pthread_mutex_unlock(&dev.lock)
    rc_unyield(rc)
    if rc.qp != NULL:
        dev.provider.destroy_qp(rc.qp)
        counter_add(&t.counters.queue_pairs, <uint64_t>-1)
    for i in range(SEND_DEPTH):
        if rc.wrs[i].kind == WR_WRITE and rc.wrs[i].item != NULL:
            item_remove(t.worker.store, rc.wrs[i].item)
    for i in range(RDMA_LANES):
        if rc.streams[i] != NULL:
            stream_close(rc.streams[i])
    if rc.cq != NULL:
        dev.provider.destroy_cq(rc.cq)
    if rc.mr != NULL:
        dev.provider.dereg_mr(rc.mr)
        counter_add(&t.counters.registrations, <uint64_t>-1)
    free(rc.buffer)
    free(rc)


cdef bint is_near(const rdma_device *dev, const exchange_request *req) noexcept nogil:
    """Whether a client that says where it is can reach the place where soft_shm's streams meet."""
    return (key_is(req.host, req.host_length, dev.place.host)
            and (dev.place.netns == 0 or dev.place.netns == req.netns))


cdef rdma_conn *rdma_exchange(rdma_thread **threads, void *owner, int sfd, bint has_one,
                              const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil:
    cdef rdma_thread *t = NULL
    cdef rdma_device *dev = NULL
    cdef exchange_request req
    cdef const char *wrong = parse_exchange(line, length, &req)
    cdef rdma_conn *rc = NULL
    cdef bint known = wrong == NULL and req.version == RDMA_PROTOCOL_VERSION
    cdef unsigned int i
    for i in range(<unsigned int>RDMA_DEVICES):
        if threads[i] == NULL:
            continue
        if (known and not threads[i].dev.port.cm_only
                and key_is(req.transport, req.transport_length, transport_name(threads[i].dev.transport))):
            t = threads[i]
            dev = t.dev
        elif t == NULL:
            # Of the exchanges that fail, one has to keep count.
            t = threads[i]
    counter_add(&t.counters.exchanges, 1)
    if wrong != NULL:
        snprintf(reply, reply_size, b"CLIENT_ERROR rdma: %s\r\n", wrong)
    elif req.version != RDMA_PROTOCOL_VERSION:
        snprintf(reply, reply_size, b"CLIENT_ERROR rdma: version %lu is not supported, this server speaks %d\r\n",
                 req.version, <int>RDMA_PROTOCOL_VERSION)
    elif has_one:
        snprintf(reply, reply_size, b"CLIENT_ERROR rdma: this connection has a queue pair\r\n")
    elif dev == NULL:
        snprintf(reply, reply_size, b"SERVER_ERROR rdma: transport %.*s is not available here\r\n",
                 <int>min(req.transport_length, <size_t>32), req.transport)
    elif dev.transport == TRANSPORT_SOFT_SHM and not is_near(dev, &req):
        snprintf(reply, reply_size, b"SERVER_ERROR rdma: soft_shm needs a client on the same host%s\r\n",
                 <const char *>b" and network" if dev.place.netns else <const char *>b"")
    else:
        rc = conn_admit(t, owner, &req, NULL)
        if rc == NULL:
            snprintf(reply, reply_size, b"SERVER_ERROR rdma: out of resources\r\n")
    if rc == NULL:
        counter_add(&t.counters.exchange_errors, 1)
        return NULL
    rc.sfd = sfd
    offer(rc, reply, reply_size)
    return rc


cdef void offer(rdma_conn *rc, char *reply, size_t reply_size) noexcept nogil:
    """The server's line of the exchange."""
    cdef rdma_device *dev = rc.t.dev
    cdef char gid[33]
    cdef char token[2 * RDMA_TOKEN_LENGTH + 1]
    cdef int used
    to_hex(dev.port.gid.raw, 16, gid)
    used = snprintf(
        reply, reply_size,
        b"%s version=%d transport=%s qpn=%u psn=%u gid=%s lid=%u mtu=%u credits=%u msgsize=%u ird=%u ord=%u "
        b"crc=%d eager=%u",
        EXCHANGE_REPLY, <int>RDMA_PROTOCOL_VERSION, transport_name(dev.transport), rc.qp.qp_num,
        rc.qp.qp_num & 0xffffff, gid, <unsigned int>dev.port.lid, verbs_mtu_bytes(dev.port.mtu), dev.limits.credits,
        dev.limits.msgsize, dev.limits.ird, dev.limits.ord, <int>dev.limits.crc, dev.limits.eager)
    if dev.transport != TRANSPORT_VERBS:
        to_hex(rc.token, RDMA_TOKEN_LENGTH, token)
        used += snprintf(reply + used, reply_size - used, b" token=%s", token)
    if dev.place.path[0]:
        used += snprintf(reply + used, reply_size - used, b" path=%s", dev.place.path)
    snprintf(reply + used, reply_size - used, b"\r\n")


cdef rdma_conn *token_owner(rdma_device *dev, const attach_request *attach) noexcept nogil:
    """The connection whose queue pair number and token these are, if it still waits for its stream. dev.lock is
    held."""
    cdef rdma_conn *rc = dev.tokens[token_bucket(attach.token)]
    while rc != NULL and memcmp(rc.token, attach.token, RDMA_TOKEN_LENGTH) != 0:
        rc = rc.token_next
    return rc if rc != NULL and rc.qp.qp_num == attach.qpn and not rc.attached else NULL


cdef int iw_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef soft_iw_request req
    cdef soft_iw_options options
    cdef attach_request attach
    cdef rdma_conn *rc
    cdef int whole = soft_iw_parse_request(data, received, &req)
    cdef int done = -1
    if whole == 0:
        return 0
    if whole > 0 and req.private_length == ATTACH_LENGTH:
        get_attach(req.private_data, &attach)
        pthread_mutex_lock(&dev.lock)
        rc = token_owner(dev, &attach)
        if rc != NULL:
            memset(&options, 0, sizeof(options))
            options.crc = dev.limits.crc
            options.ird = <uint16_t>dev.limits.ird
            options.ord = <uint16_t>dev.limits.ord
            if soft_iw_accept(rc.qp, fd, data, received, &options) == 0:
                rc.attached = True
                done = 1
        pthread_mutex_unlock(&dev.lock)
    if done < 0 and whole > 0:
        soft_iw_reject(fd, data, received, NULL, 0)
    return done


cdef int shm_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef const char *refusal = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
    cdef attach_request attach
    cdef rdma_conn *rc
    cdef int done = get_shm_request(data, received, &attach)
    if done <= 0:
        return done
    done = -1
    pthread_mutex_lock(&dev.lock)
    rc = token_owner(dev, &attach)
    # The reply comes first: what follows it is the queue pairs'.
    if (rc != NULL and send(fd, SHM_REPLY_KEY, SHM_KEY_LENGTH, MSG_NOSIGNAL | MSG_DONTWAIT) == SHM_KEY_LENGTH
            and soft_shm_attach(rc.qp, fd, <uint16_t>dev.limits.ird, <uint16_t>dev.limits.ord) == 0):
        rc.attached = True
        done = 1
    pthread_mutex_unlock(&dev.lock)
    if rc == NULL:
        send(fd, refusal, strlen(refusal), MSG_NOSIGNAL | MSG_DONTWAIT)
    return done


cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef int done
    if dev.transport == TRANSPORT_SOFT_SHM:
        done = shm_request(dev, fd, data, received)
    else:
        done = iw_request(dev, fd, data, received)
    if done < 0:
        fetch_add(&dev.refused_streams, 1)
    return done
