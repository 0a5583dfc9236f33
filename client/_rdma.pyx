"""The RDMA transport (docs/rdma-protocol.md): over the software provider's iWARP, or a device of the system.

A queue pair with a completion queue and a channel of its own per connection; one context per device and process.
Progress is made by the calling thread, which polls, spins for a while, and then sleeps on the channel and the lifeline.

Memory that the server may touch (the landing buffer, values being set) is deregistered only after the reply to the
request that named it, or after the queue pair is destroyed.
"""

import logging
import os
import resource
import socket

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNREFUSED, EINTR, ENODEV, ENOMEM, ETIMEDOUT, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strerror
from posix.unistd cimport getpid

from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.client._stream cimport Stream, now_ns
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
from rmemcached.sys.linux cimport (
    EFD_CLOEXEC,
    eventfd,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    sched_yield,
    sockaddr,
    sockaddr_in,
    sockaddr_in6,
    write,
)
from rmemcached.verbs.port cimport (
    GID_ANY,
    qp_address,
    verbs_mtu_bytes,
    verbs_open_port,
    verbs_port,
    verbs_port_lost,
    verbs_qp_connect,
    verbs_qp_init,
    port_spec,
)
from rmemcached.verbs.soft cimport (
    SOFT_ACCESS_SCRATCH,
    soft_alloc_mr,
    soft_iw_connect,
    soft_iw_options,
    soft_provider,
    soft_shm_attach,
)
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.system_cm cimport (
    CM_ADDR_RESOLVED,
    CM_CONNECT_RESPONSE,
    CM_CONSUMER_REJECT,
    CM_DEVICE_REMOVAL,
    CM_ESTABLISHED,
    CM_REJECTED,
    CM_ROUTE_RESOLVED,
    cm_address,
    cm_confirm,
    cm_connect,
    cm_create,
    cm_ended,
    cm_event,
    cm_event_type,
    cm_get_event,
    cm_modify_qp,
    cm_open,
    cm_param,
    cm_query,
    cm_resolve_addr,
    cm_resolve_route,
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
    ibv_cq,
    ibv_mr,
    ibv_pd,
    ibv_poll_cq,
    ibv_post_recv,
    ibv_post_send,
    ibv_qp_init_attr,
    ibv_recv_wr,
    ibv_req_notify_cq,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
    verbs_provider,
)

from rmemcached.host import host_identity

from rmemcached.client.exceptions import MemcacheServerError, MemcacheUnexpectedCloseError, MemcacheUnknownError

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t value)
    uint32_t be32toh(uint32_t value)
    uint16_t htobe16(uint16_t value)
    uint32_t htobe32(uint32_t value)

cdef extern from "Python.h":
    void Py_CLEAR(PyObject *p)
    int _PyBytes_Resize(PyObject **string, Py_ssize_t size) except -1

cdef enum:
    MESSAGE_DATA = 0
    MESSAGE_CREDIT = 1
    MESSAGE_READY = 2
    RECEIVE = 1 << 16                # in wr_id: a receive
    POLL_BATCH = 16
    IRD = 16
    DEFAULT_EAGER = 4096
    SHARED_MIN = 1 << 20             # bytes of the first region that the server maps
    SHARED_MAX = 1 << 23             # and of the largest; larger values go through the ring
    LANDING_SIZE = 1 << 20           # bytes of the first landing buffer
    LANDING_MIN = 1 << 18
    LANDING_MAX = 1 << 28
    LANDING_WINDOW = 16              # values after which a landing buffer that is too large for them gets smaller
    BULK_BYTES_PER_NS = 2            # slower transfers than this are not worth polling for
    LAST_WORDS_WAIT = 1000           # ms that the server gets to say why the queue pair failed
    START_WAIT = 10000               # ms for READY without a connect_timeout; the provider's own limit for the start-up

cdef object logger = logging.getLogger("rmemcached.client")
cdef bint told_shortage = False      # of memory that may be locked; under the GIL

include "_devices.pyx"
include "_cm.pyx"


cdef class RdmaStream(Stream):
    """A queue pair that waits for its peer. OSError: no device, or out of resources.

    transport: "soft_iw", "soft_shm", "verbs" or "rdma_cm". timeout: seconds or None. spin: nanoseconds. route: for
    rdma_cm; it belongs to the RdmaStream afterwards.
    """

    def __init__(self, transport, timeout, spin, CmRoute route=None):
        cdef device *d
        cdef const verbs_provider *provider
        cdef ibv_qp_init_attr init
        cdef int i, error
        if route is None:
            d = open_device({"soft_iw": SOFT_IW, "soft_shm": SOFT_SHM, "verbs": VERBS}[transport])
        else:
            d = open_device(CM, route.where.node_guid, route.where.port_num)
            self.by_cm = True
            self.cm_id = route.id
            self.fd = route.fd
            route.fd = -1
        provider = d.port.provider
        self.device = d
        self.transport = transport
        self.port = &d.port
        self.provider = provider
        self.domain = d.domain
        if timeout is not None:
            self.timeout_ms = max(1, min(int(timeout * 1000), 2**31 - 1))
        self.spin_ns = spin
        self.landing_next = LANDING_SIZE
        self.last_words = b""
        self.psn = int.from_bytes(os.urandom(3), "big")
        self.channel = provider.create_comp_channel(self.port.context)
        if self.channel == NULL or set_nonblocking(self.channel.fd) < 0:
            raise self.no_resource("completion channel")
        self.cq = provider.create_cq(self.port.context, CREDITS + SEND_BUFFERS, NULL, self.channel, 0)
        if self.cq == NULL:
            raise self.no_resource("completion queue")
        if posix_memalign(<void **>&self.buffer, 4096, (CREDITS + SEND_BUFFERS) * MESSAGE_SIZE) != 0:
            self.buffer = NULL
            raise MemoryError
        self.mr = provider.reg_mr(
            self.domain, self.buffer, (CREDITS + SEND_BUFFERS) * MESSAGE_SIZE, IBV_ACCESS_LOCAL_WRITE)
        if self.mr == NULL:
            raise self.no_registration((CREDITS + SEND_BUFFERS) * MESSAGE_SIZE)
        memset(&init, 0, sizeof(init))
        init.send_cq = self.cq
        init.recv_cq = self.cq
        init.cap.max_send_wr = SEND_BUFFERS
        init.cap.max_recv_wr = CREDITS
        init.cap.max_send_sge = 1
        init.cap.max_recv_sge = 1
        init.qp_type = IBV_QPT_RC
        self.qp = provider.create_qp(self.domain, &init)
        if self.qp == NULL:
            raise self.no_resource("queue pair")
        if self.by_cm:
            error = cm_modify_qp(
                self.fd, self.cm_id, self.port, self.qp, IBV_QPS_INIT, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
        else:
            error = verbs_qp_init(self.port, self.qp, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
        if error:
            raise OSError(error, f"queue pair to INIT: {strerror(error).decode()}")
        for i in range(CREDITS):
            if self.post_receive(i) != 0:
                raise OSError(errno, "receives cannot be posted")
        for i in range(SEND_BUFFERS):
            self.free_sends[i] = i
        self.free_count = SEND_BUFFERS

    def __dealloc__(self):
        self.close()

    cdef object no_resource(self, str what):
        return OSError(errno, f"{what}: {strerror(errno).decode()}")

    cdef object no_registration(self, size_t length):
        # The limit on locked memory is the usual reason.
        cdef int error = errno
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if error != ENOMEM or soft == resource.RLIM_INFINITY or self.provider == soft_provider():
            return OSError(error, f"memory region: {strerror(error).decode()}")
        return OSError(error, f"{(length + 1023) // 1024} KB could not be locked for the device: ulimit -l is"
                              f" {soft // 1024} KB; raise it (systemd: LimitMEMLOCK=infinity)")

    cdef bint do_without(self, size_t length) except -1:
        # A value whose memory cannot be registered travels in messages. False; says so the first time.
        global told_shortage
        error = self.no_registration(length)
        if error.errno != ENOMEM:
            raise error
        if not told_shortage:
            told_shortage = True
            logger.warning("transport %s: %s; large values are copied", self.transport, error.strerror)
        return False

    # --- connecting ---

    def exchange_line(self):
        """The client's exchange line, as bytes. OSError: for shared memory, this host cannot be told from others."""
        cdef str place = ""
        if self.transport == "soft_shm":
            place = " host={} netns={}".format(*host_identity())
        return (
            f"rdma version=1 transport={self.transport} qpn={self.qp.qp_num} psn={self.psn} "
            f"gid={(<const char *>self.port.gid.raw)[:16].hex()} lid={self.port.lid} "
            f"mtu={verbs_mtu_bytes(self.port.mtu)} credits={CREDITS} msgsize={MESSAGE_SIZE} "
            f"ird={IRD} ord=1 crc=0{place}\r\n"
        ).encode()

    def connect(self, offer, stream, lifeline, timeout):
        """Connects the queue pair to the one that the server offered (the tokens of its exchange line).

        stream: a connected socket.socket: TCP for the iWARP stream, or a UNIX socket on which shared memory has been
        agreed; None for verbs. lifeline: the connection of
        the exchange. Both belong to the RdmaStream afterwards; after an error the lifeline is closed. timeout: seconds
        or None.
        """
        self.fd = lifeline.detach()
        try:
            self._connect(offer, stream, timeout)
        except BaseException:
            # At once, not when the last traceback is gone: the server keeps its queue pair as long.
            self.close()
            raise

    def _connect(self, offer, stream, timeout):
        cdef qp_address peer
        cdef soft_iw_options options
        cdef char private_data[20]
        cdef bytes token
        cdef int error, fd, i
        cdef unsigned int ird
        try:
            peer.qpn = int(offer["qpn"])
            token = bytes.fromhex(offer["token"] if self.transport == "soft_iw" else "")
            self.tx_credits = min(int(offer["credits"]), 65535)
            self.send_size = min(int(offer["msgsize"]), MESSAGE_SIZE)
            self.inline_limit = int(offer.get("eager", DEFAULT_EAGER))
            self.remote = True
            peer.psn = int(offer.get("psn", 0))
            peer.lid = int(offer.get("lid", 0))
            peer.mtu = int(offer.get("mtu", 0))
            ird = min(IRD, int(offer.get("ord", 1)))
            gid = bytes.fromhex(offer.get("gid", "0" * 32))
            crc = int(offer.get("crc", 0))
            if (int(offer["version"]) != 1 or (self.transport == "soft_iw" and len(token) != 16) or len(gid) != 16
                    or self.send_size < 512):
                raise ValueError
        except (KeyError, ValueError, OverflowError):
            raise MemcacheServerError(f"the server's answer to the RDMA exchange makes no sense: {offer}") from None
        memcpy(peer.gid.raw, PyBytes_AS_STRING(gid), 16)
        error = verbs_qp_connect(self.port, self.qp, self.psn, &peer, ird, 1)
        if error:
            raise OSError(error, f"queue pair to RTS: {strerror(error).decode()}")
        if self.transport == "soft_shm":
            fd = stream.fileno()
            if set_nonblocking(fd) < 0 or soft_shm_attach(self.qp, fd, IRD, 1) < 0:
                raise OSError(errno, f"shared memory: {strerror(errno).decode()}")
            stream.detach()
        elif stream is not None:
            for i in range(4):
                private_data[i] = <char>(peer.qpn >> (24 - 8 * i) & 255)
            memcpy(private_data + 4, PyBytes_AS_STRING(token), 16)
            memset(&options, 0, sizeof(options))
            options.crc = crc
            options.ird = IRD
            options.ord = 1
            options.private_data = private_data
            options.private_length = 20
            fd = stream.fileno()
            if set_nonblocking(fd) < 0 or soft_iw_connect(self.qp, fd, &options) < 0:
                raise OSError(errno, f"iWARP stream: {strerror(errno).decode()}")
            stream.detach()
        self.start(timeout)

    def connect_cm(self, timeout):
        """Connects through rdma_cm. timeout: seconds or None.

        TransportRefused: the server has said why it does not want the connection. ConnectionRefusedError: nobody is
        there.
        """
        try:
            self.agree(start_deadline(timeout))
            self.start(timeout)
        except BaseException:
            self.close()
            raise

    cdef int agree(self, uint64_t deadline) except -1:
        # Request and answer of rdma_cm, with the exchange in their private data.
        cdef cm_event event
        cdef cm_param param
        cdef char hello[HELLO_LENGTH]
        cdef unsigned int ird = min(<unsigned int>IRD, <unsigned int>self.port.max_dest_rd_atomic)
        cdef int error
        put_hello(hello)
        param.qpn = self.qp.qp_num
        param.responder_resources = ird
        param.initiator_depth = 1
        param.private_data = hello
        param.length = HELLO_LENGTH
        error = cm_connect(self.fd, self.cm_id, &param)
        if error:
            raise OSError(error, f"rdma_cm: {strerror(error).decode()}")
        wait_cm_event(self.fd, &event, deadline)
        if event.type == CM_REJECTED:
            raise_rejected(&event)
        # iWARP has no third message: the connection is there.
        if event.type != CM_CONNECT_RESPONSE and event.type != CM_ESTABLISHED:
            raise cm_failure(&event)
        self.take_welcome(&event)
        if event.type == CM_CONNECT_RESPONSE:
            error = cm_modify_qp(
                self.fd, self.cm_id, self.port, self.qp, IBV_QPS_RTR, min(ird, event.responder_resources))
            if error == 0:
                error = cm_modify_qp(self.fd, self.cm_id, self.port, self.qp, IBV_QPS_RTS, 1)
            if error == 0:
                error = cm_confirm(self.fd, self.cm_id)
            if error:
                raise OSError(error, f"queue pair to RTS: {strerror(error).decode()}")
        return 0

    cdef int take_welcome(self, const cm_event *event) except -1:
        cdef const char *data = &event.private_data[0]
        cdef uint16_t version, credits
        cdef uint32_t msgsize, eager
        memcpy(&version, data + 4, 2)
        memcpy(&credits, data + 6, 2)
        memcpy(&msgsize, data + 8, 4)
        memcpy(&eager, data + 12, 4)
        self.tx_credits = be16toh(credits)
        self.send_size = min(be32toh(msgsize), <uint32_t>MESSAGE_SIZE)
        self.inline_limit = be32toh(eager)
        self.remote = True
        if (event.length < WELCOME_LENGTH or memcmp(data, b"RDMA", 4) != 0 or be16toh(version) != 1
                or self.send_size < 512):
            raise MemcacheServerError("what answers through rdma_cm is no rmemcached")
        return 0

    cdef int start(self, timeout) except -1:
        # READY, and the server's.
        cdef uint64_t deadline
        cdef int error
        self.free_count -= 1
        if self.tx_credits < 2 or self.post_message(MESSAGE_READY, self.free_sends[self.free_count], 0) < 0:
            raise MemcacheServerError("READY could not be sent")
        deadline = start_deadline(timeout)
        while not self.ready:
            with nogil:
                # What comes from here on makes an event; what came before is found by the poll.
                error = 1 if ibv_req_notify_cq(self.cq, 0) == 0 else 0
                if error > 0:
                    error = self.reap()
                if error > 0 and not self.ready:
                    error = self.wait(deadline)
            if error <= 0 and error != -EINTR:
                if error == -ETIMEDOUT:
                    raise TimeoutError("timed out")
                raise MemcacheUnexpectedCloseError(self.failure_text())
            PyErr_CheckSignals()
        return 0

    cdef void close(self) noexcept:
        cdef const verbs_provider *provider
        if self.foreign():
            # The objects are the parent's: only this process's descriptor of the lifeline is given back.
            if self.fd >= 0:
                close_fd(self.fd)
                self.fd = -1
            return
        provider = self.provider
        if self.qp != NULL:
            provider.destroy_qp(self.qp)
            self.qp = NULL
        if self.fd >= 0:
            if not self.by_cm:
                shutdown(self.fd, SHUT_RDWR)
            close_fd(self.fd)
            self.fd = -1
        # Nobody can reach the memory any more.
        self.unexpose()
        free(self.exposed)
        self.exposed = NULL
        self.drop_landing()
        if self.source_mr != NULL:
            provider.dereg_mr(self.source_mr)
            self.source_mr = NULL
        if self.cq != NULL:
            provider.destroy_cq(self.cq)
            self.cq = NULL
        if self.channel != NULL:
            provider.destroy_comp_channel(self.channel)
            self.channel = NULL
        if self.mr != NULL:
            provider.dereg_mr(self.mr)
            self.mr = NULL
        free(self.buffer)
        self.buffer = NULL
        if self.device != NULL:
            leave_device(<device *>self.device)
            self.device = NULL

    # --- messages ---

    cdef int post_receive(self, unsigned int index) noexcept nogil:
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

    cdef int post_message(self, uint8_t kind, unsigned int index, size_t payload) noexcept nogil:
        # Posts send buffer `index`, which has its payload in place. 1, or -errno.
        cdef char *message = self.buffer + <size_t>(CREDITS + index) * MESSAGE_SIZE
        cdef uint16_t owed = htobe16(<uint16_t>self.owed)
        cdef ibv_sge sge
        cdef ibv_send_wr wr
        cdef ibv_send_wr *bad
        cdef int error
        memset(message, 0, HEADER_SIZE)
        message[0] = <char>kind
        memcpy(message + 2, &owed, 2)
        sge.addr = <uint64_t><uintptr_t>message
        sge.length = <uint32_t>(HEADER_SIZE + payload)
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

    cdef bint may_send(self) noexcept nogil:
        # The last credit is for a CREDIT message, which the server gives back whatever else it holds: a server whose
        # replies are blocked takes no more input, and only that message can unblock them.
        return self.free_count > 0 and self.tx_credits >= 2

    cdef void return_credits(self) noexcept nogil:
        # Half of the receives are to be announced, and no DATA message can do it.
        if (self.owed * 2 >= CREDITS and self.tx_credits and self.free_count and not self.failed
                and (self.iov_next == self.iov_count or not self.may_send())):
            self.free_count -= 1
            self.post_message(MESSAGE_CREDIT, self.free_sends[self.free_count], 0)

    cdef int take_message(self, unsigned int index, size_t length) noexcept nogil:
        cdef char *message = self.buffer + <size_t>index * MESSAGE_SIZE
        cdef uint16_t credits
        cdef size_t n
        cdef int r
        if length < HEADER_SIZE:
            return 0
        memcpy(&credits, message + 2, 2)
        self.tx_credits += be16toh(credits)
        if message[0] == MESSAGE_READY:
            self.ready = True
        elif message[0] == MESSAGE_DATA:
            length -= HEADER_SIZE
            message += HEADER_SIZE
            self.received += length
            if self.dst_left and self.rpos == self.rend:
                n = min(length, self.dst_left)
                memcpy(self.dst, message, n)
                self.dst += n
                self.dst_left -= n
                message += n
                length -= n
            if length:
                r = self.reserve_input(length)
                if r <= 0:
                    return r
                memcpy(self.rbuf + self.rend, message, length)
                self.rend += length
        elif message[0] != MESSAGE_CREDIT:
            return 0
        if self.post_receive(index) != 0:
            return 0
        self.owed += 1
        return 1

    cdef int reap(self) noexcept nogil:
        # Takes the completions there are. 1; 0: the connection has failed.
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
                        r = self.take_message(<unsigned int>(wc[i].wr_id & (RECEIVE - 1)), wc[i].byte_len)
                        if r < 0:
                            return r
                        self.failed = r == 0
                else:
                    self.free_sends[self.free_count] = <uint16_t>wc[i].wr_id
                    self.free_count += 1
        if self.failed:
            return 0
        self.return_credits()
        return 1

    # --- waiting ---

    cdef uint64_t deadline(self) noexcept nogil:
        return 0 if self.timeout_ms < 0 else now_ns() + <uint64_t>self.timeout_ms * 1000000

    cdef int wait(self, uint64_t deadline) noexcept nogil:
        # Sleeps until there may be a completion. deadline: 0 for none.
        cdef const verbs_provider *provider = self.provider
        cdef device *d = <device *>self.device
        cdef pollfd waiting[4]
        cdef uint64_t now
        cdef ibv_cq *cq
        cdef void *context
        cdef int timeout = -1
        cdef int n
        if self.by_cm and self.lifeline_ended:
            self.failed = True
            return 0
        if deadline:
            now = now_ns()
            if now >= deadline:
                return -ETIMEDOUT
            timeout = <int>min((deadline - now + 999999) // 1000000, <uint64_t>0x7FFFFFFF)
        waiting[0].fd = self.channel.fd
        waiting[0].events = POLLIN
        waiting[1].fd = self.fd
        waiting[1].events = POLLIN
        # The software device is never lost.
        waiting[2].fd = d.alarm
        waiting[3].fd = self.port.context.async_fd
        waiting[2].events = waiting[3].events = POLLIN
        waiting[2].revents = waiting[3].revents = 0
        n = poll(waiting, 2 if self.provider == soft_provider() else 4, timeout)
        if n < 0:
            return -errno
        if n == 0:
            return -ETIMEDOUT
        # One event at most: the queue was armed once.
        if waiting[0].revents and provider.get_cq_event(self.channel, &cq, &context) == 0:
            provider.ack_cq_events(cq, 1)
        if waiting[1].revents and self.by_cm:
            n = cm_ended(self.fd)
            self.lifeline_ended = n != 0
            if n == CM_DEVICE_REMOVAL:
                device_removed(d)
        elif waiting[1].revents:
            # Nothing is ever asked on the lifeline: it ends. A reply that came before the end is still taken.
            if self.lifeline_ended:
                self.failed = True
                return 0
            self.lifeline_ended = True
        if (waiting[2].revents or waiting[3].revents) and device_lost(d):
            self.failed = True
            return 0
        return 1

    cdef bint drained(self) noexcept nogil:
        # A completed SEND has left this process; nobody makes progress between two calls.
        return self.iov_next == self.iov_count and self.free_count == SEND_BUFFERS

    cdef int advance(self, bint draining) noexcept nogil:
        # Waits until something has been received, or, when draining, everything sent. Goes on sending meanwhile.
        cdef uint64_t received = self.received
        cdef uint64_t deadline = 0
        cdef uint64_t budget = self.spin_budget()
        # While the server moves payloads, to sleep is to be woken at every turn of the transfer. What comes to a sink
        # is likely to be as large as what came before.
        cdef uint64_t bulk = (self.exposed_bytes + (self.last_sunk if self.sink_named else 0)) // BULK_BYTES_PER_NS
        cdef uint64_t until = now_ns() + budget + bulk if budget else 0
        cdef bint armed = False
        cdef int r
        while True:
            r = self.reap()
            if r > 0 and self.iov_next < self.iov_count:
                r = self.push()
            if r <= 0:
                return r
            if self.received != received or (draining and self.drained()):
                if until:
                    self.spin_result(True)
                return 1
            if until:
                if now_ns() < until:
                    # The server may be waiting for this very core.
                    sched_yield()
                    continue
                self.spin_result(False)
                until = 0
            if not armed:
                if ibv_req_notify_cq(self.cq, 0) != 0:
                    return 0
                armed = True
                continue
            if deadline == 0:
                deadline = self.deadline()
            r = self.wait(deadline)
            if r <= 0:
                return r
            armed = False

    cdef int push(self) noexcept nogil:
        cdef char *payload
        cdef size_t room, n
        cdef unsigned int index
        cdef int r
        while self.iov_next < self.iov_count:
            if not self.may_send():
                return 1
            self.free_count -= 1
            index = self.free_sends[self.free_count]
            payload = self.buffer + <size_t>(CREDITS + index) * MESSAGE_SIZE + HEADER_SIZE
            room = self.send_size - HEADER_SIZE
            while room and self.iov_next < self.iov_count:
                n = min(room, <size_t>self.iov[self.iov_next].iov_len)
                memcpy(payload, self.iov[self.iov_next].iov_base, n)
                self.sent(n)
                payload += n
                room -= n
            r = self.post_message(MESSAGE_DATA, index, self.send_size - HEADER_SIZE - room)
            if r <= 0:
                return r
        return 1

    cdef int drain(self) noexcept nogil:
        cdef int r = self.push()
        while r > 0 and not self.drained():
            r = self.advance(True)
        return r

    cdef int fill(self) noexcept nogil:
        return self.advance(False)

    cdef int fill_body(self) noexcept nogil:
        return self.advance(False)

    # --- memory that the server touches ---

    cdef bint copy_out(self, const char *data, size_t length) except -1:
        # Puts the value into the region that the server has mapped. False: it has no room.
        cdef size_t size
        if self.transport != "soft_shm" or length > SHARED_MAX:
            return False
        if self.source_used == 0 and (self.source_mr == NULL or self.source_mr.length < length):
            if self.source_mr != NULL:
                self.provider.dereg_mr(self.source_mr)
            size = SHARED_MIN
            while size < length:
                size *= 2
            self.source_mr = soft_alloc_mr(self.domain, size, IBV_ACCESS_REMOTE_READ)
            if self.source_mr == NULL:
                raise self.no_resource("memory region")
        if self.source_mr.length - self.source_used < length:
            return False
        memcpy(<char *>self.source_mr.addr + self.source_used, data, length)
        return True

    cdef bint expose(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        if self.copy_out(data, length):
            address[0] = <uint64_t><uintptr_t>self.source_mr.addr + self.source_used
            key[0] = self.source_mr.rkey
            # The next one begins a cache line of its own.
            self.source_used = min((self.source_used + length + 63) & ~<size_t>63, self.source_mr.length)
            self.exposed_bytes += length
            return True
        return self.register_value(data, length, address, key)

    cdef bint register_value(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        cdef ibv_mr **grown
        cdef ibv_mr *mr
        if self.exposed_count == self.exposed_cap:
            grown = <ibv_mr **>realloc(self.exposed, (self.exposed_cap * 2 + 8) * sizeof(ibv_mr *))
            if grown == NULL:
                raise MemoryError
            self.exposed = grown
            self.exposed_cap = self.exposed_cap * 2 + 8
        mr = self.provider.reg_mr(self.domain, <void *>data, length, IBV_ACCESS_REMOTE_READ)
        if mr == NULL:
            return self.do_without(length)
        self.exposed[self.exposed_count] = mr
        self.exposed_count += 1
        self.exposed_bytes += length
        address[0] = <uint64_t><uintptr_t>data
        key[0] = mr.rkey
        return True

    cdef void unexpose(self) noexcept:
        while self.exposed_count:
            self.exposed_count -= 1
            self.provider.dereg_mr(self.exposed[self.exposed_count])
        self.exposed_bytes = 0
        self.source_used = 0

    cdef int settle(self) except -1:
        if self.exposed_bytes:
            self.spin_result(True)
            self.unexpose()
        return 0

    cdef void drop_landing(self) noexcept:
        if self.landing_mr != NULL:
            self.provider.dereg_mr(self.landing_mr)
            self.landing_mr = NULL
        Py_CLEAR(self.landing)

    cdef int put_sink(self) except -1:
        cdef bytes fresh
        if self.landing_mr == NULL and self.transport == "soft_shm" and self.landing_next <= SHARED_MAX:
            # What may be read is what the server maps.
            self.landing_mr = soft_alloc_mr(
                self.domain, self.landing_next,
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
            if self.landing_mr == NULL:
                raise self.no_resource("memory region")
            self.landing_size = self.landing_next
        elif self.landing_mr == NULL:
            fresh = PyBytes_FromStringAndSize(NULL, self.landing_next)
            self.landing_mr = self.provider.reg_mr(
                self.domain, PyBytes_AS_STRING(fresh), self.landing_next,
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
                | (SOFT_ACCESS_SCRATCH if self.provider == soft_provider() else 0))
            if self.landing_mr == NULL:
                return self.do_without(self.landing_next)
            Py_INCREF(fresh)
            self.landing = <PyObject *>fresh
            self.landing_size = self.landing_next
        self.sink_named = True
        self.put(" @", 2)
        self.put_hex(<uint64_t><uintptr_t>self.landing_mr.addr)
        self.put(":", 1)
        self.put_hex(self.landing_mr.rkey)
        self.put(":", 1)
        return self.put_hex(self.landing_size)

    cdef bytes take_sink(self, size_t length):
        cdef PyObject *whole = self.landing
        cdef bytes value
        self.sink_named = False
        if length > self.landing_size:
            raise MemcacheUnknownError(self.line[:min(self.line_length, <size_t>32)])
        # Waiting for bulk data says nothing about spinning for small replies.
        self.spin_result(True)
        self.last_sunk = length
        self.landing_peak = max(self.landing_peak, length)
        if self.landing == NULL or length * 2 < self.landing_size:
            # To hand the buffer out would cost the system calls that give most of it back, and page faults in the next.
            value = PyBytes_FromStringAndSize(<char *>self.landing_mr.addr, length)
            if length * 2 >= self.landing_size:
                self.landing_misfits = 0
                self.landing_peak = 0
                return value
            self.landing_misfits += 1
            if self.landing_misfits == LANDING_WINDOW:
                if self.landing_size > LANDING_MIN:
                    self.landing_next = max(self.landing_peak, <size_t>LANDING_MIN)
                    self.drop_landing()
                self.landing_misfits = 0
                self.landing_peak = 0
            return value
        self.landing_misfits = 0
        self.landing_peak = 0
        self.provider.dereg_mr(self.landing_mr)
        self.landing_mr = NULL
        self.landing = NULL
        _PyBytes_Resize(&whole, length)
        value = <bytes>whole
        Py_DECREF(value)
        return value

    cdef void saw_length(self, size_t length) noexcept:
        if length > self.landing_next and length <= LANDING_MAX:
            self.landing_next = length
            self.landing_misfits = 0
            self.landing_peak = 0
            self.drop_landing()

    # --- the end ---

    cdef str failure_text(self):
        # The line in which the server said why it gave the connection up, if it did.
        cdef char chunk[512]
        cdef pollfd waiting
        cdef uint64_t deadline = now_ns() + <uint64_t>LAST_WORDS_WAIT * 1000000
        cdef uint64_t now
        cdef ssize_t n = 1
        waiting.fd = self.fd
        waiting.events = POLLIN
        while n > 0 and self.fd >= 0 and not self.by_cm:
            now = now_ns()
            with nogil:
                n = poll(&waiting, 1, <int>((deadline - now) // 1000000)) if now < deadline else 0
                if n > 0:
                    n = recv(self.fd, chunk, sizeof(chunk), MSG_DONTWAIT)
            if n > 0:
                self.last_words += chunk[:n]
        text = self.last_words.decode("ascii", "replace").strip()
        if not text and self.device != NULL and device_lost(<device *>self.device):
            text = (<device *>self.device).why.decode()
        if not text and self.failed and self.status != IBV_WC_SUCCESS and self.status != IBV_WC_WR_FLUSH_ERR:
            text = f"the queue pair failed: {self.provider.wc_status_str(self.status).decode()}"
        if not text and self.by_cm and self.lifeline_ended:
            text = "the server has ended the connection"
        return text
