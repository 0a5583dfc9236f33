"""Makes a connection of rdma_cm by the commands of /dev/infiniband/rdma_cm, for peers that are no client and no daemon
of ours.

Linux: include/uapi/rdma/rdma_user_cm.h. The steps are in docs/rdma-protocol.md, section 9.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import Any

import polling

CREATE_ID, RESOLVE_ROUTE, CONNECT, LISTEN, ACCEPT, INIT_QP_ATTR, GET_EVENT = 0, 4, 6, 7, 8, 11, 12
BIND, RESOLVE_ADDR = 20, 21
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, CONNECT_RESPONSE = 0, 2, 4, 5  # events
RTR, RTS = 2, 3
PS_TCP, QPT_RC = 0x106, 2
UID = struct.pack("=Q", 1)
VERSION = 2  # of the protocol
HELLO = struct.Struct(">4sHHII")
WELCOME = struct.Struct(">4sHH7I")
NAMES = ("credits", "msgsize", "lanebytes", "eager", "lanes", "workers", "worker", "direct")
# struct rdma_ucm_conn_param: the queue pair's number, private data and its length, SRQ, READs answered, READs asked
# for, flow control, retries, retries without a receive, valid.
PARAM = struct.Struct("=I4x256s8B")
EVENT = struct.Struct("=8xIIi8x256s")
NO_QUEUE_PAIR = 0xFFFFF0  # a number of no queue pair: the kernel drops replies with a number in use on the same device
ANSWER = 512  # bytes of room for an event, and for the attributes of a queue pair
# The beginning of struct ib_uverbs_qp_attr: path MTU, first packet's number of each side, the peer's number, its GID.
ATTRIBUTES = struct.Struct("=12xI8xIII4x16s")


def address_of(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host)


class Manager:
    """A descriptor of rdma_cm, with an id."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.come = 0  # the id of the last event
        self.sock = os.open("/dev/infiniband/rdma_cm", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        (self.id,) = struct.unpack_from("=I", self.asked(CREATE_ID, struct.pack("=HB5x", PS_TCP, QPT_RC), UID))

    def command(self, number: int, data: bytes, room: int = 0) -> None:
        os.write(self.sock, struct.pack("=IHH", number, len(data), room) + data)

    def asked(self, number: int, data: bytes = b"", before: bytes = b"") -> bytes:
        """Sends a command whose answer goes to an address. The address stands between the two parts."""
        answer = ctypes.create_string_buffer(ANSWER)
        self.command(number, before + struct.pack("=Q", ctypes.addressof(answer)) + data, ANSWER)
        return answer.raw

    def event(self, wanted: int) -> bytes:
        """Waits for an event. Returns its private data."""
        if not polling.readable(self.sock, self.timeout):
            raise TimeoutError("rdma_cm says nothing")
        self.come, kind, status, private_data = EVENT.unpack_from(self.asked(GET_EVENT))
        if kind != wanted:
            raise ConnectionError(f"event {kind}, status {status}: {private_data.rstrip(bytes(1))!r}")
        return bytes(private_data)

    def close(self) -> None:
        os.close(self.sock)


class ListenerByHand(Manager):
    """Listens on a port, for a server that is no daemon of ours."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        super().__init__(timeout)
        self.command(BIND, struct.pack("=IHH128s", self.id, 16, 0, address_of(host, port)))
        self.command(LISTEN, struct.pack("=II", self.id, 1))

    def welcome(self, **numbers: int) -> None:
        """Accepts the next connection, with numbers in place of a daemon's. No queue pair is behind the reply."""
        self.event(CONNECT_REQUEST)
        usual = (16, 8192, 16384, 4096, 64, 1, 0, 0)
        reply = WELCOME.pack(b"RDMA", VERSION, *{**dict(zip(NAMES, usual, strict=True)), **numbers}.values())
        param = PARAM.pack(NO_QUEUE_PAIR, reply, len(reply), 0, 1, 1, 1, 6, 7, 1)
        self.command(ACCEPT, UID + param + struct.pack("=I12x", self.come))


class ByHand(Manager):
    """Resolves the way to an address. The descriptor is readable when the connection has ended: its lifeline."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        super().__init__(timeout)
        patience = int(timeout * 1000)
        target = address_of(host, port)
        self.command(RESOLVE_ADDR, struct.pack("=IIHHI128s128s", self.id, patience, 0, 16, 0, b"", target))
        self.event(ADDR_RESOLVED)
        self.command(RESOLVE_ROUTE, struct.pack("=II", self.id, patience))
        self.event(ROUTE_RESOLVED)

    def ask(self, qpn: int, credits: int, msgsize: int, lane_bytes: int) -> dict[str, str]:
        """Request and reply, which comes in the words of an exchange."""
        hello = HELLO.pack(b"rdma", VERSION, credits, msgsize, lane_bytes)
        param = PARAM.pack(qpn, hello, len(hello), 0, 16, 1, 1, 6, 7, 1)
        self.command(CONNECT, param + struct.pack("=I12x", self.id))
        word, version, *numbers = WELCOME.unpack_from(self.event(CONNECT_RESPONSE))
        assert (word, version) == (b"RDMA", VERSION)
        return dict(zip(NAMES, map(str, numbers), strict=True))

    def confirm(self, qp: Any) -> None:
        """Brings the queue pair to RTS, and tells rdma_cm."""
        mtu, psn, _, qpn, gid = ATTRIBUTES.unpack_from(self.asked(INIT_QP_ATTR, struct.pack("=II", self.id, RTR)))
        ours = ATTRIBUTES.unpack_from(self.asked(INIT_QP_ATTR, struct.pack("=II", self.id, RTS)))[2]
        qp.join({"qpn": qpn, "psn": psn, "lid": 0, "mtu": 128 << mtu, "gid": gid}, ord=1, psn=ours)
        self.command(ACCEPT, UID + bytes(PARAM.size) + struct.pack("=I12x", self.id))
