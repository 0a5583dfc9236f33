"""See _queue_pair.pxd."""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ETIMEDOUT, errno
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid

from rmemcached.client._cm cimport CmRoute, cm_failure, raise_rejected, wait_cm_event
from rmemcached.client._devices cimport DEVICE_OF_CM, device_lost, device_removed, leave_domain, open_domain
from rmemcached.client._errors cimport os_error, registration_error
from rmemcached.client._timeouts cimport poll_timeout, start_deadline
from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH,
    EXCHANGE_REQUEST,
    HELLO_LENGTH,
    MESSAGE_CREDIT,
    MESSAGE_DATA,
    MESSAGE_HEADER,
    MESSAGE_READY,
    RDMA_CREDITS_MIN,
    RDMA_MSGSIZE_MIN,
    RDMA_VERSION_1,
    RDMA_TRANSPORTS,
    get_message_header,
    get_welcome,
    message_header,
    put_attach,
    put_hello,
    put_message_header,
    rdma_hello,
    rdma_welcome,
    transport_name,
)
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, assert_that, live_add, live_sub
from rmemcached.sys.linux cimport (
    MSG_DONTWAIT,
    POLLIN,
    SHUT_RDWR,
    close_fd,
    poll,
    pollfd,
    posix_memalign,
    recv,
    set_nonblocking,
    shutdown,
)
from rmemcached.verbs.port cimport qp_address, verbs_mtu_bytes, verbs_qp_connect, verbs_qp_init
from rmemcached.verbs.soft cimport (
    CHANNEL_PROGRAM,
    soft_channel_watch,
    soft_cq_wait,
    soft_iw_connect,
    soft_iw_options,
    soft_provider,
    soft_shm_attach,
    soft_qp_fault,
    soft_shm_rings,
)
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
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
    ibv_poll_cq,
    ibv_post_recv,
    ibv_post_send,
    ibv_qp_init_attr,
    ibv_recv_wr,
    ibv_req_notify_cq,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
)

from rmemcached.host import host_identity

from rmemcached.client._exchange import SOFT_SHM
from rmemcached.client.exceptions import MemcacheServerError, MemcacheUnexpectedCloseError

cdef enum:
    RECEIVE = 1 << 16        # in wr_id: a receive
    POLL_BATCH = 16
    READS = 16               # RDMA READs that this end answers at a time (ird)
    LAST_WORDS_WAIT = 1000   # ms that the server gets to say why the queue pair failed
    REMOTE_ACCESS = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE

cdef dict DEVICES = {transport_name(which).decode(): which for which in range(RDMA_TRANSPORTS)}


cdef class QueuePair:
    """A queue pair that waits for its peer. OSError: no device, or out of resources.

    transport: one of the exchange, or "rdma_cm". server: the Client's; it alone reaches memory that is
    registered for the queue pair. route: for rdma_cm; its descriptor belongs to the QueuePair afterwards.
    """

    def __cinit__(self):
        self.fd = -1
        self.pid = getpid()
        self.last_words = b""

    def __init__(self, str transport, server, CmRoute route=None):
        cdef int error, i
        if route is None:
            self.protection_domain = open_domain(DEVICES[transport], server)
        else:
            self.protection_domain = open_domain(DEVICE_OF_CM, server, route.where.node_guid, route.where.port_num)
            self.by_cm = True
            self.cm_id = route.id
            self.fd = route.fd
            route.fd = -1
        live_add(LIVE_CLIENT_CONN)
        self.transport = transport
        self.device = self.protection_domain.device
        self.port = &self.device.port
        self.provider = self.device.port.provider
        self.soft = self.provider == soft_provider()
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
        for i in range(CREDITS):
            if self.post_receive(i) != 0:
                raise OSError(errno, "receives cannot be posted")

    def __dealloc__(self):
        self.close()

    cdef int open_queue(self) except -1:
        # Makes the completion channel, the completion queue and the queue pair.
        cdef ibv_qp_init_attr init
        self.channel = self.provider.create_comp_channel(self.port.context)
        if self.channel == NULL or set_nonblocking(self.channel.fd) < 0:
            raise os_error("completion channel", errno)
        self.cq = self.provider.create_cq(self.port.context, CREDITS + SEND_BUFFERS, NULL, self.channel, 0)
        if self.cq == NULL:
            raise os_error("completion queue", errno)
        memset(&init, 0, sizeof(init))
        init.send_cq = self.cq
        init.recv_cq = self.cq
        init.cap.max_send_wr = SEND_BUFFERS
        init.cap.max_recv_wr = CREDITS
        init.cap.max_send_sge = 1
        init.cap.max_recv_sge = 1
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

    def exchange_line(self):
        """The client's exchange line, as bytes. OSError: for soft_shm, this host cannot be told from others."""
        cdef str host = ""
        if self.transport == SOFT_SHM:
            host = " host={} netns={}".format(*host_identity())
        return (
            f"{EXCHANGE_REQUEST.decode()} version={<int>RDMA_VERSION_1} transport={self.transport} "
            f"qpn={self.qp.qp_num} psn={self.psn} gid={(<const char *>self.port.gid.raw)[:16].hex()} "
            f"lid={self.port.lid} mtu={verbs_mtu_bytes(self.port.mtu)} credits={<int>CREDITS} "
            f"msgsize={<int>MESSAGE_SIZE} ird={<int>READS} ord=1 crc=0{host}\r\n"
        ).encode()

    def connect(self, Offer offer, second, lifeline, timeout):
        """Connects the queue pair to the one that the server has offered.

        second: a connected socket.socket: TCP for the iWARP stream of soft_iw, or the UNIX socket of soft_shm on which
        the server has accepted; None for verbs. lifeline: the socket of the exchange. Both belong to the QueuePair
        afterwards; after an error the lifeline is closed. timeout: seconds or None.

        Raises OSError, TimeoutError, MemcacheServerError, MemcacheUnexpectedCloseError.
        """
        self.fd = lifeline.detach()
        try:
            self.connect_to(offer, second)
            self.start(start_deadline(timeout))
        except BaseException:
            # The server keeps its queue pair until the lifeline is closed; a traceback would keep this one.
            self.close()
            raise

    cdef int connect_to(self, Offer offer, second) except -1:
        cdef qp_address peer
        cdef soft_iw_options options
        cdef char attach[ATTACH_LENGTH]
        cdef int error, fd
        self.tx_credits = offer.credits
        self.room = min(offer.msgsize, <size_t>MESSAGE_SIZE) - MESSAGE_HEADER
        self.eager = offer.eager
        peer.qpn = offer.qpn
        peer.psn = offer.psn
        peer.lid = offer.lid
        peer.mtu = offer.mtu
        memcpy(peer.gid.raw, PyBytes_AS_STRING(offer.gid), 16)
        error = verbs_qp_connect(self.port, self.qp, self.psn, &peer, min(<unsigned int>READS, offer.reads), 1)
        if error:
            raise os_error("queue pair to RTS", error)
        if second is None:
            return 0
        fd = second.fileno()
        if set_nonblocking(fd) < 0:
            raise os_error("second connection", errno)
        if self.transport == SOFT_SHM:
            if soft_shm_attach(self.qp, fd, READS, 1) < 0:
                raise os_error("shared memory", errno)
        else:
            put_attach(attach, offer.qpn, PyBytes_AS_STRING(offer.token))
            memset(&options, 0, sizeof(options))
            options.crc = offer.crc
            options.ird = READS
            options.ord = 1
            options.private_data = attach
            options.private_length = ATTACH_LENGTH
            if soft_iw_connect(self.qp, fd, &options) < 0:
                raise os_error("iWARP stream", errno)
        second.detach()
        return 0

    def connect_cm(self, timeout):
        """Connects the queue pair through rdma_cm, along its route. timeout: seconds or None.

        Raises TransportRefused when the server says why it does not want the connection, ConnectionRefusedError when
        nobody listens there; OSError, TimeoutError, MemcacheServerError, MemcacheUnexpectedCloseError.
        """
        try:
            self.agree(start_deadline(timeout))
            self.start(start_deadline(timeout))
        except BaseException:
            self.close()
            raise

    cdef int agree(self, int64_t deadline) except -1:
        # rdma_cm's request and reply, with the exchange in their private data.
        cdef cm_event event
        cdef cm_param param
        cdef char data[HELLO_LENGTH]
        cdef rdma_hello hello
        cdef unsigned int reads = min(<unsigned int>READS, <unsigned int>self.port.max_dest_rd_atomic)
        cdef int error
        hello.version = RDMA_VERSION_1
        hello.credits = CREDITS
        hello.msgsize = MESSAGE_SIZE
        put_hello(data, &hello)
        param.qpn = self.qp.qp_num
        param.responder_resources = reads
        param.initiator_depth = 1
        param.private_data = data
        param.length = HELLO_LENGTH
        error = cm_connect(self.fd, self.cm_id, &param)
        if error:
            raise os_error("rdma_cm", error)
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
                error = cm_modify_qp(self.fd, self.cm_id, self.port, self.qp, IBV_QPS_RTS, 1)
            if error == 0:
                error = cm_confirm(self.fd, self.cm_id)
            if error:
                raise os_error("queue pair to RTS", error)
        return 0

    cdef int accept_welcome(self, const cm_event *event) except -1:
        cdef rdma_welcome welcome
        if (not get_welcome(&event.private_data[0], event.length, &welcome)
                or welcome.version != RDMA_VERSION_1 or welcome.msgsize < RDMA_MSGSIZE_MIN):
            raise MemcacheServerError("what answers through rdma_cm is no rmemcached")
        self.tx_credits = welcome.credits
        self.room = min(<size_t>welcome.msgsize, <size_t>MESSAGE_SIZE) - MESSAGE_HEADER
        self.eager = welcome.eager
        return 0

    cdef int start(self, int64_t deadline) except -1:
        # Sends READY and waits for the server's.
        cdef int r
        if self.tx_credits < RDMA_CREDITS_MIN or self.post_message(MESSAGE_READY, 0) < 0:
            raise MemcacheServerError("READY could not be sent")
        while not self.ready:
            with nogil:
                r = 1 if self.soft else self.arm()
                if r > 0:
                    r = self.reap(None)
                if r > 0 and not self.ready:
                    r = self.wait(deadline)
            if r <= 0 and r != -EINTR:
                if r == -ETIMEDOUT:
                    raise TimeoutError("timed out")
                raise MemcacheUnexpectedCloseError(self.failure_text())
            PyErr_CheckSignals()
        return 0

    # --- messages ---

    cdef int post_receive(self, unsigned int index) noexcept nogil:
        # 0, or an errno value.
        cdef ibv_sge sge
        cdef ibv_recv_wr wr
        cdef ibv_recv_wr *bad
        sge.addr = <uint64_t><uintptr_t>(self.buffer + <size_t>index * MESSAGE_SIZE)
        sge.length = MESSAGE_SIZE
        sge.lkey = self.mr.lkey
        memset(&wr, 0, sizeof(wr))
        wr.wr_id = RECEIVE | index
        wr.sg_list = &sge
        wr.num_sge = 1
        return ibv_post_recv(self.qp, &wr, &bad)

    cdef int post_message(self, uint8_t kind, size_t payload) noexcept nogil:
        # Posts the next free send buffer, which has its payload in place. 1, or a negative errno.
        cdef unsigned int index
        cdef char *message
        cdef ibv_sge sge
        cdef ibv_send_wr wr
        cdef ibv_send_wr *bad
        cdef int error
        assert_that(self.free_count > 0 and self.tx_credits > 0)
        self.free_count -= 1
        index = self.free_sends[self.free_count]
        message = self.buffer + <size_t>(CREDITS + index) * MESSAGE_SIZE
        put_message_header(message, kind, <uint16_t>self.owed, 0)
        sge.addr = <uint64_t><uintptr_t>message
        sge.length = <uint32_t>(MESSAGE_HEADER + payload)
        sge.lkey = self.mr.lkey
        memset(&wr, 0, sizeof(wr))
        wr.wr_id = index
        wr.sg_list = &sge
        wr.num_sge = 1
        wr.opcode = IBV_WR_SEND
        wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED
        error = ibv_post_send(self.qp, &wr, &bad)
        if error:
            self.failed = True
            return -error
        self.owed = 0
        self.tx_credits -= 1
        return 1

    cdef char *data_buffer(self) noexcept nogil:
        # The last credit is for a CREDIT message, which the server gives back whatever else it holds: a server whose
        # replies are blocked takes no more input, and only that message can unblock them.
        if self.free_count == 0 or self.tx_credits < RDMA_CREDITS_MIN:
            return NULL
        return self.buffer + <size_t>(CREDITS + self.free_sends[self.free_count - 1]) * MESSAGE_SIZE + MESSAGE_HEADER

    cdef int post_data(self, size_t payload) noexcept nogil:
        return self.post_message(MESSAGE_DATA, payload)

    cdef bint peer_slept(self) noexcept nogil:
        cdef uint32_t rings = soft_shm_rings(self.qp) if self.soft else 0
        cdef bint slept = rings != self.rings
        self.rings = rings
        return slept

    cdef bint all_sent(self) noexcept nogil:
        return self.free_count == SEND_BUFFERS

    cdef void return_credits(self, Stream lane) noexcept nogil:
        # Announces receives when half of them are owed, and no DATA message can do it.
        if self.owed * 2 < CREDITS or self.tx_credits == 0 or self.free_count == 0:
            return
        if lane is None or lane.iov_next == lane.iov_count or self.data_buffer() == NULL:
            self.post_message(MESSAGE_CREDIT, 0)

    cdef int take_message(self, Stream lane, unsigned int index, size_t length) noexcept nogil:
        # 1; 0: the server breaks the protocol; a negative errno.
        cdef char *message = self.buffer + <size_t>index * MESSAGE_SIZE
        cdef message_header header
        cdef int r
        if not get_message_header(message, length, &header):
            return 0
        self.tx_credits += header.credits
        if header.kind == MESSAGE_READY:
            self.ready = True
        elif header.kind == MESSAGE_DATA and lane is not None:
            r = lane.deliver(message + MESSAGE_HEADER, length - MESSAGE_HEADER)
            if r <= 0:
                return r
        elif header.kind != MESSAGE_CREDIT:
            return 0
        if self.post_receive(index) != 0:
            return 0
        self.owed += 1
        return 1

    cdef int reap(self, Stream lane) noexcept nogil:
        cdef ibv_wc wc[POLL_BATCH]
        cdef int i, r
        cdef int n = POLL_BATCH
        while n == POLL_BATCH and not self.failed:
            n = ibv_poll_cq(self.cq, POLL_BATCH, wc)
            if n < 0:
                self.failed = True
            for i in range(n):
                if wc[i].status != IBV_WC_SUCCESS:
                    # The first reason counts: behind it come flushes.
                    if not self.failed or self.status == IBV_WC_WR_FLUSH_ERR:
                        self.status = wc[i].status
                    self.failed = True
                elif wc[i].wr_id & RECEIVE:
                    if not self.failed:
                        r = self.take_message(lane, <unsigned int>(wc[i].wr_id & (RECEIVE - 1)), wc[i].byte_len)
                        if r < 0:
                            return r
                        self.failed = r == 0
                else:
                    self.free_sends[self.free_count] = <uint16_t>wc[i].wr_id
                    self.free_count += 1
        if self.failed:
            return 0
        self.return_credits(lane)
        return 1

    # --- waiting ---

    cdef int arm(self) noexcept nogil:
        return 1 if ibv_req_notify_cq(self.cq, 0) == 0 else 0

    cdef int wait(self, int64_t deadline) noexcept nogil:
        cdef pollfd waiting[4]
        cdef int timeout = -1
        cdef int n
        if self.by_cm and self.lifeline_ended:
            self.failed = True
            return 0
        if deadline:
            timeout = poll_timeout(deadline, now_ns())
            if timeout == 0:
                return -ETIMEDOUT
        if self.soft:
            return self.wait_soft(timeout)
        waiting[0].fd = self.channel.fd
        waiting[1].fd = self.fd
        waiting[2].fd = self.device.alarm
        waiting[3].fd = self.port.context.async_fd
        for n in range(4):
            waiting[n].events = POLLIN
            waiting[n].revents = 0
        n = poll(waiting, 4, timeout)
        if n < 0:
            return -errno
        if n == 0:
            return -ETIMEDOUT
        if waiting[0].revents:
            self.take_event()
        if waiting[1].revents and not self.look_at_lifeline():
            self.failed = True
            return 0
        if (waiting[2].revents or waiting[3].revents) and device_lost(self.device):
            self.failed = True
            return 0
        return 1

    cdef int wait_soft(self, int timeout) noexcept nogil:
        # The same on a software device, which is never lost.
        cdef int found
        if not self.watching:
            if soft_channel_watch(self.channel, self.fd) < 0:
                return -errno
            self.watching = True
        found = soft_cq_wait(self.cq, timeout)
        if found < 0:
            return -errno
        if found == 0:
            return -ETIMEDOUT
        if found & CHANNEL_PROGRAM and not self.look_at_lifeline():
            self.failed = True
            return 0
        return 1

    cdef void take_event(self) noexcept nogil:
        # One event at most: the queue was armed once.
        cdef ibv_cq *cq
        cdef void *context
        if self.provider.get_cq_event(self.channel, &cq, &context) == 0:
            self.provider.ack_cq_events(cq, 1)

    cdef bint look_at_lifeline(self) noexcept nogil:
        # Its descriptor is readable. False: the connection has ended, and every reply that came before has been taken.
        cdef int event
        if self.by_cm:
            event = cm_ended(self.fd)
            self.lifeline_ended = event != 0
            if event == CM_DEVICE_REMOVAL:
                device_removed(self.device)
            return True
        # Nothing is ever asked on the lifeline: it ends. Completions may be there that have not been reaped yet.
        if self.lifeline_ended:
            return False
        self.lifeline_ended = True
        return True

    # --- the end ---

    cdef str failure_text(self):
        # The line in which the server said why it gave the connection up, else what is known here.
        cdef char chunk[512]
        cdef pollfd waiting
        cdef int64_t deadline = now_ns() + <int64_t>LAST_WORDS_WAIT * 1000000
        cdef ssize_t n = 1
        cdef int timeout
        waiting.fd = self.fd
        waiting.events = POLLIN
        while n > 0 and self.fd >= 0 and not self.by_cm:
            with nogil:
                timeout = poll_timeout(deadline, now_ns())
                n = poll(&waiting, 1, timeout) if timeout else 0
                if n > 0:
                    n = recv(self.fd, chunk, sizeof(chunk), MSG_DONTWAIT)
            if n > 0:
                self.last_words += chunk[:n]
        text = self.last_words.decode("ascii", "replace").strip()
        if not text and self.device != NULL and device_lost(self.device):
            text = self.device.why.decode()
        if not text and self.failed and self.status != IBV_WC_SUCCESS and self.status != IBV_WC_WR_FLUSH_ERR:
            text = f"the queue pair failed: {self.provider.wc_status_str(self.status).decode()}"
        if not text and self.soft and self.qp != NULL and soft_qp_fault(self.qp) != NULL:
            text = f"the server has broken the stream: {soft_qp_fault(self.qp).decode()}"
        if not text and self.by_cm and self.lifeline_ended:
            text = "the server has ended the connection"
        return text

    cdef bint foreign(self) noexcept nogil:
        return getpid() != self.pid

    cdef void disconnect(self) noexcept:
        if self.qp != NULL and not self.foreign():
            self.provider.destroy_qp(self.qp)
            self.qp = NULL
        if self.fd >= 0:
            # Another process may hold a copy of the lifeline; the server is to see the end now.
            if not self.by_cm and not self.foreign():
                shutdown(self.fd, SHUT_RDWR)
            close_fd(self.fd)
            self.fd = -1

    cdef void close(self) noexcept:
        self.disconnect()
        if self.protection_domain == NULL or self.foreign():
            return
        if self.cq != NULL:
            self.provider.destroy_cq(self.cq)
            self.cq = NULL
        if self.channel != NULL:
            self.provider.destroy_comp_channel(self.channel)
            self.channel = NULL
        if self.mr != NULL:
            self.provider.dereg_mr(self.mr)
            self.mr = NULL
        free(self.buffer)
        self.buffer = NULL
        leave_domain(self.protection_domain)
        self.protection_domain = NULL
        self.device = NULL
        live_sub(LIVE_CLIENT_CONN)
