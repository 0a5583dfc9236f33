"""The per-connection RDMA resource (docs/rdma-protocol.md): exchange, post, complete, tear down.

Each queue pair has a completion queue of its own on the worker's completion channel: an event names the connection
that has something to do, and idle connections cost nothing. A connection owns one registered buffer, cut into receive
and send messages; item memory is registered once for the whole device. Whatever could not be posted for want of
credits, send buffers or send queue entries stays where it is (in the reply list of its lane) and is tried again at
the next completion.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, fetch_add, fetch_sub, relaxed_load
from rmemcached.sys.linux cimport (
    errno, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
    sockaddr_in6,
)
from rmemcached.protocol.conn cimport (
    AUTH_LINE, WANT_CLOSE, WANT_FLUSH, WANT_REMOTE_PAYLOAD, WANT_YIELD, conn, conn_engine, conn_gather, conn_init,
    conn_next_write, conn_rdma_read, conn_payload_iov, conn_payload_received, conn_release, conn_sent, conn_thread,
    conn_want, conn_write_posted, mc_resp,
)
from rmemcached.protocol.stats_text cimport stat_append, stat_append_text, stat_buf
from rmemcached.rdma.exchange cimport exchange_request, key_is, parse_exchange, to_hex
from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH, EXCHANGE_REPLY, MESSAGE_CREDIT, MESSAGE_DATA, MESSAGE_HEADER, MESSAGE_READY,
    RDMA_CREDITS_HELD_MAX, RDMA_CREDITS_MAX, RDMA_CREDITS_MIN, RDMA_LANES, RDMA_MSGSIZE_MAX, RDMA_MSGSIZE_MIN,
    RDMA_PROTOCOL_VERSION, RDMA_TOKEN_LENGTH, SHM_KEY_LENGTH, SHM_REPLY_KEY, TRANSPORT_SOFT_IW, TRANSPORT_SOFT_SHM,
    TRANSPORT_VERBS, WELCOME_LENGTH, attach_request, get_attach, get_hello, get_message_header, get_shm_request,
    message_header, put_message_header, put_welcome, rdma_hello, rdma_transport, rdma_welcome, transport_name,
)
from rmemcached.store.store cimport ARENA_EXTENT, item, item_iov, item_remove
from rmemcached.verbs.soft cimport (
    soft_channel_arm, soft_channel_poll, soft_iw_accept, soft_iw_options, soft_iw_parse_request, soft_iw_reject,
    soft_iw_request, soft_qp_counters, soft_qp_terminated, soft_query_counters, soft_shm_attach,
)
from rmemcached.verbs.port cimport (
    qp_address, verbs_mtu_bytes, verbs_port, verbs_port_lost, verbs_qp_connect, verbs_qp_init,
)
from rmemcached.verbs.system_cm cimport (
    CM_REJECT_DATA, cm_accept, cm_modify_qp, cm_param, cm_reject,
)
from rmemcached.verbs.verbs cimport (
    IBV_ACCESS_LOCAL_WRITE, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_comp_channel, ibv_cq,
    ibv_mr, ibv_pd, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_init_attr, ibv_recv_wr, ibv_req_notify_cq,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status, verbs_provider,
)

cdef extern from "<fcntl.h>" nogil:
    enum:
        F_GETFL
        F_SETFL
        O_NONBLOCK
    int fcntl(int fd, int cmd, ...)

cdef extern from "<sys/random.h>" nogil:
    ssize_t getrandom(void *buf, size_t n, unsigned int flags)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    ssize_t send(int fd, const void *data, size_t length, int flags)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)

cdef enum:
    SEND_BUFFERS = 16
    BULK_DEPTH = 48              # send queue entries for READs and WRITEs
    SEND_DEPTH = SEND_BUFFERS + BULK_DEPTH
    BULK_SGES = 8                # extents of one item in one READ or WRITE, if the device takes as many
    READS_AT_A_TIME = 16         # of one lane
    POLL_BATCH = 32
    EVENTS_PER_TURN = 256
    TOKEN_BUCKETS = 1024
    MAX_EXTENTS = 16384          # 1 TiB of arena
    INPUT_MAX = 256 * 1024       # unparsed bytes of a lane beyond which its receives are not given back
    RECV_WR = 1 << 16            # in wr_id: a receive

cdef enum wr_kind:
    WR_SEND = 0
    WR_READ
    WR_WRITE
    WR_PROBE

# What a posted send work request is for; wr_id is its index.
cdef struct rdma_wr:
    wr_kind kind
    uint32_t length
    rdma_lane *lane          # WR_READ
    item *item                   # WR_WRITE: the reference to drop; NULL on all but the last of an item

cdef struct rdma_lane:
    conn c                       # first: the machine's
    rdma_conn *rc
    char *inbuf                  # unparsed input, when it could not be used at once
    size_t insize
    size_t write_off             # bytes of the next reply's data whose WRITE has been posted
    size_t read_bytes            # of the READs under way
    unsigned int reads           # READs under way
    unsigned int deferred        # receives not given back because inbuf is full
    uint32_t id

# Written by the owning worker with counter_add. uint64_t only: added up as an array.
cdef struct rdma_counters:
    uint64_t exchanges
    uint64_t exchange_errors
    uint64_t queue_pairs
    uint64_t total_queue_pairs
    uint64_t registrations
    uint64_t qp_errors
    uint64_t lanes
    uint64_t sends
    uint64_t send_bytes
    uint64_t recvs
    uint64_t recv_bytes
    uint64_t reads
    uint64_t read_bytes
    uint64_t read_errors
    uint64_t writes
    uint64_t write_bytes
    uint64_t write_errors
    uint64_t credit_waits
    uint64_t wakeups

cdef struct rdma_device:
    # constant after rdma_device_open
    verbs_port port
    const verbs_provider *provider       # port.provider
    rdma_transport transport
    ibv_pd *pd
    rdma_place place
    rdma_limits limits                   # no more than the device has
    unsigned int read_sges               # elements of a READ
    unsigned int write_sges              # of a WRITE
    drive_fn drive
    rdma_failed_fn failed
    # written under lock, read without by workers: an entry never changes once an item can lie in its extent
    char *arena
    ibv_mr *extents[MAX_EXTENTS]
    # under lock
    pthread_mutex_t lock
    rdma_conn *tokens[TOKEN_BUCKETS]     # every connection, by token
    rdma_thread *threads
    rdma_counters retired                # sums over destroyed threads
    soft_qp_counters gone                # sums over destroyed queue pairs
    uint64_t queue_pairs                 # atomic
    uint64_t cm_queue_pairs              # atomic: those of them that are connected through rdma_cm
    uint64_t extent_registrations        # atomic
    uint64_t async_events                # atomic
    uint64_t losses                      # atomic: devices that were lost, this one or those whose heir it is
    uint64_t refused_streams             # atomic

cdef struct rdma_thread:
    rdma_device *dev
    conn_thread *worker
    ibv_comp_channel *channel
    rdma_conn *yielded                   # connections with lanes that gave way
    ibv_send_wr chain[SEND_DEPTH]        # work requests of the connection being served, until ring_doorbell
    ibv_sge sges[SEND_DEPTH][BULK_SGES]  # theirs
    unsigned int nchain
    rdma_thread *next                    # dev.threads, under dev.lock
    rdma_counters counters

cdef struct rdma_conn:
    rdma_thread *t
    void *owner
    int sfd                              # of the lifeline, for log lines; of rdma_cm's descriptor where there is none
    bint by_cm                           # connected through rdma_cm: there is no lifeline
    sockaddr_in6 local                   # where, if by_cm
    ibv_cq *cq
    ibv_qp *qp
    ibv_mr *mr
    char *buffer                         # credits receive messages, then SEND_BUFFERS send messages
    rdma_conn *token_next                # under dev.lock
    rdma_conn *yield_next
    rdma_conn *yield_prev
    rdma_lane *lanes[RDMA_LANES]
    uint64_t live                        # bit per lane
    uint64_t blocked                     # lanes with replies that could not be posted
    uint64_t runnable                    # lanes that gave way
    unsigned int send_msgsize            # bytes of the largest message the peer takes
    unsigned int tx_credits              # SENDs that may be posted
    unsigned int rx_credits              # SENDs that the peer may still make
    unsigned int owed                    # receives posted anew and not yet announced
    unsigned int free_sends              # entries of free_send
    unsigned int free_bulk               # entries of free_wr
    uint16_t free_send[SEND_BUFFERS]     # send message and wr index
    uint16_t free_wr[BULK_DEPTH]
    rdma_wr wrs[SEND_DEPTH]
    bint attached                        # under dev.lock: has its stream
    bint ready
    bint failed
    bint yielding                        # in t.yielded
    uint32_t last_cmd_time               # of its lanes
    const char *failure                  # which operation, for the error line; NULL: the peer went away
    ibv_wc_status failure_status
    uint8_t token[RDMA_TOKEN_LENGTH]


# ---- completions -----------------------------------------------------------------------------------------------------

cdef void take_message(rdma_conn *rc, unsigned int index, size_t length) noexcept nogil:
    """A SEND of the client has arrived in receive `index`."""
    cdef const char *data = rc.buffer + <size_t>index * rc.t.dev.limits.msgsize
    cdef message_header header
    cdef rdma_lane *lane
    cdef bint keep = False
    counter_add(&rc.t.counters.recvs, 1)
    if rc.rx_credits == 0:
        rc_fail(rc, b"a message without a credit", IBV_WC_SUCCESS)
        return
    rc.rx_credits -= 1
    if not get_message_header(data, length, &header):
        rc_fail(rc, b"a message shorter than its header", IBV_WC_SUCCESS)
        return
    counter_add(&rc.t.counters.recv_bytes, length - MESSAGE_HEADER)
    rc.tx_credits += header.credits
    if rc.tx_credits > RDMA_CREDITS_HELD_MAX:
        rc_fail(rc, b"more credits than any client has", IBV_WC_SUCCESS)
        return
    if not rc.ready:
        if header.kind != MESSAGE_READY:
            rc_fail(rc, b"a first message that is not READY", IBV_WC_SUCCESS)
            return
        rc.ready = True
        if not post_receive(rc, index):
            rc_fail(rc, NULL, IBV_WC_SUCCESS)
            return
        rc.owed += 1
        rc.free_sends -= 1
        post_message(rc, MESSAGE_READY, 0, rc.free_send[rc.free_sends], 0)
        return
    if header.kind == MESSAGE_DATA:
        if header.lane >= RDMA_LANES:
            rc_fail(rc, b"a stream id above 63", IBV_WC_SUCCESS)
            return
        lane = rc.lanes[header.lane]
        if lane == NULL:
            lane = lane_open(rc, header.lane)
            if lane == NULL:
                rc_fail(rc, NULL, IBV_WC_SUCCESS)
                return
        if length > MESSAGE_HEADER and lane_input(lane, data + MESSAGE_HEADER, length - MESSAGE_HEADER):
            keep = lane.c.rbytes > INPUT_MAX
    elif header.kind != MESSAGE_CREDIT:
        rc_fail(rc, b"a message of unknown type", IBV_WC_SUCCESS)
        return
    if rc.failed:
        return
    if not post_receive(rc, index):
        rc_fail(rc, NULL, IBV_WC_SUCCESS)
        return
    if keep:
        rc.lanes[header.lane].deferred += 1
    else:
        rc.owed += 1


cdef void take_read(rdma_conn *rc, rdma_wr *entry) noexcept nogil:
    """One READ of a payload has completed; the last of a batch lets the machine go on."""
    cdef rdma_lane *lane = entry.lane
    cdef size_t n
    counter_add(&rc.t.counters.reads, 1)
    counter_add(&rc.t.counters.read_bytes, entry.length)
    lane.reads -= 1
    if lane.reads:
        return
    n = lane.read_bytes
    lane.read_bytes = 0
    conn_payload_received(&lane.c, n)
    if lane.c.rlbytes:
        if not lane_read(lane):
            rc.blocked |= <uint64_t>1 << lane.id
        return
    resume_lanes(rc, <uint64_t>1 << lane.id)


cdef void take_failure(rdma_conn *rc, rdma_wr *entry, ibv_wc_status status) noexcept nogil:
    """A work request failed or was flushed: accounts for it and gives up what it held."""
    if entry.kind == WR_READ:
        if status != IBV_WC_WR_FLUSH_ERR:
            counter_add(&rc.t.counters.read_errors, 1)
            rc_fail(rc, b"RDMA READ failed", status)
    elif entry.kind == WR_WRITE:
        if status != IBV_WC_WR_FLUSH_ERR:
            counter_add(&rc.t.counters.write_errors, 1)
            rc_fail(rc, b"RDMA WRITE failed", status)
        if entry.item != NULL:
            item_remove(rc.t.worker.store, entry.item)
            entry.item = NULL
    rc_fail(rc, NULL, status)


cdef void rc_serve(rdma_conn *rc) noexcept nogil:
    """Takes all completions there are. May end with the connection destroyed by dev.failed."""
    cdef ibv_wc wc[POLL_BATCH]
    cdef rdma_wr *entry
    cdef int i, n
    cdef uint32_t index
    cdef bint armed = False
    while True:
        n = ibv_poll_cq(rc.cq, POLL_BATCH, wc)
        if n < 0:
            rc_fail(rc, NULL, IBV_WC_SUCCESS)
            break
        if n == 0 and rc.failed:
            break
        for i in range(n):
            index = <uint32_t>wc[i].wr_id
            if index & RECV_WR:
                if wc[i].status != IBV_WC_SUCCESS:
                    # A receive that fails by itself is a message of the peer that did not fit.
                    if wc[i].status == IBV_WC_WR_FLUSH_ERR:
                        rc_fail(rc, NULL, wc[i].status)
                    else:
                        rc_fail(rc, b"receive failed", wc[i].status)
                elif not rc.failed:
                    take_message(rc, index & (RECV_WR - 1), wc[i].byte_len)
                continue
            entry = &rc.wrs[index]
            if entry.kind == WR_SEND:
                rc.free_send[rc.free_sends] = <uint16_t>index
                rc.free_sends += 1
            else:
                rc.free_wr[rc.free_bulk] = <uint16_t>index
                rc.free_bulk += 1
            if wc[i].status != IBV_WC_SUCCESS:
                take_failure(rc, entry, wc[i].status)
            elif entry.kind == WR_READ:
                if not rc.failed:
                    take_read(rc, entry)
            elif entry.kind == WR_WRITE:
                counter_add(&rc.t.counters.writes, 1)
                counter_add(&rc.t.counters.write_bytes, entry.length)
                if entry.item != NULL:
                    item_remove(rc.t.worker.store, entry.item)
                    entry.item = NULL
        if rc.blocked and not rc.failed:
            retry_blocked(rc)
        if not rc.failed:
            release_deferred(rc)
            return_credits(rc)
        ring_doorbell(rc)
        if n < POLL_BATCH:
            if armed:
                # The queue was empty, and what has come since makes an event.
                break
            # What completes from here on makes an event; what did before is found by the next poll.
            ibv_req_notify_cq(rc.cq, 0)
            armed = True
    if rc.failed:
        rc_report(rc)


cdef void rc_report(rdma_conn *rc) noexcept nogil:
    """Tells the owner that the connection is lost; the last thing that is done with it."""
    cdef char line[256]
    cdef rdma_device *dev = rc.t.dev
    cdef const char *status
    cdef int opcode
    # A WRITE that the client refuses has long completed here when its Terminate arrives.
    if (rc.failure == NULL and dev.transport != TRANSPORT_VERBS
            and soft_qp_terminated(rc.qp, &opcode, &rc.failure_status)):
        rc.failure = b"RDMA WRITE failed" if opcode == <int>IBV_WR_RDMA_WRITE else b"SEND failed"
        if opcode == <int>IBV_WR_RDMA_WRITE:
            counter_add(&rc.t.counters.write_errors, 1)
    if rc.failure == NULL:
        dev.failed(rc.owner, NULL)
        return
    if rc.failure_status == IBV_WC_SUCCESS:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: %s\r\n", rc.failure)
    else:
        status = dev.provider.wc_status_str(rc.failure_status)
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: %s: %s\r\n", rc.failure, status)
    dev.failed(rc.owner, line)


cdef bint rdma_thread_run(rdma_thread *t) noexcept nogil:
    cdef ibv_cq *cq
    cdef void *context
    cdef rdma_conn *rc
    cdef rdma_conn *following
    cdef uint64_t which
    # Bounded, so that busy queue pairs do not starve the sockets of the same worker; the channel stays readable.
    cdef uint64_t turns = EVENTS_PER_TURN
    if t.dev.transport == TRANSPORT_VERBS:
        # While one is served the device makes the next; what the software devices do is done in here.
        turns = min(turns, max(t.counters.queue_pairs, <uint64_t>1))
    while turns and t.dev.provider.get_cq_event(t.channel, &cq, &context) == 0:
        turns -= 1
        counter_add(&t.counters.wakeups, 1)
        t.dev.provider.ack_cq_events(cq, 1)
        rc_serve(<rdma_conn *>context)
        if t.counters.queue_pairs <= 1:
            # There is no other that could have an event; to ask costs system calls.
            break
    rc = t.yielded
    t.yielded = NULL
    while rc != NULL:
        following = rc.yield_next
        rc.yielding = False
        which = rc.runnable
        rc.runnable = 0
        resume_lanes(rc, which)
        if not rc.failed:
            release_deferred(rc)
            return_credits(rc)
        ring_doorbell(rc)
        if rc.failed:
            rc_report(rc)
        rc = following
    return t.yielded != NULL


# ---- making and end --------------------------------------------------------------------------------------------------

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
        if rc.lanes[i] != NULL:
            lane_close(rc.lanes[i])
    if rc.cq != NULL:
        dev.provider.destroy_cq(rc.cq)
    if rc.mr != NULL:
        dev.provider.dereg_mr(rc.mr)
        counter_add(&t.counters.registrations, <uint64_t>-1)
    free(rc.buffer)
    free(rc)


cdef void rdma_conn_destroy(rdma_conn *rc) noexcept nogil:
    """Frees the queue pair and all that belongs to the connection. No RDMA touches an item after it returns."""
    fetch_sub(&rc.t.dev.queue_pairs, 1)
    if rc.by_cm:
        fetch_sub(&rc.t.dev.cm_queue_pairs, 1)
    conn_free(rc)


# ---- the exchange ----------------------------------------------------------------------------------------------------

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


cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil:
    return rc.t


cdef uint32_t rdma_conn_last_cmd(rdma_conn *rc) noexcept nogil:
    return rc.last_cmd_time


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


include "rdma/attach.pyx"
include "rdma/cm.pyx"
include "rdma/device.pyx"
include "rdma/lane.pyx"
include "rdma/queue.pyx"
include "rdma/stats.pyx"
include "rdma/thread.pyx"
