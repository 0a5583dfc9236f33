"""Completion channels, completion queues, and completions."""

import enum

cimport cython
from libc cimport errno
from libc.errno cimport EAGAIN
from libc.stdlib cimport calloc, free

from rmemcached.verbs.objects.base cimport Base, failure, need_soft
from rmemcached.verbs.objects.device cimport Context
from rmemcached.verbs.soft cimport soft_channel_begin_turn, soft_provider
from rmemcached.verbs.verbs cimport *

from rmemcached.verbs.objects.base import VerbsError


class WCOpcode(enum.IntEnum):
    SEND = IBV_WC_SEND
    RDMA_WRITE = IBV_WC_RDMA_WRITE
    RDMA_READ = IBV_WC_RDMA_READ
    BIND_MW = IBV_WC_BIND_MW
    LOCAL_INV = IBV_WC_LOCAL_INV
    RECV = IBV_WC_RECV


class Status(enum.IntEnum):
    """The status of a work completion."""

    SUCCESS = IBV_WC_SUCCESS
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR
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


@cython.no_gc_clear
cdef class CompChannel(Base):
    """A completion channel. Its fileno() is readable when get_event() may have something to do."""

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

    def begin_turn(self, work):
        """Begins a turn: posts and polls up to the next call move about `work` octets. soft.pxd has the conditions, at
        soft_channel_begin_turn.

        Returns whether the last turn was used up. Only the software devices have turns.
        """
        need_soft(self.p, "begin_turn")
        return soft_channel_begin_turn(self.handle(), work) <= 0

    def get_event(self):
        """Takes and acknowledges an event; returns its CQ, or None without an event if the fd is non-blocking."""
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
        """ibv_req_notify_cq: the next completion (solicited_only: the next solicited or failed completion) makes one
        event on the channel."""
        cdef int error = ibv_req_notify_cq(self.handle(), solicited_only)
        if error:
            raise failure("req_notify_cq", error)

    def resize(self, int cqe):
        """Changes the size to at least `cqe` entries. Completions that are in the queue stay."""
        cdef int error = self.p.resize_cq(self.handle(), cqe)
        if error:
            raise failure("resize_cq", error)

    def poll(self, int count=16):
        """Up to `count` completions as a list. Makes progress if there is none; with count 0 only makes progress."""
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


def status_text(status):
    """The text of a status, as from ibv_wc_status_str."""
    return soft_provider().wc_status_str(<ibv_wc_status> <int> status).decode()
