"""Common parts of the tests of the verbs layer: endpoints on any fabric, connections, and a hand-made iWARP peer."""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import polling
from transport import PACE, RDMA

from rmemcached.verbs import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    WC,
    Access,
    CompChannel,
    Context,
    SendWR,
    Status,
    devices,
    parse_request,
)

REMOTE = Access.REMOTE_WRITE | Access.REMOTE_READ
ALL = Access.LOCAL_WRITE | REMOTE
# The folders of this module and its imports, for another process.
PATHS = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parent.parent / "shared")]
PATIENCE = 20.0 if PACE == 1 else 60.0
FABRICS = ("verbs",) if RDMA == "verbs" else ("soft_iw", "soft_iw shifted", "soft_shm shifted", "soft_shm shared")
FABRIC = FABRICS[0]  # set by the fixture `fabric`
# Addresses of shifted regions begin here. No pointer has such a value, so an access to it ends the process.
SHIFTED = 0xABCD << 48
# Attributes for the steps of a software device's queue pair, without a peer.
INIT = {"pkey_index": 0, "port_num": 1, "qp_access_flags": 0}
RTR = {"ah_attr": True, "path_mtu": 5, "dest_qp_num": 7, "rq_psn": 0, "max_dest_rd_atomic": 4, "min_rnr_timer": 12}
RTS = {"timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "sq_psn": 0, "max_rd_atomic": 4}


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a loopback TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


def read_request(sock: socket.socket) -> bytes:
    """Reads one MPA request frame and no octet behind the frame."""
    data = b""
    while parse_request(data) is None:
        wanted = 20 - len(data) if len(data) < 20 else 20 + int.from_bytes(data[18:20], "big") - len(data)
        more = sock.recv(wanted)
        assert more, "closed within the MPA request"
        data += more
    return data


def device() -> str:
    """The device of the fabric: "verbs" is libibverbs' first."""
    return devices("system")[0] if FABRIC == "verbs" else FABRIC.split()[0] + "0"


class Memory:
    """The memory of a region, allocated by the provider, with a bytearray's ways: slices are copies."""

    def __init__(self, mr: MR) -> None:
        self.octets = (ctypes.c_char * mr.length).from_address(mr.addr)

    def __len__(self) -> int:
        return len(self.octets)

    def __bytes__(self) -> bytes:
        return bytes(self.octets)

    def __getitem__(self, at: Any) -> Any:
        return self.octets[at] if isinstance(at, slice) else self.octets[at][0]

    def __setitem__(self, at: Any, value: bytes) -> None:
        self.octets[at] = bytes(value)

    def __contains__(self, octets: bytes) -> bool:
        return octets in bytes(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (bytes, bytearray, Memory)) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


def streams() -> bool:
    """Whether there is a stream whose end the peer sees, and which moves only when an end is polled.

    Devices of libibverbs work by themselves, and RC has no word for the end of a queue pair.
    """
    return FABRIC != "verbs"


def faults(status: Status) -> set[Status]:
    """The possible statuses of a request in error: `status`, or Soft-RoCE's for most faults of one's own memory."""
    return {status} if streams() else {status, Status.LOC_QP_OP_ERR}


def ready(qp: QP, access: int = ALL, *, ird: int = 16, ord: int = 16) -> None:
    """Takes a queue pair as far as possible alone: to RTS before a stream, to INIT before a peer."""
    if FABRIC == "verbs":
        qp.open(access)
    else:
        qp.ready(access=access, ird=ird, ord=ord)


class End:
    """A context with a PD, a channel, a CQ, a ready queue pair and a registered buffer."""

    def __init__(self, size: int = 1 << 16, access: int = ALL, channel: bool = True, **qp: Any) -> None:
        self.limits = {"ird": qp.pop("ird", 16), "ord": qp.pop("ord", 16)}
        qp_access = qp.pop("qp_access", ALL)
        cqe = qp.pop("cqe", 512)
        self.context = Context(device())
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context) if channel else None
        self.cq = CQ(self.context, cqe, self.channel)
        self.qp = QP(self.pd, self.cq, **qp)
        ready(self.qp, qp_access, **self.limits)
        self.buffer: Any
        if "shared" in FABRIC:
            self.mr = MR.alloc(self.pd, size, access)
            self.buffer = Memory(self.mr)
        else:
            self.buffer = bytearray(size)
            self.mr = MR(self.pd, self.buffer, access, iova=SHIFTED if "shifted" in FABRIC else None)
        self.done: list[WC] = []
        self.peers: list[Any] = []  # made by hand; closed with the end

    def poll(self) -> list[WC]:
        found = self.cq.poll()
        self.done += found
        return found

    def close(self) -> None:
        for peer in list(self.peers):
            peer.close()
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def bind(
    end: End, mw: MW, mr: MR | None, at: int, length: int, access: int = REMOTE, *, key: int = 0, qp: QP | None = None
) -> WC:
    """Binds a window to [at, at + length) of a region, and waits. key: type 2, under this key; else type 1."""
    part = mr, at + (mr.addr if mr is not None else 0), length, access
    if key:
        (qp or end.qp).post_send(SendWR.bind_mw(mw=mw, rkey=key, bind=part, wr_id=55))
    else:
        (qp or end.qp).bind_mw(mw, part, wr_id=55)
    (wc,) = completions(end, 1)
    assert wc.wr_id == 55
    return wc


def bound(end: End, kind: int, access: int = REMOTE, *, qp: QP | None = None) -> tuple[MW, MR]:
    """A window bound to [100, 200) of a new region of 300 octets, which gives peers no right itself."""
    mr = MR(end.pd, bytearray(300), Access.LOCAL_WRITE | Access.MW_BIND)
    mw = MW(end.pd, kind)
    assert bind(end, mw, mr, 100, 100, access, key=mw.rkey if kind == 2 else 0, qp=qp).status == Status.SUCCESS
    return mw, mr


def until(condition: Callable[[], object], *ends: End) -> None:
    """Polls the ends until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for end in ends:
            end.poll()
        assert time.monotonic() < deadline, [(end.qp.state, end.done) for end in ends]


def completions(end: End, count: int, *others: End) -> list[WC]:
    """Waits for `count` completions of an end, and takes them."""
    until(lambda: len(end.done) >= count, end, *others)
    taken, end.done = end.done[:count], end.done[count:]
    return taken


def statuses(found: list[WC]) -> list[Status]:
    return [wc.status for wc in found]


def connect(
    a: End, b: End, *, crc: bool = False, responder_crc: bool = False, ird: int = 16, ord: int = 16, mss: int = 0
) -> None:
    """Connects two ends; a is the initiator of a stream. mss: a forced TCP segment size, for small FPDUs."""
    if FABRIC == "verbs":
        for end, peer in ((a, b), (b, a)):
            answered, asked = min(ird, end.limits["ird"]), min(ord, end.limits["ord"])
            end.qp.join(peer.qp.address, ird=answered, ord=min(asked, ird, peer.limits["ird"]))
        return
    ours, theirs = tcp_pair_mss(mss) if mss else stream_pair()
    give(a.qp, ours, initiator=True, crc=crc, ird=ird, ord=ord)
    give(b.qp, theirs, initiator=False, crc=responder_crc, ird=ird, ord=ord)


def connect_pair(a: QP, b: QP) -> None:
    """Connects two ready queue pairs, as connect does."""
    if FABRIC == "verbs":
        a.join(b.address)
        b.join(a.address)
        return
    ours, theirs = stream_pair()
    give(a, ours, initiator=True)
    give(b, theirs, initiator=False)


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets of the fabric's kind."""
    return tcp_pair() if FABRIC.startswith("soft_iw") else socket.socketpair()


def give(qp: QP, sock: socket.socket, *, initiator: bool, crc: bool = False, ird: int = 16, ord: int = 16) -> None:
    """Makes the socket the queue pair's stream. Call it for the initiator first.

    "verbs": waits for the peer, which must be another process, and exchanges addresses over the socket.
    """
    if FABRIC == "verbs":
        line = json.dumps({**qp.address, "gid": qp.address["gid"].hex()}) + "\n"
        with sock, sock.makefile("rw") as file:
            file.write(line)
            file.flush()
            peer = json.loads(file.readline())
        qp.join({**peer, "gid": bytes.fromhex(peer["gid"])}, ird=ird, ord=ord)
    elif sock.family == socket.AF_UNIX:
        qp.attach(sock, ird=ird, ord=ord)
    elif initiator:
        qp.connect(sock, crc=crc, ird=ird, ord=ord)
    else:
        qp.accept(sock, read_request(sock), crc=crc, ird=ird, ord=ord)


def tcp_pair_mss(mss: int) -> tuple[socket.socket, socket.socket]:
    """tcp_pair with a forced TCP segment size."""
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


class Pair(NamedTuple):
    """Two connected ends, closed together."""

    a: End
    b: End

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.b.close()
        self.a.close()


def connected(size: int = 1 << 16, *, crc: bool = False, mss: int = 0, **options: Any) -> Pair:
    """Two new ends, connected; crc and mss as in connect."""
    pair = Pair(End(size, **options), End(size, **options))
    connect(*pair, crc=crc, mss=mss)
    return pair


# ---- the hand-made peer ----------------------------------------------------------------------------------------------

CRC_TABLE = []
for _octet in range(256):
    for _ in range(8):
        _octet = _octet >> 1 ^ (0x82F63B78 if _octet & 1 else 0)
    CRC_TABLE.append(_octet)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for octet in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ octet) & 255]
    return crc ^ 0xFFFFFFFF


def fpdu(ulpdu: bytes, crc: bool = True) -> bytes:
    """An FPDU with this ULPDU. crc: with the right CRC, else 0."""
    framed = struct.pack(">H", len(ulpdu)) + ulpdu
    framed += bytes(-len(framed) % 4)
    return framed + struct.pack("<I", crc32c(framed) if crc else 0)


def untagged(
    opcode: int, payload: bytes = b"", *, qn: int = 0, msn: int = 1, mo: int = 0, last: bool = True, invalidate: int = 0
) -> bytes:
    """The ULPDU of an untagged DDP segment. qn: the number of the queue."""
    control = 0x41 if last else 0x01
    return struct.pack(">BBIIII", control, 0x40 | opcode, invalidate, qn, msn, mo) + payload


def tagged(opcode: int, stag: int, to: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    return struct.pack(">BBIQ", 0xC1 if last else 0x81, 0x40 | opcode, stag, to) + payload


def send(payload: bytes, msn: int = 1, **options: Any) -> bytes:
    """The ULPDU of a SEND."""
    return untagged(3, payload, msn=msn, **options)


def write(stag: int, to: int, payload: bytes, **options: Any) -> bytes:
    return tagged(0, stag, to, payload, **options)


def read_request_segment(
    sink: tuple[int, int], length: int, source: tuple[int, int], msn: int = 1, **options: Any
) -> bytes:
    """The ULPDU of a READ request. sink, source: (key, address)."""
    payload = struct.pack(">IQIIQ", *sink, length, *source)
    return untagged(1, payload, qn=1, msn=msn, **options)


def mpa_frame(
    key: bytes, flags: int = 0x40, revision: int = 1, words: tuple[int, int] | None = None, private: bytes = b""
) -> bytes:
    """A start-up frame of MPA. words: the depths of revision 2, (IRD, ORD) with their flags."""
    body = (struct.pack(">HH", *words) if words else b"") + private
    return key + struct.pack(">BBH", flags, revision, len(body)) + body


REQUEST = b"MPA ID Req Frame"
REPLY = b"MPA ID Rep Frame"


class Peer:
    """The peer of a queue pair's stream, speaking bytes."""

    def __init__(self, sock: socket.socket, end: End, crc: bool = True) -> None:
        self.sock = sock
        self.end = end
        self.crc = crc
        end.peers.append(self)
        self.sock.settimeout(0)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *ulpdus: bytes) -> None:
        self.raw(b"".join(fpdu(ulpdu, self.crc) for ulpdu in ulpdus))

    def raw(self, data: bytes) -> None:
        while data:
            self.end.poll()
            with contextlib.suppress(BlockingIOError):
                data = data[self.sock.send(data) :]

    def recv(self, count: int) -> bytes:
        """Exactly so many octets, or fewer at the end of the stream."""
        data = b""
        deadline = time.monotonic() + PATIENCE
        while len(data) < count:
            self.end.poll()
            try:
                more = self.sock.recv(count - len(data))
            except BlockingIOError:
                assert time.monotonic() < deadline, f"{count - len(data)} octets did not come"
                continue
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return data

    def recv_fpdu(self) -> bytes:
        """The next whole FPDU, b'' at the end of the stream."""
        head = self.recv(2)
        if not head:
            return b""
        length = int.from_bytes(head, "big")
        rest = self.recv(length + -(2 + length) % 4 + 4)
        frame = head + rest
        assert frame[2 + length : -4] == bytes(-(2 + length) % 4)
        if self.crc:
            assert struct.unpack("<I", frame[-4:])[0] == crc32c(frame[:-4])
        return frame

    def recv_terminate(self) -> tuple[int, int, int]:
        """(layer, type, code) of a Terminate, then the end of the stream."""
        frame = self.recv_fpdu()
        assert frame[2:4] == b"\x41\x47", frame.hex()
        assert self.recv(1) == b""
        return frame[20] >> 4, frame[20] & 15, frame[21]

    def silent(self) -> bool:
        """Whether no octet has come after three polls of the end."""
        for _ in range(3):
            self.end.poll()
        return not polling.readable(self.sock, 0)

    def close(self) -> None:
        self.sock.close()


def raw_responder(
    end: End, *, crc: bool = True, ird: int = 16, ord: int = 16, reply: bytes | None = None
) -> tuple[Peer, bytes]:
    """The end connects; a hand-made peer answers. Gives the peer and the received request."""
    ours, theirs = tcp_pair()
    end.qp.connect(ours, crc=crc, ird=ird, ord=ord)
    request = read_request(theirs)
    peer = Peer(theirs, end, crc)
    if reply is None:
        reply = mpa_frame(REPLY, 0x10 | (0x40 if crc else 0), 2, (16, 16))
    peer.raw(reply)
    return peer, request


def raw_initiator(
    end: End,
    *,
    crc: bool = True,
    request: bytes | None = None,
    ird: int = 16,
    ord: int = 16,
    private_data: bytes = b"",
    want_crc: bool = False,
) -> tuple[Peer, bytes]:
    """A hand-made peer connects; the end answers. Gives the peer and the received reply."""
    ours, theirs = tcp_pair()
    if request is None:
        request = mpa_frame(REQUEST, 0x10 | (0x40 if crc else 0), 2, (16, 16))
    ours.sendall(request)
    end.qp.accept(theirs, read_request(theirs), crc=want_crc, ird=ird, ord=ord, private_data=private_data)
    peer = Peer(ours, end, crc)
    head = peer.recv(20)
    return peer, head + peer.recv(int.from_bytes(head[18:20], "big"))
