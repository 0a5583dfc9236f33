"""Tools for tests of the whole daemon: its statistics, plain conversations, clients, a peer made of raw verbs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polling
from cm_by_hand import ByHand
from polling import TIMEOUT, eventually
from pymemcache.client.base import Client as PymemcacheClient
from servers import Server
from transport import rdma, within

from rmemcached import verbs
from rmemcached.client import Client
from rmemcached.host import host_identity

HERE = Path(__file__).resolve().parent
# Seconds until the daemon has freed everything of a dead client: less than any time-out of the daemon's, since a
# time-out would free everything as well.
GONE_WITHIN = within(20.0)
HEADER = 8  # bytes of a message's header
DATA, CREDIT, READY, OPEN, CLOSE = range(5)
VERSION = 2  # of the protocol
BROKEN_STREAM = b"SERVER_ERROR rdma: a frame came that no correct peer sends\r\n"
SHM_REQUEST, SHM_REPLY = b"SHM ID Req Frame", b"SHM ID Rep Frame"


class Conversation:
    """A plain connection to a daemon: lines out, lines in."""

    def __init__(self, server: Server, timeout: float = TIMEOUT) -> None:
        self.sock = server.connect(timeout)
        self.file = self.sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def line(self) -> bytes:
        """The next line, with its end; empty when the daemon has closed the connection."""
        return self.file.readline()

    def read(self, length: int) -> bytes:
        return self.file.read(length)

    def ask(self, request: bytes) -> bytes:
        """Sends a command. Returns one line of reply."""
        self.send(request)
        return self.line()

    def ended(self) -> bool:
        """Waits for the daemon to close the connection. False: the daemon sent something instead."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True

    def stats(self, *words: str) -> dict[str, str]:
        self.send(" ".join(("stats", *words)).encode() + b"\r\n")
        found = {}
        while (line := self.line()) not in (b"END\r\n", b"RESET\r\n"):
            word, name, value = line.decode().rstrip("\r\n").split(" ", 2)
            assert word == "STAT", line
            found[name] = value
        return found

    def number(self, name: str, *words: str) -> int:
        return int(self.stats(*words)[name])

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def rdma_client(server: Server | SimpleNamespace, **arguments: Any) -> Client:
    """A client of ours over the tests' RDMA transport."""
    arguments = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT, "default_noreply": False, **arguments}
    return Client(server.address, transport=rdma(), **arguments)


def tcp_client(server: Server, **arguments: Any) -> PymemcacheClient:
    """The independent client: pymemcache."""
    arguments = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT, "default_noreply": False, **arguments}
    return PymemcacheClient(server.address, **arguments)


def alone(control: Conversation, connections: int = 1) -> None:
    """Waits until the daemon has so many connections, `control` among them. Connections of an earlier test, or the
    connection that awaited the daemon's start, may still have to end."""
    eventually(lambda: control.number("curr_connections") == connections, what=f"{connections} connections")


def rdma_at_rest(control: Conversation) -> bool:
    """Whether nothing of any queue pair is left in the daemon."""
    found = control.stats("rdma")
    return all(found[name] == "0" for name in ("rdma_queue_pairs", "rdma_registrations", "rdma_streams"))


@contextmanager
def beside_another(server: Server) -> Iterator[Conversation]:
    """A control connection. Another client is undisturbed meanwhile, and afterwards nothing is left in the daemon."""
    with Conversation(server) as control:
        with rdma_client(server) as other:
            assert other.set("bystander", bytes(10_000))
            alone(control, 2)
            yield control
            assert other.get("bystander") == bytes(10_000)
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        assert control.number("rdma_input_bytes", "rdma") == 0
        alone(control)


def room_for(connections: int, threads: int = 4) -> str:
    """The -c with which a daemon with one listening socket takes so many connections.

    memcached counts its own descriptors, too: standard streams, three of the main thread, five of each worker, the
    listener. The last descriptor is for refusing.
    """
    return str(connections + 3 + 3 + 5 * threads + 1 + 1)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def working(pid: int) -> float:
    """Seconds of processor time of all threads."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9


def resident(pid: int) -> int:
    """Bytes of anonymous memory in RAM: the memory of the process itself."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs a script of this folder in a Python process of its own. Its output comes on stdout. The end of the block
    ends the process."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # The signal also ends all forked processes.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finished(process: subprocess.Popen[str], seconds: float = 30.0) -> str:
    """Waits for a child to end well. Returns its output."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}:\n{out}\n{err}"
    return out


def over_libibverbs() -> bool:
    return rdma() in ("verbs", "rdma_cm")


def rdma_device() -> str:
    """The name of the device on which a test makes its queue pair to the daemon."""
    return verbs.devices("system")[0] if over_libibverbs() else f"{rdma()}0"


def address_tokens(qp: Any) -> list[str]:
    """The words about a queue pair in an exchange, beside its number."""
    if rdma() == "soft_shm":
        return ["host={} netns={}".format(*host_identity())]
    if rdma() != "verbs":
        return []
    address = qp.address
    return [f"psn={address['psn']}", f"lid={address['lid']}", f"mtu={address['mtu']}", f"gid={address['gid'].hex()}"]


def shm_socket(offer: dict[str, str]) -> socket.socket:
    """A connection to the place named by the daemon."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT)
    try:
        sock.connect("\0" + offer["path"].removeprefix("@"))
    except OSError:
        sock.close()
        raise
    return sock


def message(kind: int, payload: bytes = b"", credits: int = 0, lane: int = 0) -> bytes:
    return bytes([kind, 0]) + credits.to_bytes(2, "big") + lane.to_bytes(4, "big") + payload


class Peer:
    """An RDMA client made by hand of verbs, for messages of no proper client.

    The queue pair is connected unless `attach` is False. READY has been exchanged and `lanes` are open unless `ready`
    is False. `tokens` are added to the exchange line. Over rdma_cm, `cm` takes the place of `lifeline`. `lane_bytes`:
    bytes of each lane's payload kept by the peer. `receive_buffer`: bytes that the stream's socket may hold. Nothing
    is received, and no READ is answered, but within wait().

    A failed constructor leaves nothing open: the next test must not find its connection.
    """

    def __init__(
        self,
        server: Server,
        *,
        credits: int = 16,
        msgsize: int = 8192,
        attach: bool = True,
        ready: bool = True,
        tokens: Sequence[str] = (),
        lanes: Iterable[int] = (0,),
        lane_bytes: int = 1 << 20,
        receive_buffer: int | None = None,
    ) -> None:
        self.server = server
        self.receive_buffer = receive_buffer
        self.keeps = lane_bytes
        self.msgsize = msgsize
        self.cm: ByHand | None = None
        self.lifeline: Conversation
        self.context = verbs.Context(rdma_device())
        try:
            self.make_queue_pair(credits)
            self.connect(credits, tokens, attach, ready)
            if self.ready:
                self.open(*lanes)
        except BaseException:
            self.close()
            raise

    def make_queue_pair(self, credits: int) -> None:
        self.channel = verbs.CompChannel(self.context)
        os.set_blocking(self.channel.fileno(), False)
        self.pd = verbs.PD(self.context)
        self.cq = verbs.CQ(self.context, 1024, self.channel)
        self.qp = verbs.QP(self.pd, self.cq, max_recv_wr=credits, max_send_wr=256)
        access = verbs.Access.REMOTE_READ | verbs.Access.REMOTE_WRITE
        if over_libibverbs():
            self.qp.open(access)
        else:
            self.qp.ready(access)
        self.receives = bytearray(credits * self.msgsize)
        self.receive_region = verbs.MR(self.pd, self.receives)
        self.sends = bytearray(65536)
        self.send_region = verbs.MR(self.pd, self.sends, verbs.Access.LOCAL_WRITE)
        for index in range(credits):
            self.post_receive(index)
        self.credits = 0
        self.posted = credits
        self.owed = 0
        self.inbox = bytearray()
        self.room: dict[int, int] = {}  # of each open lane: the daemon's buffer, less the bytes under way
        self.unsaid: dict[int, int] = {}  # bytes used by the lane, and not reported to the daemon yet
        self.ready = False
        self.failed: str | None = None

    def connect(self, credits: int, tokens: Sequence[str], attach: bool, ready: bool) -> None:
        if rdma() == "rdma_cm":
            self.cm = ByHand(self.server.host, self.server.port, TIMEOUT)
            self.offer = self.cm.ask(self.qp.qp_num, credits, self.msgsize, self.keeps)
        else:
            self.lifeline = Conversation(self.server)
            self.exchange(credits, tokens)
        self.credits = int(self.offer["credits"])
        self.lane_bytes = int(self.offer["lanebytes"])
        if attach:
            self.attach()
            if ready:
                self.send(READY)
                self.wait(lambda: self.ready)

    def exchange(self, credits: int, tokens: Sequence[str]) -> None:
        line = " ".join(
            (
                f"rdma version={VERSION} transport={rdma()} qpn={self.qp.qp_num}",
                f"credits={credits} msgsize={self.msgsize} ird=16 ord=16 lanebytes={self.keeps}",
                *address_tokens(self.qp),
                *tokens,
            )
        )
        answer = self.lifeline.ask(line.encode() + b"\r\n").decode()
        word, _, pairs = answer.partition(" ")
        assert word == "RDMA", answer
        self.offer = dict(pair.split("=") for pair in pairs.split())

    @property
    def private_data(self) -> bytes:
        return int(self.offer["qpn"]).to_bytes(4, "big") + bytes.fromhex(self.offer["token"])

    def attach(self, private_data: bytes | None = None) -> None:
        if self.cm is not None:
            self.cm.confirm(self.qp)
            return
        if rdma() == "verbs":
            numbers = {name: int(self.offer[name]) for name in ("qpn", "psn", "lid", "mtu")}
            self.qp.join({**numbers, "gid": bytes.fromhex(self.offer["gid"])}, ord=int(self.offer["ird"]))
            return
        stream = shm_socket(self.offer) if rdma() == "soft_shm" else socket.socket()
        try:
            self.give(stream, self.private_data if private_data is None else private_data)
        except BaseException:
            stream.close()
            raise

    def give(self, stream: socket.socket, private_data: bytes) -> None:
        """Makes the socket the queue pair's stream."""
        stream.settimeout(TIMEOUT)
        if rdma() == "soft_shm":
            stream.sendall(SHM_REQUEST + private_data)
            reply = stream.recv(16)
            if reply != SHM_REPLY:
                raise ConnectionError(reply)
            stream.setblocking(False)
            self.qp.attach(stream)
            return
        if self.receive_buffer is not None:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        stream.connect(self.server.address)
        stream.setblocking(False)
        self.qp.connect(stream, private_data=private_data)

    def region(self, buffer: bytearray | memoryview, access: int) -> Any:
        return verbs.MR(self.pd, buffer, access)

    def post_receive(self, index: int) -> None:
        self.qp.post_recv((index, [self.receive_region.sge(index * self.msgsize, self.msgsize)]))

    def send_raw(self, message: bytes) -> None:
        """Sends these bytes in one SEND. Waits until the SEND is done."""
        self.sends[: len(message)] = message
        done: list[Any] = []
        sges = [self.send_region.sge(0, len(message))] if message else []
        self.qp.post_send(verbs.SendWR(verbs.Opcode.SEND, sges, wr_id=1 << 20))
        self.wait(lambda: done or self.failed, done)

    def send(
        self, kind: int, payload: bytes = b"", lane: int = 0, credits: int | None = None, used: bool = True
    ) -> None:
        """Sends a message, after a credit and room for its payload have come. credits: the number to give back,
        in place of all owed credits; then nothing is waited for. used: DATA reports the bytes used by its lane."""
        told = 0
        accounted = kind == DATA and lane in self.room
        if credits is None:
            self.wait(lambda: self.credits > 0 and (not accounted or self.room[lane] >= len(payload)))
            credits, self.owed = self.owed, 0
        if accounted:
            told = min(self.unsaid[lane], 0xFFFF) if used else 0
            self.unsaid[lane] -= told
            self.room[lane] -= len(payload)
        self.credits -= 1
        self.send_raw(message(kind, payload, credits, told << 16 | lane))

    def open(self, *lanes: int) -> None:
        for lane in lanes:
            self.send(OPEN, b"", lane)
            self.room[lane] = self.lane_bytes
            self.unsaid[lane] = 0

    def wait(self, until: Callable[[], Any], sent: list[Any] | None = None, timeout: float = TIMEOUT) -> None:
        """Takes completions until `until()` is true."""
        deadline = time.monotonic() + timeout
        armed = False
        while not until():
            completions = self.cq.poll(64)
            for wc in completions:
                if wc.status != verbs.Status.SUCCESS:
                    self.failed = self.failed or wc.status.name
                elif wc.opcode == verbs.WCOpcode.RECV:
                    self._take(wc.wr_id, wc.byte_len)
                elif sent is not None:
                    sent.append(wc)
            if completions:
                armed = False
                continue
            if self.failed and not until():
                raise ConnectionError(self.failed)
            if not armed:
                self.cq.arm()
                armed = True
                continue
            left = deadline - time.monotonic()
            # Over the software devices a completion tells of the queue pair's end. Over others only the lifeline tells.
            heard: list[Any] = [self.channel]
            if over_libibverbs():
                heard.append(self.lifeline.sock if self.cm is None else self.cm.sock)
            readable = polling.select(heard, [], max(left, 0))[0]
            if not readable:
                raise TimeoutError("the daemon said nothing")
            if self.channel not in readable:
                self.failed = "the daemon said something on the lifeline, or ended the connection"
            while self.channel.get_event() is not None:
                pass
            armed = False

    def _take(self, index: int, length: int) -> None:
        """Takes a received message: its credits, room and payload. Then posts the receive again."""
        start = index * self.msgsize
        message = bytes(self.receives[start : start + length])
        self.credits += int.from_bytes(message[2:4], "big")
        if message[0] == READY:
            self.ready = True
        elif message[0] == DATA:
            used, lane = int.from_bytes(message[4:6], "big"), int.from_bytes(message[6:8], "big")
            if lane in self.room:
                self.room[lane] += used
                assert self.room[lane] <= self.lane_bytes
                self.unsaid[lane] += length - HEADER
                assert self.unsaid[lane] <= self.keeps
            self.inbox += message[HEADER:]
        self.post_receive(index)
        self.owed += 1

    def ask(self, request: bytes, end: bytes = b"\r\n", lane: int = 0) -> bytes:
        """Sends DATA and takes the reply up to `end`."""
        self.send(DATA, request, lane)
        self.wait(lambda: end in self.inbox)
        at = self.inbox.index(end) + len(end)
        reply = bytes(self.inbox[:at])
        del self.inbox[:at]
        return reply

    def last_words(self) -> bytes:
        """The bytes that the daemon writes on the lifeline before its end."""
        try:
            return self.lifeline.file.read()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        if self.cm is not None:
            self.cm.close()
        elif hasattr(self, "lifeline"):
            self.lifeline.close()
        self.context.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
