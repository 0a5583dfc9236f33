"""A server made by hand of verbs, for one queue pair of one client. The test chooses its answers."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Self

import polling
from transport import PACE

from rmemcached import verbs
from rmemcached.verbs import Access, Opcode, SendWR, Status, WCOpcode, parse_request

TIMEOUT = 20.0 * PACE
HEADER = 8
DATA, CREDIT, READY, OPEN, CLOSE = range(5)
CREDITS, MESSAGE_SIZE = 16, 8192
TOKEN = bytes(range(16))
READ_ID = 1 << 20


class ServerByHand:
    """Listens on a port of its own. `accept` takes the client's connections up to READY.

    tokens: keys of the server's line of the exchange, in addition to the usual keys or in place of their values.
    """

    def __init__(self, transport: str, **tokens: object) -> None:
        self.transport = transport
        self.tokens = tokens
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(TIMEOUT)
        self.shm = socket.socket(socket.AF_UNIX)
        self.shm.settimeout(TIMEOUT)
        self.shm.bind("")  # the kernel chooses an abstract name
        self.shm.listen()
        self.context = verbs.Context(verbs.devices("system")[0] if transport == "verbs" else f"{transport}0")
        self.channel = verbs.CompChannel(self.context)
        os.set_blocking(self.channel.fileno(), False)
        self.pd = verbs.PD(self.context)
        self.cq = verbs.CQ(self.context, 256, self.channel)
        self.qp = verbs.QP(self.pd, self.cq)
        if transport == "verbs":
            self.qp.open(0)
        else:
            self.qp.ready()
        self.memory = bytearray(1 << 18)
        self.region = verbs.MR(self.pd, self.memory, Access.LOCAL_WRITE)
        self.messages = bytearray(MESSAGE_SIZE * (CREDITS + 1))
        self.message_region = verbs.MR(self.pd, self.messages, Access.LOCAL_WRITE)
        for index in range(CREDITS):
            self.qp.post_recv((index, [self.message_region.sge(index * MESSAGE_SIZE, MESSAGE_SIZE)]))
        self.asked: dict[str, str] = {}
        self.inbox = b""
        self.taken: list[tuple[int, int]] = []  # type and lane of each received message
        self.ready = False
        self.frame = b""  # the client's request for its iWARP stream
        self.read_status: Status | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    def accept(self) -> None:
        self.answer_exchange()
        self.take_stream()
        self.wait(lambda: self.ready)
        self.send(READY)

    def answer_exchange(self) -> None:
        """Accepts the lifeline, and answers the client's line of the exchange."""
        self.lifeline, _ = self.listener.accept()
        line = self.lifeline.makefile("rb").readline().decode()
        self.asked = dict(token.split("=") for token in line.split()[1:])
        address: dict[str, Any] = {"psn": 0, "lid": 0, "mtu": 4096, "gid": bytes(16)}
        if self.transport == "verbs":
            address = self.qp.address
        tokens: dict[str, object] = {
            "version": 2,
            "transport": self.transport,
            "qpn": self.qp.qp_num,
            **{name: address[name] for name in ("psn", "lid", "mtu")},
            "gid": address["gid"].hex(),
            "credits": CREDITS,
            "msgsize": MESSAGE_SIZE,
            **{"ird": 16, "ord": 16, "crc": 0, "eager": 4096, "token": TOKEN.hex()},
            **{"workers": 1, "worker": 0, "lanes": 64, "lanebytes": 16384},
        }
        if self.transport == "soft_shm":
            tokens["path"] = f"@{self.shm.getsockname()[1:].decode()}"
        tokens |= self.tokens
        if self.transport == "verbs":
            numbers = {name: int(self.asked[name]) for name in ("qpn", "psn", "lid", "mtu")}
            self.qp.join({**numbers, "gid": bytes.fromhex(self.asked["gid"])})
        words = " ".join(f"{name}={value}" for name, value in tokens.items())
        self.lifeline.sendall(f"RDMA {words}\r\n".encode())

    def take_stream(self) -> None:
        """Gives the queue pair its stream: the client's second connection for soft_iw and soft_shm, none for verbs."""
        if self.transport == "soft_iw":
            stream, _ = self.listener.accept()
            stream.settimeout(TIMEOUT)
            frame = b""
            while parse_request(frame) is None:
                frame += stream.recv(4096)
            self.frame = frame
            stream.setblocking(False)
            self.qp.accept(stream, frame)
        elif self.transport == "soft_shm":
            stream, _ = self.shm.accept()
            assert stream.recv(36, socket.MSG_WAITALL).startswith(b"SHM ID Req Frame")
            stream.sendall(b"SHM ID Rep Frame")
            stream.setblocking(False)
            self.qp.attach(stream)

    def wait(self, until: Callable[[], Any]) -> None:
        """Takes completions until `until()` is true."""
        deadline = time.monotonic() + TIMEOUT
        armed = False
        while not until():
            taken = self.cq.poll(16)
            for wc in taken:
                if wc.wr_id == READ_ID:
                    self.read_status = wc.status
                elif wc.status == Status.SUCCESS and wc.opcode == WCOpcode.RECV:
                    self.take(wc.wr_id, wc.byte_len)
            if not taken and armed:
                left = deadline - time.monotonic()
                assert polling.readable(self.channel, max(left, 0)), "nothing came"
                while self.channel.get_event() is not None:
                    pass
            if not taken:
                self.cq.arm()
            armed = not taken and not armed

    def take(self, index: int, length: int) -> None:
        """Notes READY, type and lane of a received message, and appends its payload to `inbox`."""
        message = bytes(self.messages[index * MESSAGE_SIZE : index * MESSAGE_SIZE + length])
        self.ready = self.ready or message[0] == READY
        self.taken.append((message[0], int.from_bytes(message[6:8], "big")))
        self.inbox += message[HEADER:]

    def send(self, kind: int, payload: bytes = b"", credits: int = 0, used: int = 0, lane: int = 0) -> None:
        message = struct.pack("!BxHHH", kind, credits, used, lane) + payload
        start = CREDITS * MESSAGE_SIZE
        self.messages[start : start + len(message)] = message
        self.qp.post_send(SendWR(Opcode.SEND, [self.message_region.sge(start, len(message))]))

    def read(self, length: int, address: int, rkey: int) -> Status:
        """READs memory of the client into `memory`. Returns the status of the completion."""
        self.read_status = None
        self.qp.post_send(
            SendWR(Opcode.RDMA_READ, [self.region.sge(0, length)], wr_id=READ_ID, remote_addr=address, rkey=rkey)
        )
        self.wait(lambda: self.read_status is not None)
        assert self.read_status is not None
        return self.read_status

    def close(self) -> None:
        self.listener.close()
        self.shm.close()
        self.lifeline.close()
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
