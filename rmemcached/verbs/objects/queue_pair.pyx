"""Queue pairs, shared receive queues, and the requests posted to them."""

import enum
import os

cimport cython
from libc cimport errno
from libc.errno cimport EINVAL
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from rmemcached.streams.stream cimport plain_stream, stream
from rmemcached.verbs.objects.base cimport Base, failure, need_soft
from rmemcached.verbs.objects.completion cimport CQ
from rmemcached.verbs.objects.memory cimport MR, MW, PD
from rmemcached.verbs.port cimport qp_address, verbs_mtu_bytes, verbs_port, verbs_qp_connect, verbs_qp_init
from rmemcached.verbs.soft cimport (
    SOFT_IW_CLOSED,
    SOFT_IW_NONE,
    SOFT_IW_OPEN,
    SOFT_IW_REFUSED,
    SOFT_IW_STARTING,
    soft_iw_accept,
    soft_iw_connect,
    soft_iw_options,
    soft_iw_parse_request,
    soft_iw_query,
    soft_iw_reject,
    soft_iw_request,
    soft_iw_stream,
    soft_qp_allow,
    soft_qp_counters,
    soft_qp_limit,
    soft_query_counters,
    soft_shm_attach,
    soft_srq_newest_first,
)
from rmemcached.verbs.verbs cimport *


class State(enum.IntEnum):
    RESET = IBV_QPS_RESET
    INIT = IBV_QPS_INIT
    RTR = IBV_QPS_RTR
    RTS = IBV_QPS_RTS
    SQD = IBV_QPS_SQD
    SQE = IBV_QPS_SQE
    ERR = IBV_QPS_ERR


class StreamState(enum.IntEnum):
    """The progress of a soft_iw queue pair's TCP stream."""

    NONE = SOFT_IW_NONE
    STARTING = SOFT_IW_STARTING
    OPEN = SOFT_IW_OPEN
    REFUSED = SOFT_IW_REFUSED
    CLOSED = SOFT_IW_CLOSED


class Opcode(enum.IntEnum):
    """The opcode of a send work request."""

    RDMA_WRITE = IBV_WR_RDMA_WRITE
    RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM
    SEND = IBV_WR_SEND
    SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM
    RDMA_READ = IBV_WR_RDMA_READ
    LOCAL_INV = IBV_WR_LOCAL_INV
    BIND_MW = IBV_WR_BIND_MW
    SEND_WITH_INV = IBV_WR_SEND_WITH_INV


class SendFlag(enum.IntFlag):
    FENCE = IBV_SEND_FENCE
    SIGNALED = IBV_SEND_SIGNALED
    SOLICITED = IBV_SEND_SOLICITED
    INLINE = IBV_SEND_INLINE


class SendWR:
    """A send work request. `sges`: (address, length, lkey) tuples, as made by MR.sge."""

    __slots__ = ("bind", "flags", "invalidate_rkey", "mw", "opcode", "remote_addr", "rkey", "sges", "wr_id")

    def __init__(self, opcode=Opcode.SEND, sges=(), *, wr_id=0, flags=SendFlag.SIGNALED, remote_addr=0, rkey=0,
                 invalidate_rkey=0):
        self.opcode = opcode
        self.sges = tuple(sges)
        self.wr_id = wr_id
        self.flags = flags
        self.remote_addr = remote_addr
        self.rkey = rkey
        self.invalidate_rkey = invalidate_rkey
        self.mw = self.bind = None

    @staticmethod
    def bind_mw(*, mw, rkey, bind, wr_id=0, flags=SendFlag.SIGNALED):
        """Binds a window of type 2, under a key, to a part of a region: (region, address, length, access)."""
        request = SendWR(Opcode.BIND_MW, wr_id=wr_id, flags=flags, rkey=rkey)
        request.mw = mw
        request.bind = bind
        return request


cdef int fill_bind(ibv_mw_bind_info *info, MW mw, tuple bind) except -1:
    cdef MR mr = bind[0]
    mw.handle()
    if mr is not None:
        info.mr = mr.handle()
        mw.regions.add(mr)
    info.addr = bind[1]
    info.length = bind[2]
    info.mw_access_flags = bind[3]
    return 0


cdef struct recv_chain:
    ibv_recv_wr *wrs
    ibv_recv_wr *bad
    ibv_sge *sges
    size_t count


cdef int fill_chain(recv_chain *chain, tuple requests) except -1:
    """Makes a chain of work requests from (wr_id, sges) pairs. The caller frees wrs and sges."""
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


@cython.no_gc_clear
cdef class SRQ(Base):
    """A shared receive queue."""

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
        """Changes the size; arms the event SRQ_LIMIT_REACHED (fewer than srq_limit receives are left; 0 disarms it)."""
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

    def newest_first(self):
        """Software devices only: the newest receive is taken first."""
        need_soft(self.p, "newest_first")
        soft_srq_newest_first(self.handle())

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


# attribute -> its bit in the mask of ibv_modify_qp
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
        """ibv_modify_qp with a mask of exactly these attributes, which are fields of struct ibv_qp_attr.

        ah_attr=True sets the bit of the address vector, with zeros as the value.
        """
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
        """Moves the queue pair from RESET to RTS. For software devices only: no address of the peer is set."""
        self.to_init(access)
        self.to_rtr(dest_qp_num, ird)
        self.to_rts(ord)

    @property
    def address(self):
        """A dict for the peer's join(): qpn, psn, lid, mtu (bytes) and gid (16 bytes), as in an exchange line."""
        cdef const verbs_port *port = self.context.route()
        return {"qpn": self.handle().qp_num, "psn": self.psn, "lid": port.lid, "mtu": verbs_mtu_bytes(port.mtu),
                "gid": bytes(port.gid.raw[:16])}

    def open(self, unsigned int access=0):
        """RESET to INIT, on the port used by join(). Receives can be posted afterwards."""
        cdef int error = verbs_qp_init(self.context.route(), self.handle(), access)
        if error:
            raise failure("modify_qp", error)

    def join(self, dict peer not None, *, unsigned int ird=16, unsigned int ord=16, psn=None):
        """INIT to RTS, towards the peer's `address`. For InfiniBand and RoCE; iWARP needs a stream, see connect().

        psn: of the first packet sent, in place of the PSN in our own `address`.
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

    def limit(self, uint32_t allowed, *, uint64_t wr_id):
        """Software devices only, before the first stream: the queue pair takes at most `allowed` receives of its SRQ.

        `allow` raises the limit. A flushed receive completion with this wr_id reports the state ERR."""
        need_soft(self.p, "limit")
        if self.srq is None:
            raise ValueError("the queue pair has no SRQ")
        soft_qp_limit(self.handle(), allowed, wr_id)

    def allow(self, uint32_t more):
        """Raises the limit of a limited queue pair by `more` receives."""
        need_soft(self.p, "allow")
        soft_qp_allow(self.handle(), more)

    def connect(self, sock, *, bint crc=False, uint16_t ird=16, uint16_t ord=16, bytes private_data=b"",
                bint peer_to_peer=False, uint16_t pause=0):
        """soft_iw: sends the MPA request on the connected socket, which becomes the stream of the queue pair.

        The queue pair takes over the socket. peer_to_peer: the peer may send first. pause: milliseconds between the MPA
        reply and our first frame.
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
        """soft_iw: answers the MPA request `frame`, already read from the socket, and takes over the socket."""
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
        """soft_shm: takes over the connected UNIX socket as the stream of the queue pair. The peer does the same."""
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
        """The state of a soft_iw stream as a dict. After connect(), private_data is from the peer's MPA reply."""
        cdef soft_iw_stream s
        need_soft(self.p, "stream")
        soft_iw_query(self.handle(), &s)
        return {
            "state": StreamState(s.state), "crc": bool(s.crc), "ird": s.ird, "ord": s.ord, "peer_ird": s.peer_ird,
            "peer_ord": s.peer_ord, "private_data": bytes(s.private_data[:s.private_length]),
        }

    def counters(self):
        """The software device's counters of this queue pair, as a dict."""
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

    def bind_mw(self, MW mw not None, tuple bind not None, *, wr_id=0, flags=SendFlag.SIGNALED):
        """Binds a window of type 1 to a part of a region: (region, address, length, access). Changes mw.rkey."""
        cdef ibv_mw_bind request
        cdef int error
        memset(&request, 0, sizeof(request))
        request.wr_id = wr_id
        request.send_flags = flags
        fill_bind(&request.bind_info, mw, bind)
        with nogil:
            error = ibv_bind_mw(self.qp, mw.mw, &request) if self.qp != NULL else EINVAL
        if error:
            raise failure("bind_mw", error)

    def post_send(self, *requests):
        """Posts SendWR objects as one chain."""
        cdef ibv_qp *qp = self.handle()
        cdef ibv_send_wr *chain
        cdef ibv_send_wr *bad = NULL
        cdef ibv_sge *sges
        cdef MW window
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
                if request.opcode == IBV_WR_SEND_WITH_INV or request.opcode == IBV_WR_LOCAL_INV:
                    chain[i].invalidate_rkey = request.invalidate_rkey
                elif request.opcode == IBV_WR_BIND_MW:
                    window = request.mw
                    fill_bind(&chain[i].bind_mw.bind_info, window, request.bind)
                    chain[i].bind_mw.mw = window.mw
                    chain[i].bind_mw.rkey = request.rkey
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


def parse_request(bytes data):
    """Parses an MPA request frame: a dict, or None if bytes are missing. VerbsError (EPROTO): unacceptable."""
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
    """Answers the MPA request `data` with a reject. The socket stays the caller's."""
    cdef stream s
    memset(&s, 0, sizeof(s))
    s.calls = &plain_stream
    s.fd = sock.fileno()
    if soft_iw_reject(&s, <const char *> data, len(data), <const char *> private_data, len(private_data)) < 0:
        raise failure("soft_iw_reject", errno.errno)
