"""soft_iw and the Linux kernel's siw as peers; run by test_siw.py in a guest with the device siw0."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import socket
import string
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import siw_end
from siw_end import SiwEnd, SiwListener, port, take, wait_for
from verbs_ends import End

from rmemcached.verbs import MR, EventType, Opcode, SendFlag, SendWR, State, Status, StreamState
from rmemcached.verbs.cm import Listener, connect

ADDRESS = "10.0.2.15"  # of eth0; packets to the guest itself go over lo all the same
SIZES = (1, 2, 3, 63, 64, 65, 1000, 1461, 4096, 65482, 65536, 1 << 20, 4 << 20)
PAUSE = 100  # milliseconds after siw's reply, under emulation
ROLES = ("initiator", "responder")  # soft_iw's


@pytest.fixture(scope="module", params=[65536, 1500])
def mtu(request: pytest.FixtureRequest) -> int:
    """FPDUs are as large as TCP's segments: near 64 KB, or of an Ethernet's size."""
    run("ip", "link", "set", "lo", "mtu", str(request.param))
    return int(request.param)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def terminates() -> list[tuple[int, ...]]:
    """(layer, type, code) of the Terminates received by siw since the last call, as siw reads them."""
    found = re.findall(r"siw: got TERMINATE. layer (\d+), type (\d+), code (\d+)", run("dmesg", "-c"))
    return [tuple(map(int, numbers)) for numbers in found]


@contextlib.contextmanager
def connected(
    role: str,
    *,
    crc: bool = False,
    size: int = 1 << 16,
    access: int = 7,
    ird: int = 16,
    ord: int = 16,
    private_data: tuple[bytes, bytes] = (b"", b""),
    peer_to_peer: bool = False,
    pause: int = 0,
    **options: Any,
) -> Iterator[tuple[End, SiwEnd]]:
    """(ours, siw's), connected. private_data: of the request, of the reply."""
    with End(size, channel=False, **options) as ours:
        os.set_blocking(ours.context.async_fileno(), False)
        if role == "initiator":
            with SiwListener((ADDRESS, port())) as listener:
                sock = socket.create_connection(listener.address)
                ours.qp.connect(
                    sock,
                    crc=crc,
                    ird=ird,
                    ord=ord,
                    private_data=private_data[0],
                    peer_to_peer=peer_to_peer,
                    pause=pause,
                )
                theirs, data, _ = listener.get_request(size=size, access=access)
                assert data == private_data[0]
                with theirs:
                    theirs.accept(private_data[1])
                    wait_for(lambda: ours.qp.stream()["state"] == StreamState.OPEN, ours)
                    if peer_to_peer:
                        wait_for(lambda: ours.qp.counters()["tx_fpdus"], ours)
                    theirs.established()
                    assert ours.qp.stream()["private_data"] == private_data[1]
                    assert ours.qp.stream()["crc"] == crc
                    yield ours, theirs
        else:
            with (
                Listener((ADDRESS, 0)) as listening,
                SiwEnd.resolve(listening.address, size=size, access=access) as theirs,
            ):
                theirs.connect(private_data[0])
                request = listening.get_request(siw_end.PATIENCE)
                assert request is not None and request.private_data == private_data[0]
                request.accept(ours.qp, crc=crc, ird=ird, ord=ord, private_data=private_data[1])
                theirs.established()
                assert theirs.reply == private_data[1]
                # Ours, the responder, may send only after its first reception: here an empty WRITE by siw.
                theirs.post_send(siw_end.WRITE, None, flags=0, remote_addr=0, rkey=1)
                wait_for(lambda: ours.qp.counters()["writes_served"], ours)
                yield ours, theirs


def ok(found: list[Any], *wr_ids: int) -> None:
    assert [(wc.wr_id, wc.status) for wc in found] == [(wr_id, 0) for wr_id in wr_ids]


def test_siw_is_listed_under_rmemcached_verbs() -> None:
    launch = (sys.executable, "-P", "-m", "rmemcached.verbs.launch")
    shown = run("ibv_devinfo", "-v", "-d", "siw0")
    assert "hca_id:\tsiw0" in shown and run(*launch, "ibv_devinfo", "-v", "-d", "siw0") == shown
    assert re.findall(r"^    (\w+)\s", run(*launch, "ibv_devices"), re.MULTILINE)[1:] == [
        "soft_iw0",
        "soft_shm0",
        "siw0",
    ]


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("role", ROLES)
def test_every_size(role: str, crc: bool, mtu: int) -> None:
    """SEND, WRITE and READ from either end move every size."""
    octets = random.Random(7).randbytes(1 << 16) * 65
    starts = itertools.count()

    def pattern(size: int) -> bytes:
        start = next(starts)
        return octets[start : start + size]

    with connected(role, crc=crc, size=4 << 20) as (ours, theirs):
        for size in SIZES if mtu > 1500 else SIZES[:-1]:
            data = pattern(size)
            ours.buffer[:size] = data
            theirs.post_recv(1, theirs.sge(0, size))
            ours.qp.post_send(SendWR(Opcode.SEND, [ours.mr.sge(0, size)], wr_id=2))
            ok(take(theirs, 1, ours), 1)
            ok(take(ours, 1), 2)
            assert theirs.buffer[:size] == data
            data = pattern(size)
            theirs.buffer[:size] = data
            ours.qp.post_recv((3, [ours.mr.sge(0, size)]))
            theirs.post_send(siw_end.SEND, theirs.sge(0, size), 4)
            ok(take(ours, 1, theirs), 3)
            ok(take(theirs, 1), 4)
            assert ours.buffer[:size] == data
            # WRITE, and a SEND behind the WRITE to announce the data
            data = pattern(size)
            ours.buffer[:size] = data
            theirs.post_recv(5)
            ours.qp.post_send(
                SendWR(Opcode.RDMA_WRITE, [ours.mr.sge(0, size)], flags=0, remote_addr=theirs.addr, rkey=theirs.rkey),
                SendWR(Opcode.SEND, [], wr_id=6),
            )
            ok(take(theirs, 1, ours), 5)
            ok(take(ours, 1), 6)
            assert theirs.buffer[:size] == data
            data = pattern(size)
            theirs.buffer[:size] = data
            ours.qp.post_recv((7, []))
            theirs.post_send(siw_end.WRITE, theirs.sge(0, size), flags=0, remote_addr=ours.mr.addr, rkey=ours.mr.rkey)
            theirs.post_send(siw_end.SEND, None, 8)
            ok(take(ours, 1, theirs), 7)
            ok(take(theirs, 1), 8)
            assert ours.buffer[:size] == data
            # READ
            theirs.buffer[:size] = data = pattern(size)
            ours.qp.post_send(
                SendWR(Opcode.RDMA_READ, [ours.mr.sge(0, size)], wr_id=9, remote_addr=theirs.addr, rkey=theirs.rkey)
            )
            ok(take(ours, 1, theirs), 9)
            assert ours.buffer[:size] == data
            ours.buffer[:size] = data = pattern(size)
            theirs.post_send(siw_end.READ, theirs.sge(0, size), 10, remote_addr=ours.mr.addr, rkey=ours.mr.rkey)
            ok(take(theirs, 1, ours), 10)
            assert theirs.buffer[:size] == data


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("role", ROLES)
def test_thousands_of_rounds(role: str, crc: bool, mtu: int) -> None:
    rounds = 300 if mtu == 1500 else 100
    with connected(role, crc=crc) as (ours, theirs):
        send = SendWR(Opcode.SEND, [ours.mr.sge(0, 40)], flags=SendFlag(0))
        read = SendWR(Opcode.RDMA_READ, [ours.mr.sge(64, 40)], wr_id=9, remote_addr=theirs.addr, rkey=theirs.rkey)
        for number in range(rounds):
            ours.buffer[:8] = struct.pack(">Q", number)
            theirs.post_recv(1, theirs.sge(0, 64))
            ours.qp.post_recv((2, [ours.mr.sge(128, 64)]))
            ours.qp.post_send(send)
            take(theirs, 1, ours)
            theirs.post_send(
                siw_end.WRITE, theirs.sge(0, 40), flags=0, remote_addr=ours.mr.addr + 256, rkey=ours.mr.rkey
            )
            theirs.post_send(siw_end.SEND, theirs.sge(0, 40), flags=siw_end.INLINE)
            take(ours, 1, theirs)
            ours.qp.post_send(read)
            ok(take(ours, 1, theirs), 9)
            assert ours.buffer[:8] == ours.buffer[64:72] == ours.buffer[128:136] == ours.buffer[256:264]


def test_depths() -> None:
    """Both ends keep to the negotiated depths: READs beyond wait in the send queue."""
    for role in ROLES:
        with connected(role, ird=5, ord=3) as (ours, theirs):
            stream = ours.qp.stream()
            assert (stream["ird"], stream["ord"]) == (5, 3)
            ours.buffer[:] = random.Random(3).randbytes(len(ours.buffer))
            for i in range(60):
                theirs.post_send(
                    siw_end.READ, theirs.sge(i * 100, 100), i, remote_addr=ours.mr.addr + i * 100, rkey=ours.mr.rkey
                )
            ok(take(theirs, 60, ours), *range(60))
            assert theirs.buffer[:6000] == ours.buffer[:6000]
            ours.buffer[:6000] = bytes(6000)
            ours.qp.post_send(
                *(
                    SendWR(
                        Opcode.RDMA_READ,
                        [ours.mr.sge(i * 100, 100)],
                        wr_id=i,
                        remote_addr=theirs.addr + i * 100,
                        rkey=theirs.rkey,
                    )
                    for i in range(60)
                )
            )
            ok(take(ours, 60, theirs), *range(60))
            assert theirs.buffer[:6000] == ours.buffer[:6000]


@pytest.mark.parametrize("role", ROLES)
def test_private_data(role: str) -> None:
    with connected(role, private_data=(b"hello" * 10, b"welcome")):
        pass


def test_rejects() -> None:
    with SiwListener((ADDRESS, port())) as listener, End() as ours:
        ours.qp.connect(socket.create_connection(listener.address), private_data=b"hello")
        listener.reject(b"no room")
        wait_for(lambda: ours.qp.state == State.ERR, ours)
        stream = ours.qp.stream()
        assert (stream["state"], stream["private_data"]) == (StreamState.REFUSED, b"no room")
    with Listener((ADDRESS, 0)) as listening, SiwEnd.resolve(listening.address) as theirs:
        theirs.connect(b"hello")
        request = listening.get_request(siw_end.PATIENCE)
        assert request is not None
        request.reject(b"no room")
        _, data, _ = theirs.events.expect(siw_end.REJECTED)
        assert data == b"no room"


@pytest.mark.parametrize("crc", [False, True])
def test_the_responder_sends_first(crc: bool) -> None:
    """In peer-to-peer mode siw, as responder, sends first, after the ready-to-receive frame."""
    with connected("initiator", peer_to_peer=True, pause=PAUSE, crc=crc) as (ours, theirs):
        ours.qp.post_recv((1, [ours.mr.sge(0, 5)]))
        theirs.buffer[:5] = b"first"
        theirs.post_send(siw_end.SEND, theirs.sge(0, 5), 2)
        ok(take(ours, 1), 1)
        assert ours.buffer[:5] == b"first"


def test_revision_1() -> None:
    with connected("initiator", ird=0, ord=0, private_data=(b"plain", b"")) as (ours, theirs):
        theirs.post_recv(1, theirs.sge(0, 5))
        ours.buffer[:5] = b"hello"
        ours.qp.post_send(
            SendWR(Opcode.RDMA_WRITE, [ours.mr.sge(0, 5)], flags=0, remote_addr=theirs.addr + 9, rkey=theirs.rkey),
            SendWR(Opcode.SEND, [ours.mr.sge(0, 5)], wr_id=2),
        )
        ok(take(theirs, 1, ours), 1)
        assert theirs.buffer[:5] == theirs.buffer[9:14] == b"hello"


def test_invalidation() -> None:
    with connected("initiator") as (ours, theirs):
        ours.qp.post_recv((1, []))
        # siw's library takes the key from the field used by a WRITE.
        theirs.post_send(siw_end.SEND_WITH_INV, None, 2, rkey=ours.mr.rkey)
        (wc,) = take(ours, 1, theirs)
        assert wc.invalidated_rkey == ours.mr.rkey
        theirs.post_recv(3)
        ours.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], wr_id=4, invalidate_rkey=theirs.rkey))
        ok(take(theirs, 2, ours), 2, 3)
        sink = MR(ours.pd, bytearray(8), siw_end.LOCAL_WRITE)
        ours.qp.post_send(SendWR(Opcode.RDMA_READ, [sink.sge()], wr_id=5, remote_addr=theirs.addr, rkey=theirs.rkey))
        assert [(wc.wr_id, wc.status) for wc in take(ours, 2)] == [(4, Status.SUCCESS), (5, Status.REM_ACCESS_ERR)]


@pytest.mark.parametrize("role", ROLES)
def test_the_end(role: str) -> None:
    with connected(role) as (ours, theirs):
        ours.qp.post_recv((1, []))
        theirs.disconnect()
        assert [wc.status for wc in take(ours, 1)] == [Status.WR_FLUSH_ERR]
    with connected(role) as (ours, theirs):
        theirs.post_recv(1)
        ours.qp.modify(State.ERR)
        theirs.disconnected()
        assert [wc.status for wc in take(theirs, 1)] == [siw_end.FLUSHED]


# The next tests check siw's answers to our errors, and our answers to siw's. On little-endian machines siw reads and
# writes a Terminate's layer and type the wrong way round.


def place(end: End | SiwEnd, what: str) -> tuple[int, int]:
    """An unusable address and key at the peer."""
    addr, rkey = (end.mr.addr, end.mr.rkey) if isinstance(end, End) else (end.addr, end.rkey)
    return {"unknown": (addr, rkey ^ 0x5A5A00), "beyond": (addr + (1 << 16) - 4, rkey), "no right": (addr, rkey)}[what]


@pytest.mark.parametrize("what", ["unknown", "beyond"])
def test_our_reads_of_what_is_not_exposed(what: str) -> None:
    with connected("initiator") as (ours, theirs):
        ours.qp.post_recv((1, []))
        addr, rkey = place(theirs, what)
        ours.qp.post_send(SendWR(Opcode.RDMA_READ, [ours.mr.sge(0, 8)], wr_id=2, remote_addr=addr, rkey=rkey))
        found = {wc.wr_id: wc.status for wc in take(ours, 2)}
        assert found == {1: Status.WR_FLUSH_ERR, 2: Status.REM_ACCESS_ERR}
        assert ours.qp.counters()["terminates_received"] == 1


@pytest.mark.parametrize("what", ["unknown", "beyond", "no right"])
def test_our_writes_to_what_is_not_exposed(what: str) -> None:
    with connected("initiator", access=siw_end.LOCAL_WRITE if what == "no right" else 7) as (ours, theirs):
        theirs.post_recv(1)
        ours.qp.post_recv((3, []))
        addr, rkey = place(theirs, what)
        ours.qp.post_send(SendWR(Opcode.RDMA_WRITE, [ours.mr.sge(0, 8)], wr_id=2, remote_addr=addr, rkey=rkey))
        # The WRITE is complete once it is on its way.
        found = {wc.wr_id: wc.status for wc in take(ours, 2)}
        assert found == {2: Status.SUCCESS, 3: Status.WR_FLUSH_ERR}
        assert ours.qp.counters()["terminates_received"] == 1
        event = ours.context.get_async_event()
        assert event is not None and event[0] == EventType.QP_FATAL
        assert [wc.status for wc in take(theirs, 1)] == [siw_end.FLUSHED]


@pytest.mark.parametrize(
    ("what", "opcode", "error"),
    [
        ("unknown", siw_end.READ, (0, 1, 0)),
        ("beyond", siw_end.READ, (0, 1, 1)),
        ("no right", siw_end.READ, (0, 1, 2)),
        ("unknown", siw_end.WRITE, (1, 1, 0)),
        ("beyond", siw_end.WRITE, (1, 1, 1)),
        ("no right", siw_end.WRITE, (1, 1, 0)),
    ],
)
def test_their_access_errors(what: str, opcode: int, error: tuple[int, int, int]) -> None:
    terminates()
    with connected("initiator") as (ours, theirs):
        ours.qp.post_recv((1, []))
        private = MR(ours.pd, bytearray(8), siw_end.LOCAL_WRITE)
        addr, rkey = (private.addr, private.rkey) if what == "no right" else place(ours, what)
        theirs.post_recv(3)
        theirs.post_send(opcode, theirs.sge(0, 8), 2, remote_addr=addr, rkey=rkey)
        assert [wc.status for wc in take(ours, 1, theirs)] == [Status.WR_FLUSH_ERR]
        event = ours.context.get_async_event()
        assert event is not None and event[0] == EventType.QP_ACCESS_ERR
        theirs.disconnected()
        found = {wc.wr_id: wc.status for wc in take(theirs, 2)}
        assert found == {2: siw_end.FLUSHED if opcode == siw_end.READ else 0, 3: siw_end.FLUSHED}
        layer, etype, code = error
        assert terminates() == [(etype, layer, code)]


@pytest.mark.parametrize("size", [None, 7])
def test_receives_that_do_not_fit(size: int | None) -> None:
    """A missing receive, or a receive too small for 8 octets, on siw's side, then on ours, ends the connection."""
    terminates()
    with connected("initiator") as (ours, theirs):
        if size is not None:
            theirs.post_recv(1, theirs.sge(0, size))
        ours.qp.post_recv((3, []))
        ours.qp.post_send(SendWR(Opcode.SEND, [ours.mr.sge(0, 8)], wr_id=2))
        assert {wc.wr_id: wc.status for wc in take(ours, 2)} == {2: Status.SUCCESS, 3: Status.WR_FLUSH_ERR}
        assert ours.qp.counters()["terminates_received"] == 1
        theirs.disconnected()
    with connected("initiator") as (ours, theirs):
        if size is not None:
            ours.qp.post_recv((1, [ours.mr.sge(0, size)]))
        theirs.post_recv(3)
        theirs.post_send(siw_end.SEND, theirs.sge(0, 8), 2)
        wait_for(lambda: ours.qp.state == State.ERR, ours)
        assert [wc.status for wc in ours.done] == ([] if size is None else [Status.LOC_LEN_ERR])
        theirs.disconnected()
        assert {wc.wr_id: wc.status for wc in take(theirs, 2)} == {2: 0, 3: siw_end.FLUSHED}
        assert terminates() == [(2, 1, 2 if size is None else 5)]


# The peer of the next tests is rping, an example of librdmacm.


def info(mr: MR, offset: int, length: int) -> bytes:
    return struct.pack(">QII", mr.addr + offset, mr.rkey, length)


@pytest.mark.parametrize("crc", [False, True])
def test_rping_as_client(crc: bool) -> None:
    """soft_iw here serves rping's server: READs the memory offered by the client, and WRITEs to the client's sink."""
    rounds, size = 250, 3000
    with Listener((ADDRESS, 0)) as listening, End(channel=False) as end:
        end.qp.post_recv((1, [end.mr.sge(0, 16)]))
        command = (
            "rping",
            "-c",
            "-a",
            ADDRESS,
            "-p",
            str(listening.address[1]),
            "-C",
            str(rounds),
            "-S",
            str(size),
            "-V",
        )
        rping = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        request = listening.get_request(siw_end.PATIENCE)
        assert request is not None
        request.accept(end.qp, crc=crc)

        def message() -> tuple[int, int, int]:
            ok(take(end, 1), 1)
            found = struct.unpack(">QII", end.buffer[:16])
            end.qp.post_recv((1, [end.mr.sge(0, 16)]))
            return found

        for _ in range(rounds):
            addr, rkey, length = message()
            assert length == size
            end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(64, length)], wr_id=2, remote_addr=addr, rkey=rkey))
            ok(take(end, 1), 2)
            end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(16, 16)], flags=SendFlag(0)))
            addr, rkey, length = message()
            end.qp.post_send(
                SendWR(Opcode.RDMA_WRITE, [end.mr.sge(64, length)], flags=0, remote_addr=addr, rkey=rkey),
                SendWR(Opcode.SEND, [end.mr.sge(16, 16)], flags=SendFlag(0)),
            )
        wait_for(lambda: end.qp.state == State.ERR, end)
        output, _ = rping.communicate(timeout=30)
        assert rping.returncode == 0, output
        assert end.qp.counters()["reads"] == end.qp.counters()["writes"] == rounds


@pytest.mark.parametrize("crc", [False, True])
def test_rping_as_server(crc: bool) -> None:
    rounds, size = 250, 3000
    where = ADDRESS, port()
    command = ("rping", "-s", "-a", ADDRESS, "-p", str(where[1]), "-S", str(size))
    rping = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    generator = random.Random(5)
    with End(channel=False) as end:
        end.qp.post_recv((1, [end.mr.sge(0, 16)]))
        while True:
            try:
                connect(end.qp, where, crc=crc, pause=PAUSE)
            except ConnectionRefusedError:
                assert rping.poll() is None
                continue
            break
        for _ in range(rounds):
            # The server copies the data as a string, so the data end with a NUL.
            data = "".join(generator.choices(string.ascii_letters, k=size - 1)).encode() + b"\0"
            end.buffer[64 : 64 + size] = data
            for offset in (64, 64 + size):
                end.buffer[16:32] = info(end.mr, offset, size)
                end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(16, 16)], flags=SendFlag(0)))
                ok(take(end, 1), 1)
                end.qp.post_recv((1, [end.mr.sge(0, 16)]))
            assert end.buffer[64 + size : 64 + 2 * size] == data
        assert end.qp.counters()["reads_served"] == end.qp.counters()["writes_served"] == rounds
    output, _ = rping.communicate(timeout=30)
    assert rping.returncode == 0, output
