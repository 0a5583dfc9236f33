"""A client of the RDMA transport in plain Python and pyverbs, written from docs/rdma-protocol.md alone.

Without any code of rmemcached, it shows two things: the page is enough, and another verbs library can speak with the
daemon. It is meant to be read; it does one request at a time, on lane 0, and is not fast.

    with ReferenceClient("10.0.0.1", 11211) as client:
        client.set(b"key", b"value")
        assert client.get(b"key") == b"value"

Needs pyverbs (docs/real-devices.md explains the installation) and an InfiniBand or RoCE device. Run as a program it
checks a daemon: ``reference.py [--device NAME] HOST PORT``, or ``reference.py --rdma-cm CM_PORT HOST PORT`` to connect
through librdmacm, which iWARP devices need.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path
from types import TracebackType

if importlib.util.find_spec("pyverbs") is None:
    MISSING = "reference.py: pyverbs is missing: apt-get install python3-pyverbs, or pip install pyverbs"
    raise SystemExit(MISSING) if __name__ == "__main__" else ImportError(MISSING)

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

try:
    from pyverbs import libibverbs_enums as e  # since rdma-core 50
    from pyverbs import librdmacm_enums as ce
except ImportError:
    from pyverbs import cm_enums as ce
    from pyverbs import enums as e

CREDITS = 16
MESSAGE_SIZE = 8192
LANE_BYTES = 65536
USED_MAX = 65535
HEADER = struct.Struct(">BBHHH")  # type, reserved, credits, used, lane
REQUEST = struct.Struct(">4sHHII")  # rdma, version, credits, msgsize, lanebytes
REPLY = struct.Struct(">4sHHII")  # the first fields: RDMA, version, credits, msgsize, lanebytes
VERSION = 2
DATA, CREDIT, READY, OPEN, CLOSE = range(5)
TIMEOUT = 30.0
ROCE_V2 = "RoCE v2"


class ProtocolError(Exception):
    """The server broke the protocol, or reported an error."""


def best_gid(device: str, port: int, count: int) -> int:
    """Index of the GID to use: RoCE v2 with an IPv4 address, else any RoCE v2, else the first."""
    types = Path(f"/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types")
    gids = Path(f"/sys/class/infiniband/{device}/ports/{port}/gids")
    best, best_rank = 0, -1
    for index in range(count):
        try:
            kind = (types / str(index)).read_text().strip()
            gid = (gids / str(index)).read_text().strip()
        except OSError:
            continue
        rank = (kind == ROCE_V2) * 2 + gid.startswith("0000:0000:0000:0000:0000:ffff")
        if rank > best_rank:
            best, best_rank = index, rank
    return best


class ReferenceClient:
    """A connection: a lifeline, a queue pair. Raises OSError, ProtocolError, or pyverbs' errors."""

    def __init__(self, host: str, port: int, device: str | None = None, cm_port: int | None = None) -> None:
        self.lifeline: socket.socket | None = None
        if cm_port is None:
            self.lifeline = socket.create_connection((host, port), TIMEOUT)
            self.context = Context(name=device or get_device_list()[0].name.decode())
            self.port = 1
            attributes = self.context.query_port(self.port)
            self.gid_index = best_gid(self.context.name, self.port, attributes.gid_tbl_len)
        else:
            self.resolve(host, cm_port)
        self.domain = PD(self.context)
        self.cq = CQ(self.context, 2 * CREDITS)
        capacity = QPCap(max_send_wr=CREDITS, max_recv_wr=CREDITS, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity))
        remote = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
        if cm_port is None:
            initial = QPAttr(port_num=self.port)
            initial.qp_access_flags = remote
            self.qp.to_init(initial)
        else:
            initial, mask = self.cmid.init_qp_attr(e.IBV_QPS_INIT)
            initial.qp_access_flags = remote
            self.qp.modify(initial, mask)
        # This memory is for the receives, and behind them for a message to send.
        self.messages = MR(self.domain, (CREDITS + 1) * MESSAGE_SIZE, e.IBV_ACCESS_LOCAL_WRITE)
        for index in range(CREDITS):
            self.receive(index)
        self.owed = 0
        self.input = b""
        self.sending = False
        self.used = 0
        if cm_port is None:
            self.exchange(attributes)
        else:
            self.cm_exchange()
        self.send(READY)
        while self.take() != READY:
            pass
        self.send(OPEN)

    # --- section 2: the exchange ---

    def exchange(self, attributes: object) -> None:
        psn = int.from_bytes(os.urandom(3), "big")
        gid = self.context.query_gid(self.port, self.gid_index).gid.replace(":", "")
        mtu = 128 << attributes.active_mtu  # type: ignore[attr-defined]
        line = (
            f"rdma version={VERSION} transport=verbs qpn={self.qp.qp_num} psn={psn} gid={gid} "
            f"lid={attributes.lid} mtu={mtu} credits={CREDITS} msgsize={MESSAGE_SIZE} "  # type: ignore[attr-defined]
            f"ird=16 ord=1 lanebytes={LANE_BYTES}\r\n"
        )
        assert self.lifeline is not None
        self.lifeline.sendall(line.encode())
        answer = self.lifeline.makefile("rb").readline().decode().split()
        if answer[0] != "RDMA":
            raise ProtocolError(" ".join(answer))
        offer = dict(token.split("=", 1) for token in answer[1:])
        self.credits = int(offer["credits"])
        self.lane_room = int(offer["lanebytes"])
        self.room = min(int(offer["msgsize"]), MESSAGE_SIZE) - HEADER.size
        peer = bytes.fromhex(offer["gid"])
        route = GlobalRoute(
            dgid=GID(":".join(peer[i : i + 2].hex() for i in range(0, 16, 2))), sgid_index=self.gid_index
        )
        route.hop_limit = 64
        address = AHAttr(port_num=self.port, is_global=1, gr=route, dlid=int(offer["lid"]))
        ready = QPAttr(port_num=self.port)
        ready.ah_attr = address
        ready.dest_qp_num = int(offer["qpn"])
        ready.path_mtu = min(attributes.active_mtu, int(offer["mtu"]).bit_length() - 8)  # type: ignore[attr-defined]
        ready.rq_psn = int(offer["psn"])
        ready.max_dest_rd_atomic = min(16, int(offer["ord"]))
        ready.min_rnr_timer = 12
        ready.sq_psn = psn
        ready.timeout = 14
        ready.retry_cnt = 6  # 7 has no end on Soft-RoCE
        ready.rnr_retry = 7
        ready.max_rd_atomic = 1
        self.qp.to_rts(ready)

    # --- section 9: through rdma_cm ---

    def cm_event(self, *wanted: int) -> CMEvent:
        event = CMEvent(self.channel)
        if event.event_type not in wanted:
            # InfiniBand and RoCE fill private data up with zeros.
            reason = bytes(event.private_data or b"").rstrip(b"\0").decode()
            raise ProtocolError(f"{event.event_str()} {reason}".rstrip())
        return event

    def resolve(self, host: str, cm_port: int) -> None:
        self.channel = CMEventChannel()
        self.cmid = CMID(creator=self.channel)
        target = AddrInfo(dst=host, dst_service=str(cm_port), port_space=ce.RDMA_PS_TCP)
        self.cmid.resolve_addr(target, int(TIMEOUT * 1000))
        self.cm_event(ce.RDMA_CM_EVENT_ADDR_RESOLVED).ack_cm_event()
        self.cmid.resolve_route(int(TIMEOUT * 1000))
        self.cm_event(ce.RDMA_CM_EVENT_ROUTE_RESOLVED).ack_cm_event()
        self.context = self.cmid.context

    def cm_exchange(self) -> None:
        asked = REQUEST.pack(b"rdma", VERSION, CREDITS, MESSAGE_SIZE, LANE_BYTES)
        param = ConnParam(
            resources=16, depth=1, flow_control=1, retry=6, rnr_retry=7, qp_num=self.qp.qp_num, data_len=len(asked)
        )
        param.set_private_data(asked)
        self.cmid.connect(param)
        event = self.cm_event(ce.RDMA_CM_EVENT_CONNECT_RESPONSE, ce.RDMA_CM_EVENT_ESTABLISHED)
        word, version, self.credits, size, self.lane_room = REPLY.unpack_from(bytes(event.private_data))
        established = event.event_type == ce.RDMA_CM_EVENT_ESTABLISHED
        event.ack_cm_event()
        if (word, version) != (b"RDMA", VERSION):
            raise ProtocolError(f"{word!r} {version}")
        self.room = min(size, MESSAGE_SIZE) - HEADER.size
        if not established:
            # librdmacm did not make the queue pair, so this client brings it up, and confirms the connection. iWARP
            # brings the queue pair up itself, and the event is ESTABLISHED.
            for state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS):
                self.qp.modify(*self.cmid.init_qp_attr(state))
            self.cmid.establish()

    # --- section 5: messages ---

    def receive(self, index: int) -> None:
        buffer = SGE(self.messages.buf + index * MESSAGE_SIZE, MESSAGE_SIZE, self.messages.lkey)
        self.qp.post_recv(RecvWR(wr_id=index, num_sge=1, sg=[buffer]))

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Sends a message. The last credit is for CREDIT."""
        while self.sending or self.credits < (1 if kind == CREDIT else 2):
            self.take()
        used = min(self.used, USED_MAX) if kind == DATA else 0
        message = HEADER.pack(kind, 0, self.owed, used, 0) + payload
        self.used -= used
        self.messages.write(message, len(message), CREDITS * MESSAGE_SIZE)
        buffer = SGE(self.messages.buf + CREDITS * MESSAGE_SIZE, len(message), self.messages.lkey)
        request = SendWR(wr_id=CREDITS, num_sge=1, sg=[buffer], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        self.qp.post_send(request)
        self.sending = True
        self.credits -= 1
        self.owed = 0

    def take(self) -> int | None:
        """Waits for a completion. Returns the type of the message received, or None."""
        deadline = time.monotonic() + TIMEOUT
        count, found = self.cq.poll(1)
        while not count:
            # From the exchange on, any line on the lifeline, and its end, mean the end of the connection.
            if self.lifeline and select.select([self.lifeline], [], [], 0)[0]:
                raise ProtocolError(self.lifeline.recv(1024).decode() or "the server closed the lifeline")
            if time.monotonic() > deadline:
                raise ProtocolError("timed out")
            count, found = self.cq.poll(1)
        done = found[0]
        if done.status != e.IBV_WC_SUCCESS:
            raise ProtocolError(f"work completion with status {done.status}")
        if done.wr_id == CREDITS:
            self.sending = False
            self.say_used()
            return None
        message = self.messages.read(done.byte_len, done.wr_id * MESSAGE_SIZE)
        kind, _, credits, used, _ = HEADER.unpack_from(message)
        self.credits += credits
        if kind == CLOSE:
            raise ProtocolError(message[HEADER.size :].decode() or "the server closed the lane")
        # All bytes count as used at once, because `input` takes them.
        self.lane_room += used
        self.used += len(message) - HEADER.size
        self.input += message[HEADER.size :]
        self.receive(done.wr_id)
        self.owed += 1
        if self.owed * 2 >= CREDITS and self.credits and not self.sending:
            self.send(CREDIT)
        self.say_used()
        return int(kind)

    def say_used(self) -> None:
        """Reports the used bytes, once they are half of the lane's buffer, by a DATA message without a payload."""
        if self.used * 2 >= LANE_BYTES and self.credits >= 2 and not self.sending:
            self.send(DATA)

    # --- memcached's bytes ---

    def request(self, data: bytes) -> None:
        while data:
            while self.lane_room == 0:
                self.take()
            room = min(self.room, self.lane_room)
            self.lane_room -= min(room, len(data))
            self.send(DATA, data[:room])
            data = data[room:]

    def line(self) -> bytes:
        while b"\r\n" not in self.input:
            self.take()
        line, _, self.input = self.input.partition(b"\r\n")
        return line

    def block(self, length: int) -> bytes:
        while len(self.input) < length + 2:
            self.take()
        value, self.input = self.input[:length], self.input[length + 2 :]
        return value

    def set(self, key: bytes, value: bytes) -> None:
        """Sends ms with the value in the message."""
        self.request(b"ms %s %d\r\n%s\r\n" % (key, len(value), value))
        self.expect(b"HD")

    def set_from_memory(self, key: bytes, value: bytes) -> None:
        """Section 6: the server fetches the value by RDMA READ."""
        with MR(self.domain, max(len(value), 1), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ) as memory:
            memory.write(value, len(value))
            self.request(b"ms %s %d @%x:%x\r\n" % (key, len(value), memory.buf, memory.rkey))
            self.expect(b"HD")

    def get(self, key: bytes, length: int = 1 << 20) -> bytes | None:
        """Section 7: a large value of up to `length` bytes comes by RDMA WRITE, if the server prefers this."""
        with MR(self.domain, length, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE) as memory:
            self.request(b"mg %s v @%x:%x:%x\r\n" % (key, memory.buf, memory.rkey, length))
            words = self.line().split()
            if words[0] == b"EN":
                return None
            if words[0] != b"VA":
                raise ProtocolError(words)
            size = int(words[1])
            return memory.read(size, 0) if words[-1] == b"@" else self.block(size)

    def expect(self, wanted: bytes) -> None:
        line = self.line()
        if line != wanted:
            raise ProtocolError(line.decode())

    # --- the end ---

    def close(self) -> None:
        for owned in (self.qp, self.cq, self.messages, self.domain):
            owned.close()
        if self.lifeline is None:
            # The context is librdmacm's, so the client does not close the context.
            self.cmid.close()
            self.channel.close()
        else:
            self.context.close()
            self.lifeline.close()

    def __enter__(self) -> ReferenceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> int:
    """Sets and gets values of many sizes, and reads each back over plain TCP."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--rdma-cm", type=int, metavar="CM_PORT", help="connect through librdmacm to this port")
    arguments.add_argument("--device", help="the RDMA device; the first, if absent")
    arguments.add_argument("host")
    arguments.add_argument("port", type=int)
    given = arguments.parse_args()
    host, port = given.host, given.port
    with (
        ReferenceClient(host, port, given.device, cm_port=given.rdma_cm) as client,
        socket.create_connection((host, port), TIMEOUT) as plain,
    ):
        file = plain.makefile("rb")
        for size in (0, 1, 100, 4000, 4096, 4097, 10000, 65536, 1000000):
            for store in (client.set, client.set_from_memory):
                value = os.urandom(size)
                store(b"reference", value)
                assert client.get(b"reference") == value, size
                plain.sendall(b"get reference\r\n")
                assert file.readline() == b"VALUE reference 0 %d\r\n" % size
                assert file.read(size + 7) == value + b"\r\nEND\r\n", size
        assert client.get(b"missing") is None
    print("the daemon speaks as the protocol says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
