"""An end of a connection on a device of the kernel, made by librdmacm and libibverbs: the peer of soft_iw's tests.

The module uses ctypes: both ends are in the same process, and this end has no code of rmemcached. Structures are those
of <rdma/rdma_cma.h> and <infiniband/verbs.h> on 64-bit machines. The data calls go through the context's table, as in
the inline functions of the latter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import time
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Self

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
WRITE, SEND, READ, SEND_WITH_INV = 0, 2, 4, 9
SIGNALED, INLINE = 2, 8
FLUSHED = 5  # status of a work request
RC = 2
PS_TCP = 0x0106
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, REJECTED, ESTABLISHED, DISCONNECTED = 0, 2, 4, 8, 9, 10
PATIENCE = 60.0  # emulation on a busy machine is slow


class ConnParam(ctypes.Structure):
    _fields_ = (
        ("private_data", c_void_p),
        ("private_data_len", c_uint8),
        ("responder_resources", c_uint8),
        ("initiator_depth", c_uint8),
        ("flow_control", c_uint8),
        ("retry_count", c_uint8),
        ("rnr_retry_count", c_uint8),
        ("srq", c_uint8),
        ("qp_num", c_uint32),
    )


class Channel(ctypes.Structure):
    _fields_ = (("fd", c_int),)


class CmId(ctypes.Structure):
    _fields_ = (("verbs", c_void_p), ("channel", c_void_p), ("context", c_void_p), ("qp", c_void_p))


class CmEvent(ctypes.Structure):
    _fields_ = (
        ("id", POINTER(CmId)),
        ("listen_id", c_void_p),
        ("event", c_int),
        ("status", c_int),
        ("conn", ConnParam),
    )


class QpInit(ctypes.Structure):
    _fields_ = (
        ("qp_context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("max_send_wr", c_uint32),
        ("max_recv_wr", c_uint32),
        ("max_send_sge", c_uint32),
        ("max_recv_sge", c_uint32),
        ("max_inline_data", c_uint32),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    )


class Sge(ctypes.Structure):
    _fields_ = (("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32))


class SendWr(ctypes.Structure):
    _fields_ = (
        ("wr_id", c_uint64),
        ("next", c_void_p),
        ("sg_list", POINTER(Sge)),
        ("num_sge", c_int),
        ("opcode", c_int),
        ("flags", c_uint),
        ("invalidate_rkey", c_uint32),
        ("remote_addr", c_uint64),
        ("rkey", c_uint32),
        ("rest", c_uint8 * 76),
    )


class RecvWr(ctypes.Structure):
    _fields_ = (("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int))


class Wc(ctypes.Structure):
    _fields_ = (
        ("wr_id", c_uint64),
        ("status", c_int),
        ("opcode", c_int),
        ("vendor_err", c_uint32),
        ("byte_len", c_uint32),
        ("invalidated_rkey", c_uint32),
        ("qp_num", c_uint32),
        ("src_qp", c_uint32),
        ("wc_flags", c_uint),
        ("rest", c_uint32 * 2),
    )


class AsyncEvent(ctypes.Structure):
    _fields_ = (("element", c_void_p), ("event_type", c_int))


class Mr(ctypes.Structure):
    _fields_ = (
        ("context", c_void_p),
        ("pd", c_void_p),
        ("addr", c_void_p),
        ("length", c_size_t),
        ("handle", c_uint32),
        ("lkey", c_uint32),
        ("rkey", c_uint32),
    )


cm.rdma_create_event_channel.restype = POINTER(Channel)
cm.rdma_create_id.argtypes = (POINTER(Channel), POINTER(POINTER(CmId)), c_void_p, c_int)
cm.rdma_bind_addr.argtypes = (POINTER(CmId), c_char_p)
cm.rdma_listen.argtypes = (POINTER(CmId), c_int)
cm.rdma_resolve_addr.argtypes = (POINTER(CmId), c_char_p, c_char_p, c_int)
cm.rdma_resolve_route.argtypes = (POINTER(CmId), c_int)
cm.rdma_get_cm_event.argtypes = (POINTER(Channel), POINTER(POINTER(CmEvent)))
cm.rdma_ack_cm_event.argtypes = (POINTER(CmEvent),)
cm.rdma_migrate_id.argtypes = (POINTER(CmId), POINTER(Channel))
cm.rdma_create_qp.argtypes = (POINTER(CmId), c_void_p, POINTER(QpInit))
cm.rdma_destroy_qp.argtypes = (POINTER(CmId),)
cm.rdma_connect.argtypes = (POINTER(CmId), POINTER(ConnParam))
cm.rdma_accept.argtypes = (POINTER(CmId), POINTER(ConnParam))
cm.rdma_reject.argtypes = (POINTER(CmId), c_char_p, c_uint8)
cm.rdma_disconnect.argtypes = (POINTER(CmId),)
cm.rdma_destroy_id.argtypes = (POINTER(CmId),)
cm.rdma_destroy_event_channel.argtypes = (POINTER(Channel),)
verbs.ibv_alloc_pd.restype = c_void_p
verbs.ibv_alloc_pd.argtypes = verbs.ibv_dealloc_pd.argtypes = (c_void_p,)
verbs.ibv_create_cq.restype = c_void_p
verbs.ibv_create_cq.argtypes = (c_void_p, c_int, c_void_p, c_void_p, c_int)
verbs.ibv_destroy_cq.argtypes = (c_void_p,)
verbs.ibv_reg_mr.restype = POINTER(Mr)
verbs.ibv_reg_mr.argtypes = (c_void_p, c_void_p, c_size_t, c_int)
verbs.ibv_dereg_mr.argtypes = (POINTER(Mr),)
verbs.ibv_get_async_event.argtypes = (c_void_p, POINTER(AsyncEvent))
verbs.ibv_ack_async_event.argtypes = (POINTER(AsyncEvent),)

# Where libibverbs keeps a context's calls, its descriptor of asynchronous events, and a queue pair's number.
POLL_CQ, POST_SEND, POST_RECV, ASYNC_FD = 8 + 88, 8 + 200, 8 + 208, 268
QP_NUM, QP_STATE = 52, 56


def checked(result: Any) -> Any:
    if not result or result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def done(result: int) -> None:
    """Raises OSError for a result of librdmacm or libibverbs other than 0."""
    if result:
        code = ctypes.get_errno() if result == -1 else abs(result)
        raise OSError(code, os.strerror(code))


def socket_address(address: tuple[str, int]) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", address[1]) + socket.inet_aton(address[0]) + bytes(8)


class Events:
    """An event channel of rdma_cm."""

    def __init__(self) -> None:
        self.channel = checked(cm.rdma_create_event_channel())

    def get(self, timeout: float = PATIENCE) -> tuple[int, int, Any, bytes, tuple[int, int]]:
        """(event, status, id, private data, (responder_resources, initiator_depth)) of the next event."""
        if not select.select([self.channel.contents.fd], [], [], timeout)[0]:
            raise TimeoutError("no event")
        event = POINTER(CmEvent)()
        done(cm.rdma_get_cm_event(self.channel, byref(event)))
        what = event.contents
        param = what.conn
        data = ctypes.string_at(param.private_data, param.private_data_len) if param.private_data else b""
        # A new pointer: a reference to the event's field would not outlive the event.
        ident = ctypes.pointer(what.id.contents)
        taken = (what.event, what.status, ident, data, (param.responder_resources, param.initiator_depth))
        done(cm.rdma_ack_cm_event(event))
        return taken

    def expect(self, event: int) -> tuple[Any, bytes, tuple[int, int]]:
        got, status, ident, data, depths = self.get()
        assert got == event, (got, status, data)
        return ident, data, depths

    def close(self) -> None:
        cm.rdma_destroy_event_channel(self.channel)


class SiwEnd:
    """A queue pair with a registered buffer, on the device to which rdma_cm maps an address."""

    def __init__(self, events: Events, ident: Any, size: int = 1 << 16, access: int = 7) -> None:
        self.events = events
        self.id = ident
        self.context = ident.contents.verbs
        self.pd = checked(verbs.ibv_alloc_pd(self.context))
        self.cq = checked(verbs.ibv_create_cq(self.context, 4096, None, None, 0))
        init = QpInit(None, self.cq, self.cq, None, 1024, 1024, 4, 4, 64, RC, 0)
        done(cm.rdma_create_qp(ident, self.pd, byref(init)))
        self.qp = ident.contents.qp
        self.buffer = bytearray(size)
        self._octets = (c_char * size).from_buffer(self.buffer)
        self.mr = checked(verbs.ibv_reg_mr(self.pd, self._octets, size, access))
        self.addr = ctypes.addressof(self._octets)
        self.lkey, self.rkey = self.mr.contents.lkey, self.mr.contents.rkey
        self._poll = self._call(POLL_CQ, c_void_p, c_int, POINTER(Wc))
        self._post_send = self._call(POST_SEND, c_void_p, POINTER(SendWr), POINTER(POINTER(SendWr)))
        self._post_recv = self._call(POST_RECV, c_void_p, POINTER(RecvWr), POINTER(POINTER(RecvWr)))
        self._entries = (Wc * 16)()
        self.done: list[Wc] = []
        self.reply = b""
        self.depths = 0, 0
        os.set_blocking(c_int.from_address(self.context + ASYNC_FD).value, False)

    def _call(self, offset: int, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(c_int, *arguments)(c_uint64.from_address(self.context + offset).value)

    @classmethod
    def resolve(cls, address: tuple[str, int], size: int = 1 << 16, access: int = 7) -> Self:
        """An end to connect to the address."""
        events = Events()
        ident = POINTER(CmId)()
        done(cm.rdma_create_id(events.channel, byref(ident), None, PS_TCP))
        done(cm.rdma_resolve_addr(ident, None, socket_address(address), 2000))
        events.expect(ADDR_RESOLVED)
        done(cm.rdma_resolve_route(ident, 2000))
        events.expect(ROUTE_RESOLVED)
        return cls(events, ident, size, access)

    def connect(self, private_data: bytes = b"", ird: int = 16, ord: int = 16) -> None:
        """Begins to connect; established() waits for the connection."""
        param = connection_parameters(private_data, ird, ord)
        done(cm.rdma_connect(self.id, byref(param)))

    def accept(self, private_data: bytes = b"", ird: int = 16, ord: int = 16) -> None:
        param = connection_parameters(private_data, ird, ord)
        done(cm.rdma_accept(self.id, byref(param)))

    def established(self) -> None:
        _, self.reply, self.depths = self.events.expect(ESTABLISHED)

    def disconnect(self) -> None:
        done(cm.rdma_disconnect(self.id))

    def disconnected(self) -> None:
        self.events.expect(DISCONNECTED)

    def state(self) -> int:
        return c_int.from_address(self.qp + QP_STATE).value

    def async_events(self) -> list[int]:
        """The kinds of the pending events."""
        found = []
        event = AsyncEvent()
        while verbs.ibv_get_async_event(self.context, byref(event)) == 0:
            verbs.ibv_ack_async_event(byref(event))
            found.append(event.event_type)
        return found

    def sge(self, offset: int = 0, length: int = 0) -> tuple[int, int, int]:
        return self.addr + offset, length, self.lkey

    def post_recv(self, wr_id: int, sge: tuple[int, int, int] | None = None) -> None:
        """Without memory the receive is for an empty message; siw wants an element all the same."""
        element = Sge(*(sge or self.sge()))
        wr = RecvWr(wr_id, None, ctypes.pointer(element), 1)
        bad = POINTER(RecvWr)()
        done(self._post_recv(self.qp, byref(wr), byref(bad)))

    def post_send(
        self,
        opcode: int,
        sge: tuple[int, int, int] | None,
        wr_id: int = 0,
        *,
        flags: int = SIGNALED,
        remote_addr: int = 0,
        rkey: int = 0,
    ) -> None:
        element = Sge(*(sge or (0, 0, 0)))
        wr = SendWr(wr_id, None, ctypes.pointer(element), 1 if sge else 0, opcode, flags)
        wr.remote_addr, wr.rkey = remote_addr, rkey
        bad = POINTER(SendWr)()
        done(self._post_send(self.qp, byref(wr), byref(bad)))

    def poll(self) -> list[Wc]:
        count = self._poll(self.cq, len(self._entries), self._entries)
        assert count >= 0
        found = [Wc.from_buffer_copy(self._entries[i]) for i in range(count)]
        self.done += found
        return found

    def close(self) -> None:
        cm.rdma_destroy_qp(self.id)
        verbs.ibv_dereg_mr(self.mr)
        verbs.ibv_destroy_cq(self.cq)
        verbs.ibv_dealloc_pd(self.pd)
        cm.rdma_destroy_id(self.id)
        self.events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connection_parameters(private_data: bytes, ird: int, ord: int) -> ConnParam:
    param = ConnParam(None, len(private_data), ird, ord, 0, 7, 7)
    if private_data:
        param.kept = ctypes.create_string_buffer(private_data, len(private_data))
        param.private_data = ctypes.addressof(param.kept)
    return param


class SiwListener:
    """A listening port of rdma_cm."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.events = Events()
        self.id = POINTER(CmId)()
        self.address = address
        done(cm.rdma_create_id(self.events.channel, byref(self.id), None, PS_TCP))
        done(cm.rdma_bind_addr(self.id, socket_address(address)))
        done(cm.rdma_listen(self.id, 8))

    def get_request(self, size: int = 1 << 16, access: int = 7) -> tuple[SiwEnd, bytes, tuple[int, int]]:
        """An end for the next request, its private data, and its depths: (responder_resources, initiator_depth)."""
        ident, data, depths = self.events.expect(CONNECT_REQUEST)
        # The events of the new connection come over a channel of its own.
        events = Events()
        done(cm.rdma_migrate_id(ident, events.channel))
        return SiwEnd(events, ident, size, access), data, depths

    def reject(self, private_data: bytes = b"") -> None:
        """Rejects the next request."""
        ident, _, _ = self.events.expect(CONNECT_REQUEST)
        done(cm.rdma_reject(ident, private_data, len(private_data)))
        done(cm.rdma_destroy_id(ident))

    def close(self) -> None:
        cm.rdma_destroy_id(self.id)
        self.events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def wait_for(condition: Any, *ends: Any) -> None:
    """Polls ends of either kind until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for end in ends:
            end.poll()
        assert time.monotonic() < deadline, [[(wc.wr_id, wc.status) for wc in end.done] for end in ends]


def take(end: Any, count: int, *others: Any) -> list[Any]:
    """Waits for `count` completions of an end, and takes them."""
    wait_for(lambda: len(end.done) >= count, end, *others)
    taken, end.done = end.done[:count], end.done[count:]
    return taken


def port() -> int:
    """A free TCP port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])
