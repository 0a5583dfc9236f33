"""The per-connection RDMA resource (docs/rdma-protocol.md): exchange, post, complete, tear down.

Each queue pair has a completion queue of its own on the worker's completion channel: an event names the connection
that has something to do, and idle connections cost nothing. A connection owns one registered buffer, cut into receive
and send messages; item memory is registered once for the whole device. Whatever could not be posted for want of
credits, send buffers or send queue entries stays where it is (in the reply list of its stream) and is tried again at
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
    conn_want, conn_write_posted, mc_resp, stat_append, stat_append_text, stat_buf,
)
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
    READS_AT_A_TIME = 16         # of one stream
    POLL_BATCH = 32
    EVENTS_PER_TURN = 256
    TOKEN_BUCKETS = 1024
    MAX_EXTENTS = 16384          # 1 TiB of arena
    INPUT_MAX = 256 * 1024       # unparsed bytes of a stream beyond which its receives are not given back
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
    rdma_stream *stream          # WR_READ
    item *item                   # WR_WRITE: the reference to drop; NULL on all but the last of an item

cdef struct rdma_stream:
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
    uint64_t streams
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
    rdma_conn *yielded                   # connections with streams that gave way
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
    rdma_stream *streams[RDMA_LANES]
    uint64_t live                        # bit per stream id
    uint64_t blocked                     # streams with replies that could not be posted
    uint64_t runnable                    # streams that gave way
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
    uint32_t last_cmd_time               # of its streams
    const char *failure                  # which operation, for the error line; NULL: the peer went away
    ibv_wc_status failure_status
    uint8_t token[RDMA_TOKEN_LENGTH]


# ---- the device ------------------------------------------------------------------------------------------------------

cdef void set_nonblocking(int fd) noexcept nogil:
    fcntl(fd, F_SETFL, <int>(fcntl(fd, F_GETFL) | O_NONBLOCK))


cdef rdma_device *rdma_device_open(const verbs_port *port, rdma_transport transport, const rdma_limits *limits,
                                   const rdma_place *place, drive_fn drive, rdma_failed_fn failed,
                                   const char **error) noexcept nogil:
    """Takes over the port's context, also when it fails (NULL, with a constant line in *error)."""
    cdef rdma_device *dev = <rdma_device *>calloc(1, sizeof(rdma_device))
    if dev == NULL:
        error[0] = b"out of memory"
        port.provider.close_device(port.context)
        return NULL
    dev.port = port[0]
    dev.provider = port.provider
    dev.transport = transport
    if place != NULL:
        dev.place = place[0]
    set_nonblocking(port.context.async_fd)
    dev.limits = limits[0]
    dev.limits.ird = min(dev.limits.ird, <unsigned int>port.max_dest_rd_atomic)
    dev.limits.ord = min(dev.limits.ord, <unsigned int>port.max_rd_atomic)
    dev.drive = drive
    dev.failed = failed
    pthread_mutex_init(&dev.lock, NULL)
    if dev.limits.ord == 0 or port.max_qp_wr < SEND_DEPTH or port.max_cqe < SEND_DEPTH:
        error[0] = b"the RDMA device has no RDMA READ, or its queues are too short"
    else:
        dev.limits.credits = min(dev.limits.credits, <unsigned int>port.max_qp_wr,
                                 <unsigned int>port.max_cqe - SEND_DEPTH)
        dev.pd = port.provider.alloc_pd(port.context)
        error[0] = b"the RDMA device refused a protection domain"
    if dev.pd == NULL:
        rdma_device_close(dev)
        return NULL
    dev.read_sges = <unsigned int>max(1, min(port.max_sge_rd, <int>BULK_SGES))
    dev.write_sges = <unsigned int>max(1, min(port.max_sge, <int>BULK_SGES))
    return dev


cdef void rdma_device_close(rdma_device *dev) noexcept nogil:
    """Frees the device. All its threads and connections have been destroyed."""
    cdef int i
    for i in range(MAX_EXTENTS):
        if dev.extents[i] != NULL:
            dev.provider.dereg_mr(dev.extents[i])
    if dev.pd != NULL:
        dev.provider.dealloc_pd(dev.pd)
    dev.provider.close_device(dev.port.context)
    pthread_mutex_destroy(&dev.lock)
    free(dev)


cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil:
    cdef size_t index
    cdef ibv_mr *mr
    pthread_mutex_lock(&dev.lock)
    if dev.arena == NULL:
        dev.arena = <char *>addr
    index = <size_t>(<char *>addr - dev.arena) // ARENA_EXTENT
    mr = NULL
    if index < MAX_EXTENTS:
        mr = dev.provider.reg_mr(dev.pd, addr, length, IBV_ACCESS_LOCAL_WRITE)
    if mr != NULL:
        dev.extents[index] = mr
        fetch_add(&dev.extent_registrations, 1)
    pthread_mutex_unlock(&dev.lock)
    return 0 if mr != NULL else -1


cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil:
    cdef void *memory = NULL
    cdef ibv_mr *mr
    cdef int error = posix_memalign(&memory, 4096, length)
    if error:
        return error
    mr = dev.provider.reg_mr(dev.pd, memory, length, IBV_ACCESS_LOCAL_WRITE)
    if mr == NULL:
        error = errno
    else:
        dev.provider.dereg_mr(mr)
    free(memory)
    return error


cdef inline ibv_mr *extent_of(rdma_device *dev, void *addr) noexcept nogil:
    cdef size_t index = <size_t>(<char *>addr - dev.arena) // ARENA_EXTENT
    return dev.extents[index] if index < MAX_EXTENTS else NULL


cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker) noexcept nogil:
    cdef rdma_thread *t = <rdma_thread *>calloc(1, sizeof(rdma_thread))
    if t == NULL:
        return NULL
    t.dev = dev
    t.worker = worker
    t.channel = dev.provider.create_comp_channel(dev.port.context)
    if t.channel == NULL:
        free(t)
        return NULL
    set_nonblocking(t.channel.fd)
    pthread_mutex_lock(&dev.lock)
    t.next = dev.threads
    dev.threads = t
    pthread_mutex_unlock(&dev.lock)
    return t


cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil:
    """Frees the thread's part. Its connections have been destroyed."""
    cdef rdma_thread **link
    pthread_mutex_lock(&t.dev.lock)
    link = &t.dev.threads
    while link[0] != t:
        link = &link[0].next
    link[0] = t.next
    add_array(<uint64_t *>&t.dev.retired, <const uint64_t *>&t.counters, sizeof(rdma_counters) // sizeof(uint64_t))
    pthread_mutex_unlock(&t.dev.lock)
    t.dev.provider.destroy_comp_channel(t.channel)
    free(t)


cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil:
    return t.channel.fd


cdef bint rdma_thread_poll(rdma_thread *t, bint readable) noexcept nogil:
    return (t.dev.transport == TRANSPORT_SOFT_SHM and t.counters.queue_pairs != 0
            and soft_channel_poll(t.channel, readable))


cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil:
    return t.dev.transport == TRANSPORT_SOFT_SHM and t.counters.queue_pairs != 0 and soft_channel_arm(t.channel)


# ---- streams ---------------------------------------------------------------------------------------------------------

cdef const char *lane_exchange(conn *c, const char *line, size_t length, char *reply,
                               size_t reply_size) noexcept nogil:
    return b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"


cdef conn_engine lane_engine = conn_engine(exchange=lane_exchange, watch=NULL, dump=NULL, remote=True, datagrams=False)


cdef rdma_stream *stream_open(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_stream *st = <rdma_stream *>calloc(1, sizeof(rdma_stream))
    if st == NULL:
        return NULL
    conn_init(&st.c, rc.t.worker, &lane_engine)
    st.c.sfd = rc.sfd
    st.c.eager = rc.t.dev.limits.eager
    if rc.by_cm and rc.t.worker.hooks.authenticate != NULL:
        # Nobody has authenticated himself on a lifeline.
        st.c.auth_wanted = AUTH_LINE
    st.rc = rc
    st.id = id
    rc.streams[id] = st
    rc.live |= <uint64_t>1 << id
    counter_add(&rc.t.counters.streams, 1)
    return st


cdef void stream_close(rdma_stream *st) noexcept nogil:
    cdef rdma_conn *rc = st.rc
    cdef uint64_t bit = <uint64_t>1 << st.id
    while st.deferred:
        st.deferred -= 1
        rc.owed += 1
    rc.live &= ~bit
    rc.blocked &= ~bit
    rc.runnable &= ~bit
    rc.streams[st.id] = NULL
    conn_release(&st.c)
    free(st.inbuf)
    free(st)
    counter_add(&rc.t.counters.streams, <uint64_t>-1)


cdef bint stream_keep(rdma_stream *st, const char *more, size_t length) noexcept nogil:
    """Puts `length` bytes behind the unparsed ones, in memory of the stream's own. False: out of memory."""
    cdef conn *c = &st.c
    cdef size_t total = c.rbytes + length
    cdef size_t size
    cdef char *fresh
    if total == 0:
        free(st.inbuf)
        st.inbuf = NULL
        st.insize = 0
        return True
    if st.inbuf != NULL and st.inbuf <= c.rcurr < st.inbuf + st.insize:
        if c.rcurr + total > st.inbuf + st.insize:
            memmove(st.inbuf, c.rcurr, c.rbytes)
            c.rcurr = st.inbuf
    if st.inbuf == NULL or not st.inbuf <= c.rcurr < st.inbuf + st.insize or c.rcurr + total > st.inbuf + st.insize:
        size = 4096
        while size < total:
            size *= 2
        fresh = <char *>malloc(size)
        if fresh == NULL:
            return False
        memcpy(fresh, c.rcurr, c.rbytes)
        free(st.inbuf)
        st.inbuf = fresh
        st.insize = size
        c.rcurr = fresh
    if length:
        memcpy(c.rcurr + c.rbytes, more, length)
        c.rbytes += length
    return True


# ---- posting ---------------------------------------------------------------------------------------------------------

cdef void rc_fail(rdma_conn *rc, const char *operation, ibv_wc_status status) noexcept nogil:
    """The queue pair is of no use any more. The first reason is kept: what follows it are only flushes."""
    if not rc.failed:
        rc.failed = True
        rc.failure = operation
        rc.failure_status = status
        counter_add(&rc.t.counters.qp_errors, 1)


cdef inline char *send_buffer(rdma_conn *rc, unsigned int index) noexcept nogil:
    return rc.buffer + <size_t>(rc.t.dev.limits.credits) * rc.t.dev.limits.msgsize + <size_t>index * rc.send_msgsize


cdef bint may_send(rdma_conn *rc) noexcept nogil:
    """Whether a DATA message can be posted: a buffer, and a credit besides the last, which is for CREDIT."""
    if rc.free_sends == 0:
        return False
    if rc.tx_credits >= 2:
        return True
    counter_add(&rc.t.counters.credit_waits, 1)
    return False


cdef ibv_send_wr *chain_request(rdma_conn *rc, uint64_t id) noexcept nogil:
    """Appends a signalled work request to the chain, without elements; there is room, as each has a reserved entry."""
    cdef rdma_thread *t = rc.t
    cdef ibv_send_wr *wr = &t.chain[t.nchain]
    memset(wr, 0, sizeof(ibv_send_wr))
    wr.wr_id = id
    wr.sg_list = t.sges[t.nchain]
    wr.send_flags = IBV_SEND_SIGNALED
    if t.nchain:
        t.chain[t.nchain - 1].next = wr
    t.nchain += 1
    return wr


cdef inline void add_element(ibv_send_wr *wr, void *addr, size_t length, uint32_t lkey) noexcept nogil:
    cdef ibv_sge *sge = &wr.sg_list[wr.num_sge]
    sge.addr = <uint64_t><uintptr_t>addr
    sge.length = <uint32_t>length
    sge.lkey = lkey
    wr.num_sge += 1


cdef void ring_doorbell(rdma_conn *rc) noexcept nogil:
    """Posts the chain at once: what one turn has to say leaves together, a WRITE with the reply behind it."""
    cdef rdma_thread *t = rc.t
    cdef ibv_send_wr *bad
    if t.nchain:
        t.nchain = 0
        if ibv_post_send(rc.qp, t.chain, &bad) != 0:
            rc_fail(rc, NULL, IBV_WC_SUCCESS)


cdef void post_message(rdma_conn *rc, uint8_t kind, uint32_t stream, unsigned int index, size_t payload) noexcept nogil:
    """Sends buffer `index`, which has `payload` bytes behind the header's place."""
    cdef char *buf = send_buffer(rc, index)
    cdef ibv_send_wr *wr
    put_message_header(buf, kind, <uint16_t>rc.owed, stream)
    wr = chain_request(rc, index)
    add_element(wr, buf, MESSAGE_HEADER + payload, rc.mr.lkey)
    wr.opcode = IBV_WR_SEND
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED
    rc.wrs[index].kind = WR_SEND
    rc.rx_credits += rc.owed
    rc.owed = 0
    rc.tx_credits -= 1
    counter_add(&rc.t.counters.sends, 1)
    counter_add(&rc.t.counters.send_bytes, payload)


cdef void return_credits(rdma_conn *rc) noexcept nogil:
    """Announces receives that no reply has carried, once half of them wait to be."""
    if rc.owed * 2 >= rc.t.dev.limits.credits and rc.tx_credits and rc.free_sends and not rc.failed:
        rc.free_sends -= 1
        post_message(rc, MESSAGE_CREDIT, 0, rc.free_send[rc.free_sends], 0)


cdef ssize_t post_bulk(rdma_conn *rc, wr_kind kind, const iovec *iov, int count, uint64_t remote, uint32_t rkey,
                       rdma_stream *st) noexcept nogil:
    """Chains one READ into, or WRITE out of, extents of item memory. The caller has seen that an entry is free.

    The octets of them all, or -1: the connection has failed.
    """
    cdef ibv_send_wr *wr
    cdef unsigned int index
    cdef uint32_t length = 0
    cdef int i
    for i in range(count):
        if extent_of(rc.t.dev, iov[i].iov_base) == NULL:
            rc_fail(rc, NULL, IBV_WC_SUCCESS)
            return -1
    rc.free_bulk -= 1
    index = rc.free_wr[rc.free_bulk]
    wr = chain_request(rc, index)
    wr.opcode = IBV_WR_RDMA_READ if kind == WR_READ else IBV_WR_RDMA_WRITE
    wr.wr.rdma.remote_addr = remote
    wr.wr.rdma.rkey = rkey
    for i in range(count):
        add_element(wr, iov[i].iov_base, iov[i].iov_len, extent_of(rc.t.dev, iov[i].iov_base).lkey)
        length += <uint32_t>iov[i].iov_len
    rc.wrs[index].kind = kind
    rc.wrs[index].length = length
    rc.wrs[index].stream = st
    rc.wrs[index].item = NULL
    return length


cdef bint stream_read(rdma_stream *st) noexcept nogil:
    """Posts READs for the payload that the machine waits for. False: no entry was free, to be tried again."""
    cdef rdma_conn *rc = st.rc
    cdef conn *c = &st.c
    cdef iovec iov[READS_AT_A_TIME * BULK_SGES]
    cdef int count, n
    cdef int done = 0
    cdef int per = <int>rc.t.dev.read_sges
    cdef ssize_t length
    cdef uint64_t remote = c.remote.addr + c.roffset
    if rc.free_bulk == 0:
        return False
    count = conn_payload_iov(c, iov, <int>min(rc.free_bulk, <unsigned int>READS_AT_A_TIME) * per)
    while done < count:
        n = min(count - done, per)
        length = post_bulk(rc, WR_READ, &iov[done], n, remote, c.remote.rkey, st)
        if length < 0:
            return True
        done += n
        remote += <uint64_t>length
        st.reads += 1
        st.read_bytes += <size_t>length
    return True


cdef bint stream_write(rdma_stream *st, mc_resp *resp) noexcept nogil:
    """Chains WRITEs of a reply's data into the memory the client named. False: the queue is full; goes on later."""
    cdef rdma_conn *rc = st.rc
    cdef iovec iov[BULK_SGES]
    cdef item *it = resp.item
    cdef ssize_t length
    cdef int count
    while st.write_off < resp.data_length:
        if rc.free_bulk == 0:
            return False
        count = item_iov(it, resp.data_offset + st.write_off, resp.data_length - st.write_off, iov,
                         <int>rc.t.dev.write_sges)
        length = post_bulk(rc, WR_WRITE, iov, count, resp.sink.addr + st.write_off, resp.sink.rkey, st)
        if length < 0:
            return False
        st.write_off += <size_t>length
        if st.write_off == resp.data_length:
            # The reference goes with the last WRITE: they complete in order.
            rc.wrs[rc.free_wr[rc.free_bulk]].item = it
    st.write_off = 0
    conn_write_posted(&st.c)
    return True


cdef bint stream_flush(rdma_stream *st) noexcept nogil:
    """Posts the stream's replies. True: all have been; else the stream is marked blocked."""
    cdef rdma_conn *rc = st.rc
    cdef conn *c = &st.c
    cdef iovec iov[32]
    cdef mc_resp *resp
    cdef char *buf
    cdef size_t n
    cdef int i, count
    cdef unsigned int index
    cdef uint64_t bit = <uint64_t>1 << st.id
    while c.npending and not rc.failed:
        resp = conn_next_write(c)
        if resp != NULL:
            if not stream_write(st, resp):
                rc.blocked |= bit
                return False
            continue
        count = conn_gather(c, iov, 32, rc.send_msgsize - MESSAGE_HEADER)
        if count == 0:
            conn_sent(c, 0)
            if conn_next_write(c) == NULL:
                break
            continue
        if not may_send(rc):
            rc.blocked |= bit
            return False
        rc.free_sends -= 1
        index = rc.free_send[rc.free_sends]
        buf = send_buffer(rc, index) + MESSAGE_HEADER
        n = 0
        for i in range(count):
            memcpy(buf + n, iov[i].iov_base, iov[i].iov_len)
            n += iov[i].iov_len
        post_message(rc, MESSAGE_DATA, st.id, index, n)
        conn_sent(c, n)
    rc.blocked &= ~bit
    return not rc.failed


cdef void rc_yield(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.t
    if not rc.yielding:
        rc.yielding = True
        rc.yield_prev = NULL
        rc.yield_next = t.yielded
        if t.yielded != NULL:
            t.yielded.yield_prev = rc
        t.yielded = rc


cdef void rc_unyield(rdma_conn *rc) noexcept nogil:
    if rc.yielding:
        rc.yielding = False
        if rc.yield_prev != NULL:
            rc.yield_prev.yield_next = rc.yield_next
        else:
            rc.t.yielded = rc.yield_next
        if rc.yield_next != NULL:
            rc.yield_next.yield_prev = rc.yield_prev


cdef void stream_run(rdma_stream *st) noexcept nogil:
    """Runs the machine over the stream's input as far as replies can leave and no payload is awaited."""
    cdef rdma_conn *rc = st.rc
    cdef uint64_t bit = <uint64_t>1 << st.id
    cdef conn_want want
    rc.runnable &= ~bit
    while True:
        if st.reads or not stream_flush(st):
            return
        want = rc.t.dev.drive(&st.c)
        rc.last_cmd_time = st.c.last_cmd_time
        if want == WANT_REMOTE_PAYLOAD:
            # Replies that came before it need not wait for the READ.
            stream_flush(st)
            if not stream_read(st):
                rc.blocked |= bit
            return
        if not stream_flush(st):
            return
        if want == WANT_CLOSE:
            stream_close(st)
            return
        if want == WANT_YIELD:
            rc.runnable |= bit
            rc_yield(rc)
            return
        if want != WANT_FLUSH:
            return


cdef bint stream_input(rdma_stream *st, const char *data, size_t length) noexcept nogil:
    """Takes the payload of a DATA message. False: the stream is gone or out of memory (then the connection has
    failed)."""
    cdef rdma_conn *rc = st.rc
    cdef uint32_t id = st.id
    cdef bint direct = st.c.rbytes == 0 and st.reads == 0 and not rc.blocked >> id & 1
    if direct:
        st.c.rcurr = <char *>data
        st.c.rbytes = length
        stream_run(st)
        if rc.streams[id] != st:
            return False
        if stream_keep(st, NULL, 0):
            return True
    elif stream_keep(st, data, length):
        if st.reads == 0 and not rc.blocked >> id & 1:
            stream_run(st)
            if rc.streams[id] != st:
                return False
        return True
    rc_fail(rc, NULL, IBV_WC_SUCCESS)
    return False


cdef void resume_streams(rdma_conn *rc, uint64_t which) noexcept nogil:
    """Lets streams go on that waited for room to post, or had given way."""
    cdef rdma_stream *st
    cdef uint32_t id = 0
    while which and not rc.failed:
        if which & 1:
            st = rc.streams[id]
            if st != NULL and st.reads == 0:
                rc.blocked &= ~(<uint64_t>1 << id)
                stream_run(st)
                st = rc.streams[id]
                if st != NULL and not stream_keep(st, NULL, 0):
                    rc_fail(rc, NULL, IBV_WC_SUCCESS)
        which >>= 1
        id += 1


# ---- completions -----------------------------------------------------------------------------------------------------

cdef bint post_receive(rdma_conn *rc, unsigned int index) noexcept nogil:
    cdef ibv_sge sge
    cdef ibv_recv_wr wr
    cdef ibv_recv_wr *bad
    cdef uint32_t size = rc.t.dev.limits.msgsize
    sge.addr = <uint64_t><uintptr_t>(rc.buffer + <size_t>index * size)
    sge.length = size
    sge.lkey = rc.mr.lkey
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = RECV_WR | index
    wr.sg_list = &sge
    wr.num_sge = 1
    return ibv_post_recv(rc.qp, &wr, &bad) == 0


cdef void take_message(rdma_conn *rc, unsigned int index, size_t length) noexcept nogil:
    """A SEND of the client has arrived in receive `index`."""
    cdef const char *data = rc.buffer + <size_t>index * rc.t.dev.limits.msgsize
    cdef message_header header
    cdef rdma_stream *st
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
        st = rc.streams[header.lane]
        if st == NULL:
            st = stream_open(rc, header.lane)
            if st == NULL:
                rc_fail(rc, NULL, IBV_WC_SUCCESS)
                return
        if length > MESSAGE_HEADER and stream_input(st, data + MESSAGE_HEADER, length - MESSAGE_HEADER):
            keep = st.c.rbytes > INPUT_MAX
    elif header.kind != MESSAGE_CREDIT:
        rc_fail(rc, b"a message of unknown type", IBV_WC_SUCCESS)
        return
    if rc.failed:
        return
    if not post_receive(rc, index):
        rc_fail(rc, NULL, IBV_WC_SUCCESS)
        return
    if keep:
        rc.streams[header.lane].deferred += 1
    else:
        rc.owed += 1


cdef void take_read(rdma_conn *rc, rdma_wr *entry) noexcept nogil:
    """One READ of a payload has completed; the last of a batch lets the machine go on."""
    cdef rdma_stream *st = entry.stream
    cdef size_t n
    counter_add(&rc.t.counters.reads, 1)
    counter_add(&rc.t.counters.read_bytes, entry.length)
    st.reads -= 1
    if st.reads:
        return
    n = st.read_bytes
    st.read_bytes = 0
    conn_payload_received(&st.c, n)
    if st.c.rlbytes:
        if not stream_read(st):
            rc.blocked |= <uint64_t>1 << st.id
        return
    resume_streams(rc, <uint64_t>1 << st.id)


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


cdef bint release_deferred(rdma_conn *rc) noexcept nogil:
    """Gives receives back that streams with too much input had held."""
    cdef uint64_t which = rc.live
    cdef uint32_t id = 0
    cdef rdma_stream *st
    while which:
        if which & 1:
            st = rc.streams[id]
            if st.deferred and st.c.rbytes <= INPUT_MAX:
                rc.owed += st.deferred
                st.deferred = 0
        which >>= 1
        id += 1
    return True


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


cdef void retry_blocked(rdma_conn *rc) noexcept nogil:
    """Tries again what could not be posted: READs first, then replies."""
    cdef uint64_t which = rc.blocked
    cdef uint32_t id = 0
    cdef rdma_stream *st
    while which and not rc.failed:
        if which & 1:
            st = rc.streams[id]
            if st.reads == 0 and st.c.state == conn_rdma_read:
                stream_flush(st)
                if stream_read(st):
                    rc.blocked &= ~(<uint64_t>1 << id)
            elif st.reads:
                stream_flush(st)
            else:
                resume_streams(rc, <uint64_t>1 << id)
        which >>= 1
        id += 1


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
        resume_streams(rc, which)
        if not rc.failed:
            release_deferred(rc)
            return_credits(rc)
        ring_doorbell(rc)
        if rc.failed:
            rc_report(rc)
        rc = following
    return t.yielded != NULL


include "rdma/attach.pyx"
include "rdma/cm.pyx"
include "rdma/device.pyx"
include "rdma/stats.pyx"
