"""See _endpoint.pxd."""

import os
import threading

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint16_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid

from rmemcached.client.transport._cm cimport CmRoute, cm_failure, raise_rejected, wait_cm_event
from rmemcached.client.transport._devices cimport device_removed, open_domain
from rmemcached.client.transport._errors cimport os_error, registration_error
from rmemcached.client.transport._exchange cimport makes_sense
from rmemcached.client.transport._lane cimport LANE_BYTES
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.transport._timeouts cimport poll_timeout
from rmemcached.client.transport._uninterrupted cimport take_descriptor
from rmemcached.rdma.wire cimport (
    EXCHANGE_REQUEST,
    HELLO_LENGTH,
    MESSAGE_HEADER,
    RDMA_LANES_MAX,
    RDMA_VERSION,
    get_welcome,
    put_hello,
    rdma_hello,
    rdma_welcome,
)
from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, assert_that, live_add
from rmemcached.sys.linux cimport (
    MSG_DONTWAIT, POLLIN, eventfd_signal, poll, pollfd, posix_memalign, recv, set_nonblocking,
)
from rmemcached.verbs.port cimport qp_address, verbs_mtu_bytes, verbs_qp_connect, verbs_qp_init
from rmemcached.verbs.soft cimport soft_qp_fault
from rmemcached.verbs.system_cm cimport (
    CM_CONNECT_RESPONSE,
    CM_DEVICE_REMOVAL,
    CM_ESTABLISHED,
    CM_REJECTED,
    cm_confirm,
    cm_connect,
    cm_ended,
    cm_modify_qp,
    cm_param,
)
from rmemcached.verbs.verbs cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    ibv_cq,
    ibv_post_recv,
    ibv_qp_init_attr,
    ibv_recv_wr,
    ibv_sge,
)

from rmemcached.host import host_identity

from rmemcached.client.exceptions import MemcacheServerError

cdef enum:
    REMOTE_ACCESS = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
    LAST_WORDS_WAIT = 1000   # ms for the server to give the reason of the queue pair's failure
    LAST_WORDS_MOST = 1024   # bytes of the reason


cdef uint16_t reads_of(Offer offer) noexcept:
    return min(<unsigned int>READS, offer.answers) if offer.direct else 1


cdef class Endpoint:
    """A queue pair that waits for its peer. OSError: no device, or out of resources.

    row: of transports.py. server: the Client's; no other server reaches memory registered for the queue pair. route:
    for rdma_cm; its descriptor belongs to the Endpoint afterwards.
    """

    def __cinit__(self, *_):
        self.fd = self.kick_fd = -1
        self.last_words = b""
        self.fault = ""
        self.pid = getpid()

    def __init__(self, row, server, CmRoute route=None):
        cdef int error
        if route is None:
            self.protection_domain = open_domain(row, server)
        else:
            self.protection_domain = open_domain(row, server, route.where.node_guid, route.where.port_num)
            self.by_cm = True
            self.cm_id = route.id
            self.fd = route.fd
            route.fd = -1
        live_add(LIVE_CLIENT_CONN)
        self.row = row
        self.device = self.protection_domain.device
        self.port = &self.device.port
        self.provider = self.device.port.provider
        self.soft = row.soft
        self.near = row.near
        self.inline_bytes = row.inline
        self.pd = self.protection_domain.pd
        self.psn = int.from_bytes(os.urandom(3), "big")
        self.open_queue()
        self.open_messages()
        if self.by_cm:
            error = cm_modify_qp(self.fd, self.cm_id, self.port, self.qp, IBV_QPS_INIT, REMOTE_ACCESS)
        else:
            error = verbs_qp_init(self.port, self.qp, REMOTE_ACCESS)
        if error:
            raise os_error("queue pair to INIT", error)
        self.post_all_receives()

    cdef int post_all_receives(self) except -1:
        cdef uint16_t indices[CREDITS]
        cdef unsigned int i
        cdef int error = 0
        for i in range(<unsigned int>CREDITS):
            indices[i] = <uint16_t>i
        for i in range(<unsigned int>(CREDITS // RECEIVES_AT_A_TIME)):
            error = error or self.post_receives(indices + i * RECEIVES_AT_A_TIME, RECEIVES_AT_A_TIME)
        if error:
            raise os_error("receives", error)
        return 0

    cdef int open_queue(self) except -1:
        # Makes the completion channel, the completion queue and the queue pair.
        cdef ibv_qp_init_attr init
        self.channel = self.provider.create_comp_channel(self.port.context)
        if self.channel == NULL or set_nonblocking(self.channel.fd) < 0:
            raise os_error("completion channel", errno)
        self.cq = self.provider.create_cq(self.port.context, CREDITS + SEND_DEPTH + READS, NULL, self.channel, 0)
        if self.cq == NULL:
            raise os_error("completion queue", errno)
        memset(&init, 0, sizeof(init))
        init.send_cq = self.cq
        init.recv_cq = self.cq
        init.cap.max_send_wr = SEND_DEPTH + READS
        init.cap.max_recv_wr = CREDITS
        init.cap.max_send_sge = 1
        init.cap.max_recv_sge = 1
        init.cap.max_inline_data = self.inline_bytes
        init.qp_type = IBV_QPT_RC
        self.qp = self.provider.create_qp(self.pd, &init)
        if self.qp == NULL:
            raise os_error("queue pair", errno)
        return 0

    cdef int open_messages(self) except -1:
        # Makes and registers the message buffers.
        cdef size_t length = (CREDITS + SEND_BUFFERS) * MESSAGE_SIZE
        cdef int i
        if posix_memalign(<void **>&self.buffer, 4096, length) != 0:
            self.buffer = NULL
            raise MemoryError
        self.mr = self.provider.reg_mr(self.pd, self.buffer, length, IBV_ACCESS_LOCAL_WRITE)
        if self.mr == NULL:
            raise registration_error(self.provider, length, errno)
        for i in range(SEND_BUFFERS):
            self.free_sends[i] = i
        self.free_count = SEND_BUFFERS
        return 0

    # --- connecting ---

    def exchange_line(self, bint tls=False):
        """The client's exchange line, as bytes. tls: the second connection is to have TLS. OSError: for a near server,
        this host cannot be told from others.
        """
        cdef str host = ""
        cdef unsigned int reads = self.most_reads()
        if self.near:
            # From a near server items are not read by READs.
            reads = 1
            host = " host={} netns={} direct=1".format(*host_identity())
        return (
            f"{EXCHANGE_REQUEST.decode()} version={<int>RDMA_VERSION} transport={self.row.name} "
            f"qpn={self.qp.qp_num} psn={self.psn} gid={(<const char *>self.port.gid.raw)[:16].hex()} "
            f"lid={self.port.lid} mtu={verbs_mtu_bytes(self.port.mtu)} credits={<int>CREDITS} "
            f"msgsize={<int>MESSAGE_SIZE} ird={<int>READS} ord={reads} crc=0 "
            f"lanebytes={<int>LANE_BYTES}{host}{' tls=1' if tls else ''}\r\n"
        ).encode()

    cdef int connect_to(self, Offer offer) except -1:
        cdef qp_address peer
        cdef int error
        self.tx_credits = min(offer.credits, <unsigned int>SEND_DEPTH)
        self.workers = offer.workers
        self.most_lanes = offer.lanes
        self.lane_bytes = offer.lane_bytes
        self.offers_reads = offer.direct
        self.memory = offer.memory
        self.room = min(offer.msgsize, <size_t>MESSAGE_SIZE) - MESSAGE_HEADER
        self.eager = offer.eager
        peer.qpn = offer.qpn
        peer.psn = offer.psn
        peer.lid = offer.lid
        peer.mtu = offer.mtu
        memcpy(peer.gid.raw, PyBytes_AS_STRING(offer.gid), 16)
        error = verbs_qp_connect(self.port, self.qp, self.psn, &peer, min(<unsigned int>READS, offer.reads),
                                 reads_of(offer))
        if error:
            raise os_error("queue pair to RTS", error)
        return 0

    cdef int agree(self, int64_t deadline) except -1:
        cdef cm_event event
        cdef cm_param param
        cdef char data[HELLO_LENGTH]
        cdef rdma_hello hello
        cdef unsigned int reads = min(<unsigned int>READS, <unsigned int>self.port.max_dest_rd_atomic)
        cdef unsigned int asked = 1
        cdef int error
        hello.version = RDMA_VERSION
        hello.credits = CREDITS
        hello.msgsize = MESSAGE_SIZE
        hello.lane_bytes = LANE_BYTES
        put_hello(data, &hello)
        param.qpn = self.qp.qp_num
        param.responder_resources = reads
        param.initiator_depth = self.most_reads()
        param.private_data = data
        param.length = HELLO_LENGTH
        error = cm_connect(self.fd, self.cm_id, &param)
        if error:
            raise os_error(self.row.name, error)
        wait_cm_event(self.fd, &event, deadline)
        if event.type == CM_REJECTED:
            raise_rejected(&event)
        # iWARP has no third message: the connection is there with the reply.
        if event.type != CM_CONNECT_RESPONSE and event.type != CM_ESTABLISHED:
            raise cm_failure(&event)
        self.accept_welcome(&event)
        if event.type == CM_CONNECT_RESPONSE:
            error = cm_modify_qp(
                self.fd, self.cm_id, self.port, self.qp, IBV_QPS_RTR, min(reads, event.responder_resources))
            if error == 0:
                if self.offers_reads:
                    asked = max(min(self.most_reads(), event.initiator_depth), <unsigned int>1)
                error = cm_modify_qp(self.fd, self.cm_id, self.port, self.qp, IBV_QPS_RTS, asked)
            if error == 0:
                error = cm_confirm(self.fd, self.cm_id)
            if error:
                raise os_error("queue pair to RTS", error)
        return 0

    cdef int accept_welcome(self, const cm_event *event) except -1:
        cdef rdma_welcome welcome
        if (not get_welcome(&event.private_data[0], event.length, &welcome)
                or not makes_sense(welcome.both.version, welcome.both.credits, welcome.both.msgsize,
                                   welcome.both.lane_bytes, welcome.lanes, welcome.workers)):
            raise MemcacheServerError("what answers through rdma_cm is no rmemcached")
        self.tx_credits = min(<unsigned int>welcome.both.credits, <unsigned int>SEND_DEPTH)
        self.room = min(<size_t>welcome.both.msgsize, <size_t>MESSAGE_SIZE) - MESSAGE_HEADER
        self.lane_bytes = welcome.both.lane_bytes
        self.eager = welcome.eager
        self.most_lanes = min(welcome.lanes, <unsigned int>RDMA_LANES_MAX)
        self.workers = welcome.workers
        self.offers_reads = welcome.direct == 1
        return 0

    cdef unsigned int most_reads(self) noexcept:
        return <unsigned int>max(min(<int>READS, <int>self.port.max_rd_atomic), 1)

    cdef int post_receives(self, const uint16_t *indices, unsigned int count) noexcept nogil:
        cdef ibv_sge sges[RECEIVES_AT_A_TIME]
        cdef ibv_recv_wr wrs[RECEIVES_AT_A_TIME]
        cdef ibv_recv_wr *bad
        cdef unsigned int i
        assert_that(0 < count <= RECEIVES_AT_A_TIME)
        for i in range(count):
            sges[i].addr = <uint64_t><uintptr_t>(self.buffer + <size_t>indices[i] * MESSAGE_SIZE)
            sges[i].length = MESSAGE_SIZE
            sges[i].lkey = self.mr.lkey
            wrs[i].wr_id = RECEIVE | indices[i]
            wrs[i].next = &wrs[i + 1]
            wrs[i].sg_list = &sges[i]
            wrs[i].num_sge = 1
        wrs[count - 1].next = NULL
        return ibv_post_recv(self.qp, wrs, &bad)

    cdef str hear_last_words(self, int limit):
        cdef char chunk[512]
        cdef bytes heard
        cdef pollfd waiting
        cdef int wait = min(limit, <int>LAST_WORDS_WAIT) if limit >= 0 else <int>LAST_WORDS_WAIT
        cdef int64_t deadline = now_ns() + <int64_t>wait * 1000000
        cdef ssize_t n = 1
        cdef int timeout
        if self.secure is not None:
            self.hear_secretly(wait)
            n = 0
        waiting.fd = self.fd
        waiting.events = POLLIN
        while n > 0 and self.fd >= 0 and not self.by_cm and len(self.last_words) < LAST_WORDS_MOST:
            with nogil:
                timeout = poll_timeout(deadline, now_ns())
                n = poll(&waiting, 1, timeout) if timeout else 0
                if n > 0:
                    n = recv(self.fd, chunk, sizeof(chunk), MSG_DONTWAIT)
            if n > 0:
                heard = chunk[:n]
                lock_state(&shared_state)
                self.last_words += heard
                unlock_state(&shared_state)
        lock_state(&shared_state)
        heard = self.last_words
        unlock_state(&shared_state)
        return heard.decode("ascii", "replace").strip()

    cdef int take_lifeline(self, client, lifeline) except -1:
        if client.tls_context is None:
            self.fd = take_descriptor(lifeline)
            return 0
        self.secure = lifeline
        self.listening = threading.Lock()
        self.fd = os.dup(lifeline.fileno())
        return 0

    cdef void close_secure(self) noexcept:
        secure = self.secure
        self.secure = None
        if secure is not None:
            try:
                secure.close()
            except Exception:
                # Sockets of other modules than ssl may raise when the connection has ended.
                pass

    cdef int hear_secretly(self, int wait) noexcept:
        cdef int64_t deadline = now_ns() + <int64_t>wait * 1000000
        cdef int left
        try:
            with self.listening:
                while len(self.last_words) < LAST_WORDS_MOST:
                    left = poll_timeout(deadline, now_ns())
                    self.secure.settimeout(left / 1000)
                    heard = self.secure.recv(512)
                    if not heard:
                        break
                    lock_state(&shared_state)
                    self.last_words += heard
                    unlock_state(&shared_state)
        except Exception:
            # Nothing has come in time, or the connection has ended without a word.
            pass
        return 0

    cdef void take_event(self) noexcept nogil:
        # Takes one event: the queue was armed once.
        cdef ibv_cq *cq
        cdef void *context
        if self.provider.get_cq_event(self.channel, &cq, &context) == 0:
            self.provider.ack_cq_events(cq, 1)

    cdef bint look_at_lifeline(self) noexcept nogil:
        cdef int event
        if self.by_cm:
            event = cm_ended(self.fd)
            if event != 0:
                store_release(&self.lifeline_ended, True)
                # cm_ended has taken the event, which no longer wakes the thread that sleeps for the queue pair.
                if self.kick_fd >= 0:
                    eventfd_signal(self.kick_fd)
            if event == CM_DEVICE_REMOVAL:
                device_removed(self.device)
            return True
        # The server never asks anything on the lifeline, so input means its end. The first call returns True, because
        # completions may still wait to be reaped.
        if self.lifeline_ended:
            return False
        store_release(&self.lifeline_ended, True)
        return True

    cdef bint peer_has_ended(self) noexcept nogil:
        cdef pollfd lifeline
        cdef bint readable
        lifeline.fd = self.fd
        lifeline.events = POLLIN
        readable = poll(&lifeline, 1, 0) > 0
        if not self.by_cm:
            return readable
        if readable:
            self.look_at_lifeline()
        return load_acquire(&self.lifeline_ended)

    cdef void note_fault(self) noexcept:
        cdef const char *fault = soft_qp_fault(self.qp) if self.soft and self.qp != NULL else NULL
        if fault != NULL:
            self.fault = f"the stream to the server broke: {fault.decode()}"

    cdef bint foreign(self) noexcept nogil:
        return getpid() != self.pid
