"""The verbs interface for Python: devices, protection domains, memory regions, completion queues and queue pairs.

Objects own what they wrap. `close()` may be called any number of times and closes the objects made from this one first;
a `with` block closes at its end. An object keeps the one it was made from alive. Methods may be called from any
thread, except that an object must not be closed while another thread uses it.
"""

import enum
import os
import weakref

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc cimport errno
from libc.errno cimport EAGAIN, EINVAL, EOPNOTSUPP
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror

from rmemcached.verbs.port cimport (
    GID_ANY,
    PORT_ANY,
    qp_address,
    verbs_mtu_bytes,
    verbs_port,
    verbs_qp_connect,
    verbs_qp_init,
    verbs_take_port,
    verbs_wish,
)
from rmemcached.verbs.soft cimport (
    SOFT_ACCESS_SCRATCH,
    SOFT_IW_CLOSED,
    SOFT_IW_NONE,
    SOFT_IW_OPEN,
    SOFT_IW_REFUSED,
    SOFT_IW_STARTING,
    soft_alloc_mr,
    soft_iw_accept,
    soft_iw_connect,
    soft_iw_options,
    soft_iw_parse_request,
    soft_iw_query,
    soft_iw_reject,
    soft_iw_request,
    soft_iw_stream,
    soft_provider,
    soft_qp_counters,
    soft_query_counters,
    soft_shm_attach,
    soft_start_progress,
    soft_stop_progress,
)
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport *


class Access(enum.IntFlag):
    LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE
    REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE
    REMOTE_READ = IBV_ACCESS_REMOTE_READ
    REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC
    RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING
    SCRATCH = SOFT_ACCESS_SCRATCH


class State(enum.IntEnum):
    RESET = IBV_QPS_RESET
    INIT = IBV_QPS_INIT
    RTR = IBV_QPS_RTR
    RTS = IBV_QPS_RTS
    SQD = IBV_QPS_SQD
    SQE = IBV_QPS_SQE
    ERR = IBV_QPS_ERR


class StreamState(enum.IntEnum):
    NONE = SOFT_IW_NONE
    STARTING = SOFT_IW_STARTING
    OPEN = SOFT_IW_OPEN
    REFUSED = SOFT_IW_REFUSED
    CLOSED = SOFT_IW_CLOSED


class Opcode(enum.IntEnum):
    """Of a send work request."""

    RDMA_WRITE = IBV_WR_RDMA_WRITE
    RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM
    SEND = IBV_WR_SEND
    SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM
    RDMA_READ = IBV_WR_RDMA_READ
    SEND_WITH_INV = IBV_WR_SEND_WITH_INV


class SendFlag(enum.IntFlag):
    FENCE = IBV_SEND_FENCE
    SIGNALED = IBV_SEND_SIGNALED
    SOLICITED = IBV_SEND_SOLICITED
    INLINE = IBV_SEND_INLINE


class WCOpcode(enum.IntEnum):
    SEND = IBV_WC_SEND
    RDMA_WRITE = IBV_WC_RDMA_WRITE
    RDMA_READ = IBV_WC_RDMA_READ
    RECV = IBV_WC_RECV


class Status(enum.IntEnum):
    """Of a work completion."""

    SUCCESS = IBV_WC_SUCCESS
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR
    REM_OP_ERR = IBV_WC_REM_OP_ERR
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR
    FATAL_ERR = IBV_WC_FATAL_ERR
    GENERAL_ERR = IBV_WC_GENERAL_ERR


class EventType(enum.IntEnum):
    """Of an asynchronous event."""

    CQ_ERR = IBV_EVENT_CQ_ERR
    QP_FATAL = IBV_EVENT_QP_FATAL
    QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR
    QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR
    COMM_EST = IBV_EVENT_COMM_EST
    SQ_DRAINED = IBV_EVENT_SQ_DRAINED
    SRQ_LIMIT_REACHED = IBV_EVENT_SRQ_LIMIT_REACHED
    QP_LAST_WQE_REACHED = IBV_EVENT_QP_LAST_WQE_REACHED


class VerbsError(OSError):
    """A verbs call failed (`errno`), or a work request did (`status`)."""

    status = None


cdef object failure(str what, int error):
    return VerbsError(error, f"{what}: {strerror(error).decode()}")


cdef int need_soft(const verbs_provider *provider, str what) except -1:
    if provider != soft_provider():
        raise failure(f"{what}: a device of the system", EOPNOTSUPP)
    return 0


cdef class Base:
    """What all objects share: one parent, weakly known children, a close that may be repeated."""

    cdef object __weakref__
    cdef Base parent
    cdef object children

    def __cinit__(self):
        self.children = weakref.WeakSet()

    cdef void adopt(self, Base child):
        child.parent = self
        self.children.add(child)

    cdef int release(self) except -1:
        return 0

    def close(self):
        """Closes the objects made from this one, then this one."""
        for child in list(self.children):
            child.close()
        self.release()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@cython.no_gc_clear
cdef class Context(Base):
    """An open device. `name`: as in devices(), of the software provider or of the system's."""

    cdef const verbs_provider *p
    cdef ibv_context *context
    cdef verbs_port port             # what queue pairs are joined over; of the device once port.context is set
    cdef readonly str name

    def __init__(self, str name="soft_iw0"):
        cdef const char *absent = NULL
        if self.context != NULL:
            raise RuntimeError("already open")
        if not self.open(soft_provider(), name) and not self.open(system_provider(&absent), name):
            raise VerbsError(2, f"no such device: {name}")

    cdef bint open(self, const verbs_provider *provider, str name) except -1:
        """False: the provider, which may be NULL, has no such device."""
        cdef int i, count = 0
        cdef ibv_device **found
        if provider == NULL:
            return False
        found = provider.get_device_list(&count)
        if found == NULL:
            raise failure("get_device_list", errno.errno)
        try:
            for i in range(count):
                if provider.get_device_name(found[i]).decode() == name:
                    self.context = provider.open_device(found[i])
                    if self.context == NULL:
                        raise failure(f"open_device {name}", errno.errno)
                    self.p = provider
                    self.name = name
                    return True
        finally:
            provider.free_device_list(found)
        return False

    cdef const verbs_port *route(self) except NULL:
        """The port and GID of the device that the daemon and the client would take."""
        cdef verbs_wish wish
        cdef char why[256]
        if self.port.context == NULL:
            memset(&wish, 0, sizeof(wish))
            wish.device = NULL
            wish.port = PORT_ANY
            wish.gid_index = GID_ANY
            self.port.provider = self.p
            self.port.context = self.handle()
            if verbs_take_port(&wish, &self.port, why, sizeof(why)) != 0:
                self.port.context = NULL
                raise VerbsError(19, (<bytes> why).decode())
        return &self.port

    def start_progress(self, unsigned int spin=50):
        """Starts a thread that makes progress for all completion queues of this device: the program need not poll.

        READs and WRITEs of peers are served, and channels become readable, while the program does something else. The
        thread looks for up to `spin` microseconds after work, as long as that pays, and sleeps otherwise. Completions
        are polled as ever. It ends with stop_progress(), or when the device is closed; a child made by fork has none.
        A device of the system works by itself: nothing to do. Raises VerbsError (EALREADY).
        """
        cdef ibv_context *context = self.handle()
        cdef int error
        if self.p == soft_provider():
            with nogil:
                error = soft_start_progress(context, spin)
            if error:
                raise failure("start_progress", error)

    def stop_progress(self):
        """Ends the thread of start_progress(), if there is one. Not while another thread of the program starts it."""
        cdef ibv_context *context = self.handle()
        if self.p == soft_provider():
            with nogil:
                soft_stop_progress(context)

    cdef int release(self) except -1:
        cdef int error
        if self.context != NULL:
            error = self.p.close_device(self.context)
            if error:
                raise failure("close_device", error)
            self.context = NULL
        return 0

    def __dealloc__(self):
        if self.context != NULL:
            self.p.close_device(self.context)

    def query_device(self):
        """The device's limits as a dict, by libibverbs' field names."""
        cdef ibv_device_attr attr
        cdef int error = self.p.query_device(self.handle(), &attr)
        if error:
            raise failure("query_device", error)
        return {
            "max_mr_size": attr.max_mr_size, "max_qp": attr.max_qp, "max_qp_wr": attr.max_qp_wr,
            "max_sge": attr.max_sge, "max_sge_rd": attr.max_sge_rd, "max_cq": attr.max_cq, "max_cqe": attr.max_cqe,
            "max_mr": attr.max_mr, "max_pd": attr.max_pd, "max_qp_rd_atom": attr.max_qp_rd_atom,
            "max_qp_init_rd_atom": attr.max_qp_init_rd_atom, "atomic_cap": attr.atomic_cap,
            "max_srq": attr.max_srq, "max_srq_wr": attr.max_srq_wr, "max_srq_sge": attr.max_srq_sge,
            "device_cap_flags": attr.device_cap_flags, "max_pkeys": attr.max_pkeys,
            "phys_port_cnt": attr.phys_port_cnt, "transport_type": self.context.device.transport_type,
            "node_type": self.context.device.node_type,
        }

    def query_port(self, uint8_t port=1):
        cdef ibv_port_attr attr
        cdef int error = self.p.query_port(self.handle(), port, &attr)
        if error:
            raise failure("query_port", error)
        return {
            "state": attr.state, "active_mtu": attr.active_mtu, "max_msg_sz": attr.max_msg_sz,
            "gid_tbl_len": attr.gid_tbl_len, "lid": attr.lid, "link_layer": attr.link_layer,
        }

    def query_gid(self, uint8_t port=1, int index=0):
        cdef ibv_gid gid
        if self.p.query_gid(self.handle(), port, index, &gid) < 0:
            raise failure("query_gid", errno.errno)
        return bytes(gid.raw[:16])

    def query_pkey(self, uint8_t port=1, int index=0):
        cdef uint16_t key
        if self.p.query_pkey(self.handle(), port, index, &key) < 0:
            raise failure("query_pkey", errno.errno)
        return key

    def async_fileno(self):
        """A descriptor that is readable while asynchronous events are pending."""
        return self.handle().async_fd

    def get_async_event(self):
        """(EventType, the QP, CQ or SRQ it befell); acknowledged.

        None: there is none, and async_fileno() is non-blocking. Events are made by whoever makes
        progress: a thread that only waits here makes none.
        """
        cdef ibv_context *context = self.handle()
        cdef ibv_async_event event
        cdef void *element
        cdef int result
        with nogil:
            result = self.p.get_async_event(context, &event)
        if result < 0:
            if errno.errno == EAGAIN:
                return None
            raise failure("get_async_event", errno.errno)
        if event.event_type == IBV_EVENT_CQ_ERR:
            element = event.element.cq.cq_context
        elif event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED:
            element = event.element.srq.srq_context
        else:
            element = event.element.qp.qp_context
        found = EventType(event.event_type), <object> element
        self.p.ack_async_event(&event)
        return found

    cdef ibv_context *handle(self) except NULL:
        if self.context == NULL:
            raise ValueError("the device is closed")
        return self.context


@cython.no_gc_clear
cdef class PD(Base):
    """A protection domain."""

    cdef const verbs_provider *p
    cdef ibv_pd *pd
    cdef Context context

    def __init__(self, Context context not None):
        self.p = context.p
        self.context = context
        self.pd = self.p.alloc_pd(context.handle())
        if self.pd == NULL:
            raise failure("alloc_pd", errno.errno)
        context.adopt(self)

    cdef int release(self) except -1:
        cdef int error
        if self.pd != NULL:
            error = self.p.dealloc_pd(self.pd)
            if error:
                raise failure("dealloc_pd", error)
            self.pd = NULL
        return 0

    def __dealloc__(self):
        if self.pd != NULL:
            self.p.dealloc_pd(self.pd)

    cdef ibv_pd *handle(self) except NULL:
        if self.pd == NULL:
            raise ValueError("the protection domain is closed")
        return self.pd


@cython.no_gc_clear
cdef class MR(Base):
    """A memory region over an object with a contiguous buffer, which it holds until it is closed.

    With Access.LOCAL_WRITE the buffer must be writable. `sge(offset, length)` names a part of it for a work request.
    A region is itself a buffer (memoryview(mr)), and cannot be closed while one of its views is in use: BufferError.
    """

    cdef const verbs_provider *p
    cdef ibv_mr *mr
    cdef Py_buffer view
    cdef bint held                   # view is of the program's object
    cdef int views                   # exported

    def __init__(self, PD pd not None, buffer, int access=IBV_ACCESS_LOCAL_WRITE):
        if self.held:
            raise RuntimeError("already registered")
        PyObject_GetBuffer(buffer, &self.view, PyBUF_WRITABLE if access & IBV_ACCESS_LOCAL_WRITE else PyBUF_SIMPLE)
        self.held = True
        self.p = pd.p
        self.mr = self.p.reg_mr(pd.handle(), self.view.buf, <size_t> self.view.len, access)
        if self.mr == NULL:
            raise failure("reg_mr", errno.errno)
        pd.adopt(self)

    @staticmethod
    def alloc(PD pd not None, size_t length, int access=IBV_ACCESS_LOCAL_WRITE):
        """soft: a region over zeroed memory of its own, which is reached as the region's buffer: memoryview(mr)."""
        cdef MR self = MR.__new__(MR)
        need_soft(pd.p, "alloc_mr")
        self.p = pd.p
        self.mr = soft_alloc_mr(pd.handle(), length, access)
        if self.mr == NULL:
            raise failure("alloc_mr", errno.errno)
        pd.adopt(self)
        return self

    def __getbuffer__(self, Py_buffer *out, int flags):
        cdef ibv_mr *mr = self.handle()
        PyBuffer_FillInfo(out, self, mr.addr, <Py_ssize_t> mr.length, self.held and self.view.readonly, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *out):
        self.views -= 1

    cdef int release(self) except -1:
        cdef int error
        if self.views:
            raise BufferError("views of the memory region are in use")
        if self.mr != NULL:
            with nogil:
                error = self.p.dereg_mr(self.mr)
            if error:
                raise failure("dereg_mr", error)
            self.mr = NULL
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)
        return 0

    def __dealloc__(self):
        if self.mr != NULL:
            self.p.dereg_mr(self.mr)
        if self.held:
            PyBuffer_Release(&self.view)

    cdef ibv_mr *handle(self) except NULL:
        if self.mr == NULL:
            raise ValueError("the memory region is closed")
        return self.mr

    @property
    def addr(self):
        return <uintptr_t> self.handle().addr

    @property
    def length(self):
        return self.handle().length

    @property
    def lkey(self):
        return self.handle().lkey

    @property
    def rkey(self):
        return self.handle().rkey

    def sge(self, offset=0, length=None):
        """(address, length, lkey) of a part of the region."""
        if length is None:
            length = self.length - offset
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"[{offset}, {offset + length}) is not in the region's {self.length} bytes")
        return self.addr + offset, length, self.lkey


@cython.no_gc_clear
cdef class CompChannel(Base):
    """A completion channel. Its fileno() is readable when get_event() may have something to do."""

    cdef const verbs_provider *p
    cdef ibv_comp_channel *channel

    def __init__(self, Context context not None):
        self.p = context.p
        self.channel = self.p.create_comp_channel(context.handle())
        if self.channel == NULL:
            raise failure("create_comp_channel", errno.errno)
        context.adopt(self)

    cdef int release(self) except -1:
        cdef int error
        if self.channel != NULL:
            error = self.p.destroy_comp_channel(self.channel)
            if error:
                raise failure("destroy_comp_channel", error)
            self.channel = NULL
        return 0

    def __dealloc__(self):
        if self.channel != NULL:
            self.p.destroy_comp_channel(self.channel)

    cdef ibv_comp_channel *handle(self) except NULL:
        if self.channel == NULL:
            raise ValueError("the channel is closed")
        return self.channel

    def fileno(self):
        return self.handle().fd

    def get_event(self):
        """The CQ that an event is for; the event is acknowledged. None: there is none, and the fd is non-blocking."""
        cdef ibv_comp_channel *channel = self.handle()
        cdef ibv_cq *cq = NULL
        cdef void *context = NULL
        cdef int result
        with nogil:
            result = self.p.get_cq_event(channel, &cq, &context)
        if result < 0:
            if errno.errno == EAGAIN:
                return None
            raise failure("get_cq_event", errno.errno)
        self.p.ack_cq_events(cq, 1)
        return <object> context


cdef class WC:
    """A work completion."""

    cdef readonly object wr_id
    cdef readonly object status
    cdef readonly object opcode
    cdef readonly object byte_len
    cdef readonly object qp_num
    cdef readonly object invalidated_rkey

    def check(self):
        """Raises VerbsError unless the request succeeded; returns the completion."""
        if self.status != IBV_WC_SUCCESS:
            error = VerbsError(5, f"work request {self.wr_id}: {self.status.name}")
            error.status = self.status
            raise error
        return self

    def __repr__(self):
        return f"WC({self.wr_id}, {self.status.name}, {self.opcode.name}, {self.byte_len})"


@cython.no_gc_clear
cdef class CQ(Base):
    """A completion queue of at least `cqe` entries, with or without a channel."""

    cdef const verbs_provider *p
    cdef ibv_cq *cq
    cdef CompChannel channel

    def __init__(self, Context context not None, int cqe=256, CompChannel channel=None):
        self.p = context.p
        cdef ibv_comp_channel *events = NULL
        if channel is not None:
            events = channel.handle()
        self.cq = self.p.create_cq(context.handle(), cqe, <void *> self, events, 0)
        if self.cq == NULL:
            raise failure("create_cq", errno.errno)
        self.channel = channel
        context.adopt(self)
        if channel is not None:
            channel.children.add(self)

    cdef int release(self) except -1:
        cdef int error
        if self.cq != NULL:
            with nogil:
                error = self.p.destroy_cq(self.cq)
            if error:
                raise failure("destroy_cq", error)
            self.cq = NULL
        return 0

    def __dealloc__(self):
        if self.cq != NULL:
            self.p.destroy_cq(self.cq)

    cdef ibv_cq *handle(self) except NULL:
        if self.cq == NULL:
            raise ValueError("the completion queue is closed")
        return self.cq

    @property
    def cqe(self):
        return self.handle().cqe

    def arm(self, bint solicited_only=False):
        """Asks for one event on the channel, for the next completion."""
        cdef int error = ibv_req_notify_cq(self.handle(), solicited_only)
        if error:
            raise failure("req_notify_cq", error)

    def resize(self, int cqe):
        """At least `cqe` entries; completions stay."""
        cdef int error = self.p.resize_cq(self.handle(), cqe)
        if error:
            raise failure("resize_cq", error)

    def poll(self, int count=16):
        """Up to `count` completions that are there, as a list; makes progress when there is none, or for count 0."""
        cdef ibv_cq *cq = self.handle()
        cdef ibv_wc *entries
        cdef int i, n
        cdef WC wc
        if count < 0:
            raise ValueError("count must not be negative")
        entries = <ibv_wc *> calloc(count + 1, sizeof(ibv_wc))
        if entries == NULL:
            raise MemoryError
        try:
            with nogil:
                n = ibv_poll_cq(cq, count, entries)
            if n < 0:
                raise failure("poll_cq", -n)
            found = []
            for i in range(n):
                wc = WC.__new__(WC)
                wc.wr_id = entries[i].wr_id
                wc.status = Status(entries[i].status)
                wc.opcode = WCOpcode(entries[i].opcode)
                wc.byte_len = entries[i].byte_len
                wc.qp_num = entries[i].qp_num
                wc.invalidated_rkey = entries[i].invalidated_rkey if entries[i].wc_flags & IBV_WC_WITH_INV else None
                found.append(wc)
            return found
        finally:
            free(entries)


class SendWR:
    """A send work request. `sges`: (address, length, lkey) tuples, as MR.sge makes them."""

    __slots__ = ("flags", "invalidate_rkey", "opcode", "remote_addr", "rkey", "sges", "wr_id")

    def __init__(self, opcode=Opcode.SEND, sges=(), *, wr_id=0, flags=SendFlag.SIGNALED, remote_addr=0, rkey=0,
                 invalidate_rkey=0):
        self.opcode = opcode
        self.sges = tuple(sges)
        self.wr_id = wr_id
        self.flags = flags
        self.remote_addr = remote_addr
        self.rkey = rkey
        self.invalidate_rkey = invalidate_rkey


@cython.no_gc_clear
cdef class SRQ(Base):
    """A shared receive queue."""

    cdef const verbs_provider *p
    cdef ibv_srq *srq

    def __init__(self, PD pd not None, *, uint32_t max_wr=256, uint32_t max_sge=8):
        cdef ibv_srq_init_attr init
        memset(&init, 0, sizeof(init))
        init.srq_context = <void *> self
        init.attr.max_wr = max_wr
        init.attr.max_sge = max_sge
        self.p = pd.p
        self.srq = self.p.create_srq(pd.handle(), &init)
        if self.srq == NULL:
            raise failure("create_srq", errno.errno)
        pd.adopt(self)

    cdef int release(self) except -1:
        cdef int error
        if self.srq != NULL:
            with nogil:
                error = self.p.destroy_srq(self.srq)
            if error:
                raise failure("destroy_srq", error)
            self.srq = NULL
        return 0

    def __dealloc__(self):
        if self.srq != NULL:
            self.p.destroy_srq(self.srq)

    cdef ibv_srq *handle(self) except NULL:
        if self.srq == NULL:
            raise ValueError("the shared receive queue is closed")
        return self.srq

    def query(self):
        cdef ibv_srq_attr attr
        cdef int error = self.p.query_srq(self.handle(), &attr)
        if error:
            raise failure("query_srq", error)
        return {"max_wr": attr.max_wr, "max_sge": attr.max_sge, "srq_limit": attr.srq_limit}

    def modify(self, *, max_wr=None, srq_limit=None):
        """A new size, or arms the event for when fewer than srq_limit receives are left (0: disarms it)."""
        cdef ibv_srq_attr attr
        cdef int mask = 0
        cdef int error
        memset(&attr, 0, sizeof(attr))
        if max_wr is not None:
            mask |= IBV_SRQ_MAX_WR
            attr.max_wr = max_wr
        if srq_limit is not None:
            mask |= IBV_SRQ_LIMIT
            attr.srq_limit = srq_limit
        error = self.p.modify_srq(self.handle(), &attr, mask)
        if error:
            raise failure("modify_srq", error)

    def post_recv(self, *requests):
        """Posts receives, each (wr_id, sges)."""
        cdef recv_chain chain
        fill_chain(&chain, requests)
        try:
            if chain.count:
                check_post("post_srq_recv", ibv_post_srq_recv(self.handle(), chain.wrs, &chain.bad), &chain)
        finally:
            free(chain.wrs)
            free(chain.sges)


cdef struct recv_chain:
    ibv_recv_wr *wrs
    ibv_recv_wr *bad
    ibv_sge *sges
    size_t count


cdef int fill_chain(recv_chain *chain, tuple requests) except -1:
    """Makes work requests of (wr_id, sges); the caller frees the arrays."""
    cdef size_t i = 0, at = 0, total = 0
    for _, parts in requests:
        total += len(parts)
    chain.count = len(requests)
    chain.bad = NULL
    chain.wrs = <ibv_recv_wr *> calloc(chain.count + 1, sizeof(ibv_recv_wr))
    chain.sges = <ibv_sge *> calloc(total + 1, sizeof(ibv_sge))
    try:
        if chain.wrs == NULL or chain.sges == NULL:
            raise MemoryError
        for wr_id, parts in requests:
            chain.wrs[i].wr_id = wr_id
            chain.wrs[i].sg_list = &chain.sges[at]
            chain.wrs[i].num_sge = <int> len(parts)
            chain.wrs[i].next = &chain.wrs[i + 1] if i + 1 < chain.count else NULL
            for addr, length, lkey in parts:
                chain.sges[at].addr = addr
                chain.sges[at].length = length
                chain.sges[at].lkey = lkey
                at += 1
            i += 1
    except BaseException:
        free(chain.wrs)
        free(chain.sges)
        raise
    return 0


cdef int check_post(str what, int error, const recv_chain *chain) except -1:
    if error:
        raise failure(f"{what}, request {chain.bad - chain.wrs if chain.bad != NULL else 0}", error)
    return 0


# attribute -> its bit in modify_qp's mask
cdef dict ATTRIBUTES = {
    "cur_qp_state": IBV_QP_CUR_STATE,
    "qp_access_flags": IBV_QP_ACCESS_FLAGS,
    "pkey_index": IBV_QP_PKEY_INDEX,
    "port_num": IBV_QP_PORT,
    "path_mtu": IBV_QP_PATH_MTU,
    "timeout": IBV_QP_TIMEOUT,
    "retry_cnt": IBV_QP_RETRY_CNT,
    "rnr_retry": IBV_QP_RNR_RETRY,
    "rq_psn": IBV_QP_RQ_PSN,
    "sq_psn": IBV_QP_SQ_PSN,
    "max_rd_atomic": IBV_QP_MAX_QP_RD_ATOMIC,
    "max_dest_rd_atomic": IBV_QP_MAX_DEST_RD_ATOMIC,
    "min_rnr_timer": IBV_QP_MIN_RNR_TIMER,
    "dest_qp_num": IBV_QP_DEST_QPN,
    "ah_attr": IBV_QP_AV,
    "en_sqd_async_notify": IBV_QP_EN_SQD_ASYNC_NOTIFY,
}


@cython.no_gc_clear
cdef class QP(Base):
    """An RC queue pair."""

    cdef const verbs_provider *p
    cdef ibv_qp *qp
    cdef readonly CQ send_cq
    cdef readonly CQ recv_cq
    cdef Context context
    cdef readonly SRQ srq
    cdef uint32_t psn                # of the first packet that it sends after join()

    def __init__(self, PD pd not None, CQ send_cq not None, CQ recv_cq=None, *, SRQ srq=None, uint32_t max_send_wr=64,
                 uint32_t max_recv_wr=64, uint32_t max_send_sge=8, uint32_t max_recv_sge=8,
                 uint32_t max_inline_data=256, bint sq_sig_all=False):
        cdef ibv_qp_init_attr init
        if recv_cq is None:
            recv_cq = send_cq
        memset(&init, 0, sizeof(init))
        init.qp_context = <void *> self
        init.send_cq = send_cq.handle()
        init.recv_cq = recv_cq.handle()
        init.cap.max_send_wr = max_send_wr
        init.cap.max_recv_wr = max_recv_wr
        init.cap.max_send_sge = max_send_sge
        init.cap.max_recv_sge = max_recv_sge
        init.cap.max_inline_data = max_inline_data
        init.qp_type = IBV_QPT_RC
        init.sq_sig_all = sq_sig_all
        if srq is not None:
            init.srq = srq.handle()
        self.p = pd.p
        self.qp = self.p.create_qp(pd.handle(), &init)
        if self.qp == NULL:
            raise failure("create_qp", errno.errno)
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.srq = srq
        self.context = pd.context
        self.psn = int.from_bytes(os.urandom(3), "big")
        pd.adopt(self)
        if srq is not None:
            srq.children.add(self)
        send_cq.children.add(self)
        recv_cq.children.add(self)

    cdef int release(self) except -1:
        cdef int error
        if self.qp != NULL:
            with nogil:
                error = self.p.destroy_qp(self.qp)
            if error:
                raise failure("destroy_qp", error)
            self.qp = NULL
        return 0

    def __dealloc__(self):
        if self.qp != NULL:
            self.p.destroy_qp(self.qp)

    cdef ibv_qp *handle(self) except NULL:
        if self.qp == NULL:
            raise ValueError("the queue pair is closed")
        return self.qp

    @property
    def qp_num(self):
        return self.handle().qp_num

    @property
    def state(self):
        """The present state. libibverbs' own copy, qp.state, is of the last modify_qp."""
        cdef ibv_qp_attr attr
        cdef ibv_qp_init_attr init
        cdef int error = self.p.query_qp(self.handle(), &attr, IBV_QP_STATE, &init)
        if error:
            raise failure("query_qp", error)
        return State(attr.qp_state)

    def query(self):
        """Attributes as a dict, by libibverbs' field names."""
        cdef ibv_qp_attr attr
        cdef ibv_qp_init_attr init
        cdef int error = self.p.query_qp(self.handle(), &attr, 0, &init)
        if error:
            raise failure("query_qp", error)
        return {
            "qp_state": State(attr.qp_state), "qp_access_flags": attr.qp_access_flags,
            "max_rd_atomic": attr.max_rd_atomic, "max_dest_rd_atomic": attr.max_dest_rd_atomic,
            "dest_qp_num": attr.dest_qp_num, "rq_psn": attr.rq_psn, "sq_psn": attr.sq_psn,
            "max_send_wr": init.cap.max_send_wr, "max_recv_wr": init.cap.max_recv_wr,
            "max_inline_data": init.cap.max_inline_data, "sq_sig_all": bool(init.sq_sig_all),
            "path_mtu": attr.path_mtu, "timeout": attr.timeout, "retry_cnt": attr.retry_cnt,
            "rnr_retry": attr.rnr_retry, "min_rnr_timer": attr.min_rnr_timer, "port_num": attr.port_num,
            "sq_draining": bool(attr.sq_draining),
        }

    def modify(self, state=None, **attributes):
        """modify_qp with exactly the attributes named, as in libibverbs' struct ibv_qp_attr; ah_attr=True gives one."""
        cdef ibv_qp_attr attr
        cdef int mask = 0
        cdef int error
        memset(&attr, 0, sizeof(attr))
        if state is not None:
            mask |= IBV_QP_STATE
            attr.qp_state = <ibv_qp_state> <int> state
        for name in attributes:
            if name not in ATTRIBUTES:
                raise TypeError(f"no such attribute: {name}")
            mask |= <int> ATTRIBUTES[name]
        attr.cur_qp_state = <ibv_qp_state> <int> attributes.get("cur_qp_state", 0)
        attr.qp_access_flags = attributes.get("qp_access_flags", 0)
        attr.pkey_index = attributes.get("pkey_index", 0)
        attr.port_num = attributes.get("port_num", 0)
        attr.path_mtu = <ibv_mtu> <int> attributes.get("path_mtu", IBV_MTU_4096)
        attr.timeout = attributes.get("timeout", 0)
        attr.retry_cnt = attributes.get("retry_cnt", 0)
        attr.rnr_retry = attributes.get("rnr_retry", 0)
        attr.rq_psn = attributes.get("rq_psn", 0)
        attr.sq_psn = attributes.get("sq_psn", 0)
        attr.max_rd_atomic = attributes.get("max_rd_atomic", 0)
        attr.max_dest_rd_atomic = attributes.get("max_dest_rd_atomic", 0)
        attr.min_rnr_timer = attributes.get("min_rnr_timer", 0)
        attr.dest_qp_num = attributes.get("dest_qp_num", 0)
        attr.en_sqd_async_notify = attributes.get("en_sqd_async_notify", 0)
        with nogil:
            error = self.p.modify_qp(self.qp, &attr, mask) if self.qp != NULL else EINVAL
        if error:
            raise failure("modify_qp", error)

    def to_init(self, access=0):
        self.modify(State.INIT, pkey_index=0, port_num=1, qp_access_flags=access)

    def to_rtr(self, dest_qp_num=0, ird=16):
        self.modify(State.RTR, ah_attr=True, path_mtu=IBV_MTU_4096, dest_qp_num=dest_qp_num, rq_psn=0,
                    max_dest_rd_atomic=ird, min_rnr_timer=12)

    def to_rts(self, ord=16):
        self.modify(State.RTS, timeout=14, retry_cnt=7, rnr_retry=7, sq_psn=0, max_rd_atomic=ord)

    def ready(self, access=0, dest_qp_num=0, ird=16, ord=16):
        """RESET to RTS."""
        self.to_init(access)
        self.to_rtr(dest_qp_num, ird)
        self.to_rts(ord)

    @property
    def address(self):
        """What the peer's join() takes: qpn, psn, lid, mtu (bytes) and gid (16 bytes), each as in an exchange."""
        cdef const verbs_port *port = self.context.route()
        return {"qpn": self.handle().qp_num, "psn": self.psn, "lid": port.lid, "mtu": verbs_mtu_bytes(port.mtu),
                "gid": bytes(port.gid.raw[:16])}

    def open(self, unsigned int access=0):
        """RESET to INIT, over the port that join() uses. Receives can be posted then."""
        cdef int error = verbs_qp_init(self.context.route(), self.handle(), access)
        if error:
            raise failure("modify_qp", error)

    def join(self, dict peer not None, *, unsigned int ird=16, unsigned int ord=16, psn=None):
        """INIT to RTS, towards a peer's `address`: for devices of InfiniBand and RoCE, whose packets need no more.

        psn: of the first packet; None: as `address` says.
        """
        cdef qp_address there
        cdef const verbs_port *port = self.context.route()
        cdef bytes gid = peer["gid"]
        cdef int error
        if len(gid) != 16:
            raise ValueError("a GID has 16 bytes")
        there.qpn = peer["qpn"]
        there.psn = peer["psn"]
        there.lid = peer["lid"]
        there.mtu = peer["mtu"]
        memcpy(there.gid.raw, <const char *> gid, 16)
        if psn is not None:
            self.psn = psn
        error = verbs_qp_connect(port, self.handle(), self.psn, &there, ird, ord)
        if error:
            raise failure("modify_qp", error)

    def connect(self, sock, *, bint crc=False, uint16_t ird=16, uint16_t ord=16, bytes private_data=b"",
                bint peer_to_peer=False, uint16_t pause=0):
        """soft_iw: makes the connected socket the stream, as the side that sends the MPA request; takes it over.

        peer_to_peer: the other side may send first. pause: milliseconds between its reply and our first frame.
        """
        cdef soft_iw_options options
        cdef ibv_qp *qp = self.handle()
        cdef int fd = sock.fileno()
        cdef int result
        need_soft(self.p, "soft_iw_connect")
        set_options(&options, crc, ird, ord, private_data)
        options.peer_to_peer = peer_to_peer
        options.pause = pause
        with nogil:
            result = soft_iw_connect(qp, fd, &options)
        if result < 0:
            raise failure("soft_iw_connect", errno.errno)
        sock.detach()

    def accept(self, sock, bytes frame, *, bint crc=False, uint16_t ird=16, uint16_t ord=16, bytes private_data=b""):
        """soft_iw: answers the MPA request that was read from the socket. Takes over the socket."""
        cdef soft_iw_options options
        cdef ibv_qp *qp = self.handle()
        cdef const char *data = frame
        cdef size_t length = len(frame)
        cdef int fd = sock.fileno()
        cdef int result
        need_soft(self.p, "soft_iw_accept")
        set_options(&options, crc, ird, ord, private_data)
        with nogil:
            result = soft_iw_accept(qp, fd, data, length, &options)
        if result < 0:
            raise failure("soft_iw_accept", errno.errno)
        sock.detach()

    def attach(self, sock, *, uint16_t ird=16, uint16_t ord=16):
        """soft_shm: makes the connected UNIX socket the stream; the peer does the same. Takes over the socket."""
        cdef ibv_qp *qp = self.handle()
        cdef int fd = sock.fileno()
        cdef int result
        need_soft(self.p, "soft_shm_attach")
        with nogil:
            result = soft_shm_attach(qp, fd, ird, ord)
        if result < 0:
            raise failure("soft_shm_attach", errno.errno)
        sock.detach()

    def stream(self):
        """soft_iw: how far the connection is, as a dict; private_data is that of the reply to connect()."""
        cdef soft_iw_stream s
        need_soft(self.p, "stream")
        soft_iw_query(self.handle(), &s)
        return {
            "state": StreamState(s.state), "crc": bool(s.crc), "ird": s.ird, "ord": s.ord, "peer_ird": s.peer_ird,
            "peer_ord": s.peer_ord, "private_data": bytes(s.private_data[:s.private_length]),
        }

    def counters(self):
        """What the software device counts of this queue pair, as a dict."""
        cdef soft_qp_counters c
        need_soft(self.p, "counters")
        soft_query_counters(self.handle(), &c)
        return c

    def post_recv(self, *requests):
        """Posts receives, each (wr_id, sges)."""
        cdef ibv_qp *qp = self.handle()
        cdef recv_chain chain
        cdef int error
        fill_chain(&chain, requests)
        try:
            if chain.count:
                with nogil:
                    error = ibv_post_recv(qp, chain.wrs, &chain.bad)
                check_post("post_recv", error, &chain)
        finally:
            free(chain.wrs)
            free(chain.sges)

    def post_send(self, *requests):
        """Posts SendWR objects as one chain."""
        cdef ibv_qp *qp = self.handle()
        cdef ibv_send_wr *chain
        cdef ibv_send_wr *bad = NULL
        cdef ibv_sge *sges
        cdef size_t i = 0, at = 0, total = 0
        cdef int error
        for request in requests:
            total += len(request.sges)
        chain = <ibv_send_wr *> calloc(len(requests) + 1, sizeof(ibv_send_wr))
        sges = <ibv_sge *> calloc(total + 1, sizeof(ibv_sge))
        try:
            if chain == NULL or sges == NULL:
                raise MemoryError
            for request in requests:
                chain[i].wr_id = request.wr_id
                chain[i].sg_list = &sges[at]
                chain[i].num_sge = <int> len(request.sges)
                chain[i].opcode = <ibv_wr_opcode> <int> request.opcode
                chain[i].send_flags = request.flags
                chain[i].wr.rdma.remote_addr = request.remote_addr
                chain[i].wr.rdma.rkey = request.rkey
                if request.opcode == IBV_WR_SEND_WITH_INV:
                    chain[i].invalidate_rkey = request.invalidate_rkey
                chain[i].next = &chain[i + 1] if i + 1 < <size_t> len(requests) else NULL
                for addr, length, lkey in request.sges:
                    sges[at].addr = addr
                    sges[at].length = length
                    sges[at].lkey = lkey
                    at += 1
                i += 1
            if i == 0:
                return
            with nogil:
                error = ibv_post_send(qp, chain, &bad)
            if error:
                raise failure(f"post_send, request {bad - chain if bad != NULL else 0}", error)
        finally:
            free(chain)
            free(sges)


cdef void set_options(soft_iw_options *options, bint crc, uint16_t ird, uint16_t ord, bytes private_data):
    memset(options, 0, sizeof(options[0]))
    options.crc = crc
    options.ird = ird
    options.ord = ord
    options.private_data = <const char *> private_data
    options.private_length = len(private_data)


def devices(str provider not None="soft"):
    """Names of the devices of a provider: "soft", or "system": libibverbs'. VerbsError: libibverbs is not there."""
    cdef int i, count = 0
    cdef const char *absent = NULL
    cdef const verbs_provider *p
    cdef ibv_device **found
    if provider not in ("soft", "system"):
        raise ValueError(f'the provider is "system" or "soft", not {provider!r}')
    p = soft_provider() if provider == "soft" else system_provider(&absent)
    if p == NULL:
        raise VerbsError(2, absent.decode())
    found = p.get_device_list(&count)
    if found == NULL:
        raise failure("get_device_list", errno.errno)
    try:
        return [p.get_device_name(found[i]).decode() for i in range(count)]
    finally:
        p.free_device_list(found)


def parse_request(bytes data):
    """An MPA request frame as a dict; None when more bytes are needed. VerbsError (EPROTO): not an acceptable one."""
    cdef soft_iw_request request
    cdef int done = soft_iw_parse_request(<const char *> data, len(data), &request)
    if done < 0:
        raise failure("not an MPA request", errno.errno)
    if done == 0:
        return None
    return {
        "revision": request.revision, "enhanced": bool(request.enhanced), "crc": bool(request.crc),
        "peer_to_peer": bool(request.peer_to_peer), "ird": request.ird, "ord": request.ord,
        "private_data": bytes(request.private_data[:request.private_length]), "consumed": request.consumed,
    }


def reject(sock, bytes data, bytes private_data=b""):
    """Answers an MPA request with a refusal. The socket stays the caller's."""
    if soft_iw_reject(sock.fileno(), <const char *> data, len(data), <const char *> private_data,
                      len(private_data)) < 0:
        raise failure("soft_iw_reject", errno.errno)


def event_text(event):
    """The provider's words for an asynchronous event."""
    return soft_provider().event_type_str(<ibv_event_type> <int> event).decode()


def status_text(status):
    """The provider's words for a completion status."""
    return soft_provider().wc_status_str(<ibv_wc_status> <int> status).decode()
