"""Makes, serves and ends connections over RDMA (see rdma_conn.pxd). The parts are included below.

All queue pairs of a worker on a device share a completion queue (rdma/completions), so the worker polls a single place
and idle connections cost nothing. Item memory is registered once for the whole device. Without credits, send buffers or
send queue entries a reply stays in the reply list of its lane, and the next completion tries again.
"""

from libc.limits cimport INT_MAX, UINT_MAX
from libc.stdint cimport UINT32_MAX, int32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from rmemcached.direct cimport DIRECT_LENGTH_BITS
from rmemcached.logger cimport IDLE_TIMEOUT_CLOSE, NORMAL_CLOSE
from rmemcached.protocol.conn cimport (
    NOT_GIVEN, WANT_CLOSE, WANT_FLUSH, WANT_INPUT, WANT_PAYLOAD, WANT_REMOTE_PAYLOAD, WANT_YIELD, conn_auth,
    conn_authenticated, conn_engine, conn_gather, conn_init, conn_memory, conn_next_write, conn_payload_piece,
    conn_payload_received, conn_rdma_read, conn_release, conn_sent, conn_waits, conn_write_posted, mc_resp, resp_finish,
)
from rmemcached.rdma.cm cimport rdma_cm_refuse, read_hello, send_welcome
from rmemcached.rdma.device cimport (
    CLIENT_DESCRIPTORS, DIRECT_NOBODY, INLINE_LEAST, RDMA_DEVICES, extent_of, rdma_device_admit,
    rdma_device_enter_counters, rdma_device_find_memory, rdma_device_memory, rdma_device_release,
    rdma_device_retire_counters, reads_answered, transport_ops,
)
from rmemcached.rdma.exchange cimport exchange_offer, exchange_request, key_is, parse_exchange, write_offer
from rmemcached.rdma.transport cimport SYSTEM_TRANSPORT
from rmemcached.rdma.wire cimport (
    MESSAGE_CLOSE, MESSAGE_CREDIT, MESSAGE_DATA, MESSAGE_HEADER, MESSAGE_OPEN, MESSAGE_READY, RDMA_CREDITS_HELD_MAX,
    RDMA_QPN_MAX, RDMA_VERSION, SHM_MEMORY_PARTS, attach_request, get_message_header, put_message_header,
)
from rmemcached.store.store cimport (
    SLAB_PAGE_SIZE, ITEM_ntotal, item_iov, item_pin, item_remove, item_unpin, store, store_direct_base,
    store_direct_give, store_direct_return, store_time,
)
from rmemcached.streams.tls cimport tls_key, tls_make_key
from rmemcached.sys.atomics cimport counter_add, fetch_add, fetch_sub, relaxed_load, relaxed_store
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport (
    LIVE_LANE, LIVE_PIN, LIVE_RDMA_CONN, assert_owner, assert_that, live_add, live_sub,
)
from rmemcached.sys.linux cimport (
    RLIMIT_NOFILE, close, dup, getrandom, getrlimit, posix_memalign, pthread_mutex_lock, pthread_mutex_unlock, rlimit,
    set_nonblocking,
)
from rmemcached.sys.wipe cimport explicit_bzero
from rmemcached.verbs.port cimport qp_address, verbs_mtu_bytes, verbs_qp_allow, verbs_qp_connect, verbs_qp_init
from rmemcached.verbs.soft cimport (
    soft_channel_arm, soft_channel_begin_turn, soft_channel_end_turns, soft_channel_join, soft_channel_poll,
    soft_cq_pending, soft_qp_allow, soft_qp_limit, soft_share_counters, soft_srq_newest_first,
)
from rmemcached.verbs.system_cm cimport CM_REJECT_DATA, cm_modify_qp
from rmemcached.verbs.verbs cimport (
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SRQ_MAX_WR, IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_context, ibv_mr, ibv_poll_cq, ibv_post_recv, ibv_post_send,
    ibv_post_srq_recv, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr,
    ibv_req_notify_cq, ibv_srq_attr, ibv_srq_init_attr,
)

include "rdma/pace.pyx"
include "rdma/thread.pyx"
include "rdma/messages.pyx"
include "rdma/completions.pyx"
include "rdma/queue.pyx"
include "rdma/setup.pyx"
include "rdma/lane_table.pyx"
include "rdma/pins.pyx"
include "rdma/lane.pyx"
include "rdma/lanes.pyx"

cdef enum:
    SERVED_PER_TURN = 256        # connections, at most
    TURN_COMPLETIONS = 64        # completions of a connection in a turn, divided by the connections left over before
    COMPLETIONS_LEAST = 8        # ... but no fewer
    SPARE_DESCRIPTORS = 16       # descriptors left to plain connections, and a sixteenth of all

cdef struct cm_id:               # a connection of rdma_cm
    int fd
    uint32_t id


# ---- completions -----------------------------------------------------------------------------------------------------

cdef void take_first(rdma_conn *rc, const message_header *header) noexcept nogil:
    """Takes the client's first message, which must be READY."""
    if header.kind != MESSAGE_READY:
        queue_fail(&rc.q, b"a first message that is not READY", IBV_WC_SUCCESS)
        return
    rc.ready = True
    setup_end(rc)


cdef void answer_ready(rdma_conn *rc) noexcept nogil:
    """Sends the server's READY. The receive of the client's READY has been posted anew, and the answer announces it."""
    if not rc.q.failed and queue_has_buffer(&rc.q):
        queue_send(&rc.q, MESSAGE_READY, 0, 0, queue_take_buffer(&rc.q), 0)


cdef void take_data(rdma_conn *rc, const message_header *header, char *payload, size_t length) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    # For the pace the messages of one run count as one request. An empty message only reports a used reply.
    if t.now > rc.pace.served and length:
        pace_note(&rc.pace, t.now, t.limit)
    if header.credits and lanes_blocked(rc) and not rc.q.closing:
        # Waiting replies go before this message's commands.
        lanes_retry_blocked(rc)
    if not rc.q.failed:
        lane_take_data(rc, header, payload, length)


cdef void take_message(rdma_conn *rc, unsigned int index, size_t length) noexcept nogil:
    """A SEND of the client has arrived in receive `index`."""
    cdef rdma_queue *q = &rc.q
    cdef char *message = queue_message(q, index, length)
    cdef message_header header
    counter_add(&q.t.counters.recvs, 1)
    rc.last_active = store_time(q.t.worker.store)
    if q.rx_credits == 0:
        queue_fail(q, b"a message without a credit", IBV_WC_SUCCESS)
        return
    q.rx_credits -= 1
    if not get_message_header(message, length, &header):
        queue_fail(q, b"a message shorter than its header", IBV_WC_SUCCESS)
        return
    counter_add(&q.t.counters.recv_bytes, length - MESSAGE_HEADER)
    q.tx_credits += header.credits
    if q.tx_credits > RDMA_CREDITS_HELD_MAX:
        queue_fail(q, b"more credits than any client has", IBV_WC_SUCCESS)
    elif not rc.ready:
        take_first(rc, &header)
    elif header.kind == MESSAGE_DATA:
        take_data(rc, &header, message + MESSAGE_HEADER, length - MESSAGE_HEADER)
    elif header.kind == MESSAGE_OPEN:
        lane_take_open(rc, header.lane)
    elif header.kind == MESSAGE_CLOSE:
        lane_take_close(rc, header.lane)
    elif header.kind != MESSAGE_CREDIT:
        queue_fail(q, b"a message of unknown type", IBV_WC_SUCCESS)


cdef void request_done(rdma_conn *rc, rdma_wr *entry) noexcept nogil:
    """A SEND, READ or WRITE has completed."""
    cdef rdma_counters *counters = &rc.q.t.counters
    if entry.kind != WR_PROBE:
        rc.last_active = store_time(rc.q.t.worker.store)
    if entry.kind == WR_READ and not rc.q.failed:
        counter_add(&counters.reads, 1)
        counter_add(&counters.read_bytes, entry.length)
        lane_read_completed(entry.lane, entry.length)
    elif entry.kind == WR_WRITE:
        counter_add(&counters.writes, 1)
        counter_add(&counters.write_bytes, entry.length)
        lane_write_completed(entry)
        queue_release_item(&rc.q, entry)


cdef void peer_gone(rdma_conn *rc, ibv_wc_status status) noexcept nogil:
    """The queue pair is of no use any more. Lanes that have given way, or wait for a result, still do their received
    commands."""
    if lanes_runnable(rc) or rc.want_result.first != NULL:
        lanes_client_ended(rc)
        rc.lost = True
    else:
        queue_fail(&rc.q, NULL, status)


cdef void request_failed(rdma_conn *rc, rdma_wr *entry, ibv_wc_status status) noexcept nogil:
    """A SEND, READ or WRITE has failed, or was flushed."""
    cdef rdma_counters *counters = &rc.q.t.counters
    if entry.kind == WR_READ and status != IBV_WC_WR_FLUSH_ERR:
        counter_add(&counters.read_errors, 1)
        queue_fail(&rc.q, b"RDMA READ failed", status)
    elif entry.kind == WR_WRITE and status != IBV_WC_WR_FLUSH_ERR:
        counter_add(&counters.write_errors, 1)
        queue_fail(&rc.q, b"RDMA WRITE failed", status)
    if entry.kind == WR_WRITE:
        lane_write_completed(entry)
    queue_release_item(&rc.q, entry)
    peer_gone(rc, status)


cdef void take_receive(rdma_conn *rc, uint32_t index, const kept_completion *wc) noexcept nogil:
    """A receive has completed or failed, or the queue pair has ended."""
    cdef bint was_ready = rc.ready
    if wc.status == IBV_WC_WR_FLUSH_ERR:
        peer_gone(rc, wc.status)
    elif wc.status != IBV_WC_SUCCESS:
        # A receive fails by itself when a message of the peer does not fit.
        queue_fail(&rc.q, b"receive failed", wc.status)
    elif not rc.q.failed:
        take_message(rc, index, wc.byte_len)
    if index != NO_RECEIVE:
        queue_give_back(&rc.q, index)
    if rc.ready and not was_ready:
        answer_ready(rc)


cdef void take_completion(rdma_conn *rc, const kept_completion *wc) noexcept nogil:
    """Serves a completion of a receive, or of a SEND, READ or WRITE."""
    cdef uint32_t index = wc.wr_id
    cdef rdma_wr *entry
    if index & RECV_WR:
        take_receive(rc, index & (RECV_WR - 1), wc)
        return
    entry = queue_completed(&rc.q, index)
    if wc.status == IBV_WC_SUCCESS:
        request_done(rc, entry)
    else:
        request_failed(rc, entry, wc.status)


cdef bint credits_add_up(const rdma_conn *rc) noexcept nogil:
    """Whether each receive is a credit of the peer, or owed to the peer. For assertions."""
    return rc.q.rx_credits + rc.q.owed == rc.q.t.dev.limits.credits


cdef void end_turn(rdma_conn *rc) noexcept nogil:
    """Returns credits, and posts the chained work requests of the turn."""
    if not rc.q.failed:
        queue_return_credits(&rc.q)
        if not rc.q.closing:
            assert_that(credits_add_up(rc))
    queue_ring_doorbell(&rc.q)


cdef unsigned int share_of_turn(const rdma_thread *t) noexcept nogil:
    """Completions for a connection in this turn, which leave room for the next connections."""
    return max(<unsigned int>TURN_COMPLETIONS // max(t.left_over, <unsigned int>1), <unsigned int>COMPLETIONS_LEAST)


cdef inline void begin_turn(rdma_conn *rc) noexcept nogil:
    """Gives the connection its share of the worker's turn, once in a turn."""
    cdef const rdma_thread *t = rc.q.t
    if rc.turn != t.turn:
        rc.turn = t.turn
        rc.completions_left = share_of_turn(t)
        lanes_begin_turn(rc)


cdef void serve(rdma_conn *rc) noexcept nogil:
    """Lets lanes go on that gave way, and takes completions, until the connection's share of the turn is used up. The
    call may destroy the connection."""
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    assert_that(t.nchain == 0)
    begin_turn(rc)
    if t.now:
        pace_begin(&rc.pace, t.now)
    if t.broken:
        queue_fail(&rc.q, NULL, IBV_WC_SUCCESS)
    if lanes_runnable(rc) and not rc.q.failed:
        lanes_resume_runnable(rc)
    # After a client's end a failure may follow its last messages: the failure waits for the lanes' commands.
    while rc.nkept and rc.completions_left and (rc.q.failed or not must_wait(rc)):
        rc.completions_left -= 1
        t.turn_left -= 1
        take_completion(rc, completions_next(rc))
    if lanes_blocked(rc) and not rc.q.failed:
        lanes_retry_blocked(rc)
    end_turn(rc)
    if t.now:
        t.served = now_ns()
        t.least_gap = min(t.least_gap, pace_end(&rc.pace, t.served))
    if rc.nkept or rc.q.closing and not t.drained:
        counter_add(&t.worker.stats.conn_yields, rc.nkept != 0)
        thread_ready(rc)
    end_if_done(rc)


cdef inline bint must_wait(const rdma_conn *rc) noexcept nogil:
    """Whether the next completions wait for the next turn."""
    return lanes_end_turn(rc) or rc.q.closing and lanes_runnable(rc)


cdef void end_if_done(rdma_conn *rc) noexcept nogil:
    """Ends a failed connection, and a connection whose client has ended and has no more commands to be done."""
    if rc.q.closing and not rc.listed and not rc.q.failed:
        if not rc.lost:
            rc.q.t.failed(rc.owner, NULL)
            return
        queue_fail(&rc.q, NULL, IBV_WC_WR_FLUSH_ERR)
    if rc.q.failed:
        report_failure(rc)


cdef void report_failure(rdma_conn *rc) noexcept nogil:
    """Reports the loss of the connection to the owner. The connection may be gone afterwards."""
    cdef rdma_queue *q = &rc.q
    cdef rdma_thread *t = q.t
    cdef const transport_ops *transport = &t.dev.transport
    cdef char line[256]
    cdef ibv_wc_status status
    cdef int opcode
    if q.failure == NULL and transport.terminated != NULL and transport.terminated(q.qp, &opcode, &status):
        # A refused WRITE has completed here before the client's Terminate came: only the Terminate tells the failure.
        q.failure = b"RDMA WRITE failed" if opcode == <int>IBV_WR_RDMA_WRITE else b"SEND failed"
        q.failure_status = status
        if opcode == <int>IBV_WR_RDMA_WRITE:
            counter_add(&t.counters.write_errors, 1)
    if q.failure == NULL and transport.fault != NULL and q.qp != NULL:
        q.failure = transport.fault(q.qp)
        if q.failure != NULL:
            q.failure_status = IBV_WC_SUCCESS
    if q.failure != NULL or q.failure_status != IBV_WC_WR_FLUSH_ERR:
        # A flush alone is no error: the client has ended the queue pair, often before its lifeline.
        counter_add(&t.counters.qp_errors, 1)
    if q.failure == NULL:
        t.failed(rc.owner, NULL)
        return
    if q.failure_status == IBV_WC_SUCCESS:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: %s\r\n", q.failure)
    else:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: %s: %s\r\n", q.failure,
                 t.dev.provider.wc_status_str(q.failure_status))
    t.failed(rc.owner, line)


cdef void serve_ready(rdma_thread *t) noexcept nogil:
    """Serves the connections with something to do, the longest waiting first. Connections may go on in the next
    turn."""
    cdef rdma_conn *last = t.ready_last
    cdef rdma_conn *rc
    cdef bint more = last != NULL
    # The number is bounded: busy queue pairs must not starve the sockets of the same worker.
    cdef unsigned int left = SERVED_PER_TURN
    while more and left and not thread_turn_over(t):
        left -= 1
        rc = t.ready
        # rc is compared before serving, which may free rc.
        more = rc != last
        thread_unready(rc)
        serve(rc)


cdef void rdma_event_taken(ibv_qp *qp) noexcept nogil:
    thread_ready(<rdma_conn *>qp.qp_context)


cdef bint rdma_thread_run(rdma_thread *t, int64_t now, int64_t limit) noexcept nogil:
    assert_owner(t.worker.owner)
    t.now = now
    t.limit = limit
    t.least_gap = UINT32_MAX
    completions_take(t, TAKEN_AT_A_TIME)
    serve_ready(t)
    # Work requests may have completed meanwhile.
    while t.dev.soft and t.ready == NULL and not thread_turn_over(t) and completions_pending(t):
        completions_take(t, TAKEN_AT_A_TIME)
        serve_ready(t)
    t.left_over = t.nready
    return t.left_over != 0 or not t.drained


# ---- a worker's part of a device -------------------------------------------------------------------------------------

cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker, uint32_t number, int epfd, drive_fn drive,
                                     rdma_failed_fn failed, const rdma_lane_hooks *lanes) noexcept nogil:
    cdef rdma_thread *t = <rdma_thread *>calloc(1, sizeof(rdma_thread))
    assert_owner(worker.owner)
    if t == NULL:
        return NULL
    t.dev = dev
    t.worker = worker
    t.number = number
    t.drive = drive
    t.failed = failed
    t.lanes = lanes
    t.channel = dev.provider.create_comp_channel(dev.port.context)
    if t.channel != NULL and dev.soft and soft_channel_join(t.channel, epfd) != 0:
        dev.provider.destroy_comp_channel(t.channel)
        t.channel = NULL
    if t.channel == NULL:
        free(t)
        return NULL
    set_nonblocking(t.channel.fd)
    if not completions_open(t):
        completions_close(t)
        dev.provider.destroy_comp_channel(t.channel)
        free(t)
        return NULL
    t.counter_entry.counters = &t.counters
    t.counter_entry.soft = &t.soft
    rdma_device_enter_counters(dev, &t.counter_entry)
    return t


cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    assert_that(t.counters.queue_pairs == 0 and t.counters.registrations == 0 and t.counters.lanes == 0)
    assert_that(t.ready == NULL and t.nchain == 0 and t.setup_oldest == NULL and t.counters.unready == 0)
    rdma_device_retire_counters(t.dev, &t.counter_entry)
    completions_close(t)
    t.dev.provider.destroy_comp_channel(t.channel)
    free(t)


# ---- making and ending connections -----------------------------------------------------------------------------------

cdef bint bring_up(rdma_conn *rc, const exchange_request *req, const cm_id *cm) noexcept nogil:
    """Brings the queue pair to INIT, posts its receives, and brings the queue pair to RTR and RTS. False: an error."""
    cdef rdma_device *dev = rc.q.t.dev
    cdef ibv_qp *qp = rc.q.qp
    cdef qp_address peer
    cdef unsigned int ird = reads_answered(dev, req.ord)
    cdef unsigned int ord = min(dev.limits.ord, <unsigned int>req.ird)
    cdef int error
    if cm != NULL:
        error = cm_modify_qp(cm.fd, cm.id, &dev.port, qp, IBV_QPS_INIT, 0)
    else:
        error = verbs_qp_init(&dev.port, qp, 0)
    if error:
        return False
    if not queue_post_receives(&rc.q):
        return False
    if cm != NULL:
        return (cm_modify_qp(cm.fd, cm.id, &dev.port, qp, IBV_QPS_RTR, ird) == 0
                and cm_modify_qp(cm.fd, cm.id, &dev.port, qp, IBV_QPS_RTS, ord) == 0)
    peer.qpn = <uint32_t>req.qpn
    peer.psn = <uint32_t>req.psn
    peer.lid = <uint16_t>req.lid
    peer.mtu = <uint32_t>req.mtu
    peer.gid = req.gid
    return verbs_qp_connect(&dev.port, qp, rc.psn, &peer, ird, ord) == 0


cdef bint choose_psn(rdma_conn *rc) noexcept nogil:
    """Chooses a random number for the first packet, which nobody can guess from the queue pair's number. False: the
    system has no random octets."""
    if getrandom(&rc.psn, sizeof(rc.psn), 0) != sizeof(rc.psn):
        return False
    rc.psn &= RDMA_QPN_MAX
    return True


cdef rdma_conn *conn_make(rdma_thread *t, void *owner, const exchange_request *req, const cm_id *cm) noexcept nogil:
    """Makes a connection with a queue pair in RTS. cm: the connection of rdma_cm; NULL: the peer's address is in req.
    Returns NULL if out of resources."""
    cdef rdma_conn *rc
    if not rdma_device_admit(t.dev):
        return NULL
    rc = <rdma_conn *>calloc(1, sizeof(rdma_conn))
    if rc == NULL:
        rdma_device_release(t.dev)
        return NULL
    live_add(LIVE_RDMA_CONN)
    rc.owner = owner
    rc.direct = req.direct != 0
    rc.lane_bytes = <uint32_t>req.lane_bytes
    rc.table.size = t.dev.limits.lanes
    if queue_create(&rc.q, t, <unsigned int>req.credits, <unsigned int>req.msgsize):
        rc.q.qp.qp_context = rc
        completions_enter(rc)
        if choose_psn(rc) and bring_up(rc, req, cm) and setup_begin(rc):
            return rc
    conn_discard(rc)
    return NULL


cdef const char *why_not_made(rdma_thread *t) noexcept nogil:
    """The error line for the client after conn_make has failed."""
    if relaxed_load(&t.dev.queue_pairs) >= t.dev.limits.max_qps:
        counter_add(&t.counters.refused_queue_pairs, 1)
        return b"SERVER_ERROR rdma: too many queue pairs (rdma_max_qps)"
    return b"SERVER_ERROR rdma: out of resources"


cdef void rdma_conn_stop(rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    setup_end(rc)
    queue_stop(&rc.q)
    completions_leave(rc)
    thread_unready(rc)


cdef bint rdma_conn_free(rdma_conn *rc, unsigned int *lanes) noexcept nogil:
    cdef rdma_device *dev = rc.q.t.dev
    assert_owner(rc.q.t.worker.owner)
    if not lanes_free(rc, lanes):
        return False
    setup_take_back(rc)
    queue_free(&rc.q)
    if rc.by_cm:
        fetch_sub(&dev.cm_queue_pairs, 1)
    rdma_device_release(dev)
    free(rc)
    live_sub(LIVE_RDMA_CONN)
    return True


cdef void conn_discard(rdma_conn *rc) noexcept nogil:
    """Frees a connection without lanes that its owner never got."""
    cdef unsigned int none = 0
    assert_that(rc.first_lane == NULL)
    rdma_conn_stop(rc)
    rdma_conn_free(rc, &none)


# ---- the exchange ----------------------------------------------------------------------------------------------------

cdef bint is_near(const rdma_device *dev, const exchange_request *req) noexcept nogil:
    """Whether the client of this request is on this host and, if the endpoint has a network namespace, in this
    namespace. No other client can reach the endpoint of a near transport."""
    return (key_is(req.host, req.host_length, dev.endpoint.host)
            and (dev.endpoint.netns == 0 or dev.endpoint.netns == req.netns))


cdef bint few_descriptors(int fd, unsigned int needed) noexcept nogil:
    """Whether only the last descriptors are free. They are kept for plain connections: a client refused here goes on
    over its plain connection. The system gives the lowest free number. So this function takes as many descriptors as a
    client needs, and looks at the last number."""
    cdef rlimit limit
    cdef int[CLIENT_DESCRIPTORS] taken
    cdef int following = 0
    cdef unsigned int i
    cdef unsigned int n = 0
    assert_that(needed <= CLIENT_DESCRIPTORS)
    while n < needed and following >= 0:
        following = taken[n] = dup(fd)
        n += 1
    for i in range(n):
        if taken[i] >= 0:
            close(taken[i])
    if following < 0:
        return True
    if getrlimit(RLIMIT_NOFILE, &limit) != 0 or limit.rlim_cur > INT_MAX:
        return False
    return <uint64_t>following + SPARE_DESCRIPTORS + limit.rlim_cur // 16 >= limit.rlim_cur


cdef rdma_thread *thread_by_name(rdma_thread **threads, const exchange_request *req) noexcept nogil:
    """The worker's part of the device with the client's transport. NULL: there is no such device."""
    cdef unsigned int i
    for i in range(<unsigned int>RDMA_DEVICES):
        if (threads[i] != NULL and not threads[i].dev.port.cm_only
                and key_is(req.transport, req.transport_length, threads[i].dev.transport.name)):
            return threads[i]
    return NULL


cdef rdma_thread *first_thread(rdma_thread **threads) noexcept nogil:
    """The part that counts an exchange for a missing device."""
    cdef unsigned int i = 0
    while threads[i] == NULL:
        i += 1
    return threads[i]


cdef bint takes_cover(const rdma_thread *t, const exchange_request *req) noexcept nogil:
    """Whether the queue pair has a stream on the network, which the client wants to be inside TLS."""
    return req.tls == 1 and t.dev.transport.accept != NULL and not t.dev.transport.near


cdef void answer(rdma_conn *rc, const tls_context *tls, char *reply, size_t reply_size) noexcept nogil:
    """Writes the server's line of the exchange."""
    cdef rdma_device *dev = rc.q.t.dev
    cdef exchange_offer offer
    cdef tls_key key
    offer.workers = dev.limits.workers
    offer.worker = rc.q.t.number
    offer.lanes = rc.table.size
    offer.lane_bytes = RDMA_LANE_BYTES
    offer.direct = dev.remote
    offer.memory = rdma_device_memory(dev)
    offer.transport = dev.transport.name
    offer.qpn = rc.q.qp.qp_num
    offer.psn = rc.psn
    offer.gid = &dev.port.gid
    offer.lid = dev.port.lid
    offer.mtu = verbs_mtu_bytes(dev.port.mtu)
    offer.credits = dev.limits.credits
    offer.msgsize = dev.limits.msgsize
    offer.ird = dev.limits.ird
    offer.ord = dev.limits.ord
    offer.eager = dev.limits.eager
    offer.crc = dev.limits.crc
    offer.token = rc.token if dev.transport.accept != NULL else NULL
    offer.path = dev.endpoint.path if dev.endpoint.path[0] else NULL
    # Without a key the client has no stream.
    offer.key = &key if rc.covered and tls_make_key(tls, &key) else NULL
    write_offer(&offer, reply, reply_size)
    explicit_bzero(&key, sizeof(key))


cdef rdma_conn *rdma_exchange(rdma_thread **threads, void *owner, int sfd, bint has_one, const tls_context *tls,
                              bint cleartext, const char *line, size_t length, char *reply,
                              size_t reply_size) noexcept nogil:
    cdef exchange_request req
    cdef const char *wrong = parse_exchange(line, length, &req)
    cdef bint known = wrong == NULL and req.version == RDMA_VERSION
    cdef rdma_thread *t = thread_by_name(threads, &req) if known else NULL
    cdef rdma_thread *counting = t if t != NULL else first_thread(threads)
    cdef rdma_conn *rc = NULL
    assert_owner(counting.worker.owner)
    counter_add(&counting.counters.exchanges, 1)
    if wrong != NULL:
        snprintf(reply, reply_size, b"CLIENT_ERROR rdma: %s\r\n", wrong)
    elif not known:
        snprintf(reply, reply_size,
                 b"CLIENT_ERROR rdma: version %lu is not supported, this server speaks %d\r\n", req.version,
                 <int>RDMA_VERSION)
    elif has_one:
        snprintf(reply, reply_size, b"CLIENT_ERROR rdma: this connection has a queue pair\r\n")
    elif t == NULL:
        snprintf(reply, reply_size, b"SERVER_ERROR rdma: transport %.*s is not available here\r\n",
                 <int>min(req.transport_length, <size_t>32), req.transport)
    elif tls != NULL and not t.dev.transport.near and not takes_cover(t, &req) and not cleartext:
        snprintf(reply, reply_size,
                 b"SERVER_ERROR rdma: %s is not encrypted, and this connection is (the server's option rdma_cleartext"
                 b" allows it)\r\n", t.dev.transport.name)
    elif t.dev.transport.near and not is_near(t.dev, &req):
        snprintf(reply, reply_size, b"SERVER_ERROR rdma: %s needs a client on the same host%s\r\n",
                 t.dev.transport.name, <const char *>b" and network" if t.dev.endpoint.netns else <const char *>b"")
    elif t.dev.transport.accept != NULL and few_descriptors(sfd, t.dev.transport.descriptors):
        snprintf(reply, reply_size, b"SERVER_ERROR rdma: the server has too few file descriptors left\r\n")
    else:
        rc = conn_make(t, owner, &req, NULL)
        if rc == NULL:
            snprintf(reply, reply_size, b"%s\r\n", why_not_made(t))
    if rc == NULL:
        counter_add(&counting.counters.exchange_errors, 1)
        return NULL
    rc.sfd = sfd
    rc.covered = tls != NULL and takes_cover(t, &req)
    answer(rc, tls, reply, reply_size)
    return rc


cdef rdma_conn *rdma_cm_accept(rdma_thread **threads, void *owner, int cm_fd,
                               const rdma_request *request) noexcept nogil:
    cdef rdma_thread *t = threads[SYSTEM_TRANSPORT]
    cdef rdma_thread *counting = t if t != NULL else first_thread(threads)
    cdef rdma_device *dev = t.dev if t != NULL else NULL
    cdef exchange_request req
    cdef const char *wrong = read_hello(request, &req)
    cdef rdma_conn *rc = NULL
    cdef cm_id cm
    cdef char line[CM_REJECT_DATA]
    assert_owner(counting.worker.owner)
    cm.fd = cm_fd
    cm.id = request.id
    counter_add(&counting.counters.exchanges, 1)
    if wrong != NULL:
        snprintf(line, sizeof(line), b"CLIENT_ERROR rdma: %s", wrong)
    elif req.version != RDMA_VERSION:
        snprintf(line, sizeof(line), b"CLIENT_ERROR rdma: version %lu is not supported, this server speaks %d",
                 req.version, <int>RDMA_VERSION)
    elif dev == NULL:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: no device of the system is in use here")
    elif request.where.node_guid != dev.port.node_guid or request.where.port_num != dev.port.port_num:
        snprintf(line, sizeof(line), b"SERVER_ERROR rdma: port %d of device %.63s is in use here, not this one",
                 <int>dev.port.port_num, dev.provider.get_device_name(dev.port.context.device))
    else:
        rc = conn_make(t, owner, &req, &cm)
        line[0] = 0
        if rc == NULL:
            snprintf(line, sizeof(line), b"%s", why_not_made(t))
    if rc != NULL:
        rc.sfd = cm_fd
        rc.local = request.where.local
        rc.by_cm = True
        fetch_add(&dev.cm_queue_pairs, 1)
        if send_welcome(dev, t.number, rc.q.qp.qp_num, &req, cm_fd, request.id):
            return rc
        # The client has gone.
        conn_discard(rc)
    rdma_cm_refuse(cm_fd, request.id, line)
    counter_add(&counting.counters.exchange_errors, 1)
    return NULL


# ---- for the owner ---------------------------------------------------------------------------------------------------

cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil:
    return rc.q.t


cdef const sockaddr_in6 *rdma_cm_local(rdma_conn *rc) noexcept nogil:
    return &rc.local


cdef uint32_t rdma_conn_last_active(rdma_conn *rc) noexcept nogil:
    return rc.last_active


cdef bint rdma_conn_has_views(const rdma_conn *rc) noexcept nogil:
    return rc.pins != 0


cdef uint32_t rdma_conn_stalled_since(const rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    return 0 if rc.q.free_bulk == BULK_DEPTH else rc.q.bulk_moved


cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    if rc.q.failed or rc.q.free_bulk < BULK_DEPTH:
        # A READ or WRITE under way serves as well.
        return
    queue_probe(&rc.q)
    queue_ring_doorbell(&rc.q)
    if rc.q.failed:
        report_failure(rc)


cdef void rdma_conn_lanes(const rdma_conn *rc, void (*each)(void *arg, const conn *c, uint32_t id) noexcept nogil,
                          void *arg) noexcept nogil:
    cdef const rdma_lane *lane = rc.first_lane
    while lane != NULL:
        if lane.counted:
            each(arg, &lane.c, lane.id)
        lane = lane.next


cdef unsigned int rdma_conn_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil:
    cdef unsigned int ended
    assert_owner(rc.q.t.worker.owner)
    if rc.q.failed or rc.q.closing:
        return 0
    ended = lanes_end_idle(rc, seconds, oldest)
    queue_ring_doorbell(&rc.q)
    if rc.q.failed:
        report_failure(rc)
    return ended


cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    # A closing queue returns no credits, so a client that goes on cannot prolong its end.
    lanes_client_ended(rc)
    thread_ready(rc)
