"""The octets over TCP are iWARP for others: Wireshark's dissectors decode a recorded conversation without complaint."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import polling
import pytest
from verbs_ends import ALL, End, give, tcp_pair, tcp_pair_mss, until

from rmemcached.verbs import MR, Opcode, SendFlag, SendWR, State

pytestmark = pytest.mark.once

# Memcached's ports would not do: Wireshark would ask its dissector of memcached first.
PORTS = (40000, 7174)


class Recorder:
    """Stands between two streams, passes on their octets, and records them as the packets of a connection."""

    def __init__(self, mss: int = 0) -> None:
        make = (lambda: tcp_pair_mss(mss)) if mss else tcp_pair
        self.left, here = make()
        there, self.right = make()
        self.here, self.there = here, there
        self.packets: list[bytes] = []
        self.data: tuple[list[bytes], list[bytes]] = ([], [])
        self.sequence = [1000, 5000]
        for flags, side in ((0x02, 0), (0x12, 1)):
            self.packet(side, b"", flags)
            self.sequence[side] += 1
        self.packet(0, b"", 0x10)

    def packet(self, side: int, data: bytes, flags: int = 0x18) -> None:
        """Ethernet, IPv4 and TCP around the octets of a direction."""
        acknowledged = self.sequence[1 - side] if flags != 0x02 else 0
        tcp = struct.pack(
            ">HHIIBBHHH", PORTS[side], PORTS[1 - side], self.sequence[side], acknowledged, 0x50, flags, 65535, 0, 0
        )
        total = 40 + len(data)
        addresses = bytes([10, 0, 0, 1 + side, 10, 0, 0, 2 - side])
        header = struct.pack(">BBHHHBBH", 0x45, 0, total, len(self.packets), 0, 64, 6, 0) + addresses
        words = sum(struct.unpack(">10H", header))
        words = (words & 0xFFFF) + (words >> 16)
        checksum = ~((words & 0xFFFF) + (words >> 16)) & 0xFFFF
        header = header[:10] + struct.pack(">H", checksum) + header[12:]
        self.packets.append(bytes(12) + b"\x08\x00" + header + tcp + data)
        self.sequence[side] += len(data)
        self.data[side].append(data)

    def run(self) -> None:
        """Passes on all present octets."""
        while True:
            ready = polling.select([self.here, self.there], [], 0)[0]
            moved = False
            for sock in ready:
                data = sock.recv(60_000)
                if not data:
                    continue
                moved = True
                side = 0 if sock is self.here else 1
                self.packet(side, data)
                (self.there, self.here)[side].sendall(data)
            if not moved:
                return

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
            for i, packet in enumerate(self.packets):
                file.write(struct.pack("<IIII", 1_700_000_000, i, len(packet), len(packet)) + packet)

    def close(self) -> None:
        self.here.close()
        self.there.close()


FIELDS = (
    "iwarp_mpa.ulpdulength",
    "iwarp_rdma.opcode",
    "iwarp_ddp.last_flag",
    "iwarp_ddp.stag",
    "iwarp_ddp.msn",
    "iwarp_rdma.rdmardsz",
    "iwarp_rdma.term_layer",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_mpa.rev",
    "_ws.malformed",
    "_ws.expert.message",
)


def decode(path: Path) -> dict[str, list[str]]:
    """All values found by tshark for each field, in order."""
    assert shutil.which("tshark"), "tshark is not installed: script/prepare.sh installs it"
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=|", "-E", "aggregator=;"]
    # These dissectors guess the kind of the payloads, and would be wrong.
    command += ["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]
    for field in FIELDS:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return {field: [value for row in rows for value in row[i].split(";") if value] for i, field in enumerate(FIELDS)}


def good_crcs(path: Path) -> int:
    done = subprocess.run(["tshark", "-r", str(path), "-O", "iwarp_mpa"], capture_output=True, text=True, check=True)
    assert "Bad CRC32" not in done.stdout
    return done.stdout.count("Good CRC32")


def frames(octets: bytes) -> list[bytes]:
    """The ULPDUs behind the start-up frame of a direction."""
    at = 20 + int.from_bytes(octets[18:20], "big")
    found = []
    while at < len(octets):
        length = int.from_bytes(octets[at : at + 2], "big")
        found.append(octets[at + 2 : at + 2 + length])
        at += 2 + length + -(2 + length) % 4 + 4
    return found


@pytest.mark.parametrize("crc", [False, True])
def test_a_conversation_is_decoded(tmp_path: Path, crc: bool) -> None:
    recorder = Recorder(mss=1448)
    with End() as a, End() as b:
        give(a.qp, recorder.left, initiator=True, crc=crc)
        recorder.run()
        give(b.qp, recorder.right, initiator=False)
        recorder.run()

        def after_a_turn(condition: bool) -> bool:
            a.poll()
            b.poll()
            recorder.run()
            return condition

        def do(count: int, *requests: SendWR) -> None:
            """Posts each request by itself: each packet starts with a frame."""
            for request in requests:
                a.qp.post_send(request)
                until(lambda: after_a_turn(bool(a.done)))
                a.done.clear()
            until(lambda: after_a_turn(len(b.done) >= count))
            b.done.clear()

        remote = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey}
        gone = MR(b.pd, bytearray(100), ALL)
        b.qp.post_recv(*((i, [b.mr.sge(0, 5000)]) for i in range(4)))
        do(
            4,
            SendWR(Opcode.SEND, [a.mr.sge(0, 5)]),
            SendWR(Opcode.SEND, [a.mr.sge(0, 4001)], flags=SendFlag.SOLICITED | SendFlag.SIGNALED),
            SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 100)], **remote),
            SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 3000)], **remote),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 33)], **remote),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 4000)], **remote),
            SendWR(Opcode.SEND_WITH_INV, [a.mr.sge(0, 7)], invalidate_rkey=gone.rkey),
            SendWR(Opcode.SEND, []),
        )
        # A READ of an unknown region ends the conversation.
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=1, rkey=2))
        until(lambda: after_a_turn(a.qp.state == State.ERR))
    recorder.close()
    path = tmp_path / "iwarp.pcap"
    recorder.save(path)
    found = decode(path)
    assert found["_ws.malformed"] == []
    # The remarks of TCP's dissector about connection set-up and the end of the capture are no complaints.
    remarks = [text for text in found["_ws.expert.message"] if not text.startswith("Connection")]
    assert remarks == []
    assert len(found["iwarp_mpa.key.req"]) == len(found["iwarp_mpa.key.rep"]) == 1
    assert found["iwarp_mpa.rev"] == ["2", "2"]
    sent = [frames(b"".join(recorder.data[side])) for side in (0, 1)]
    both_ways = sent[0] + sent[1]
    assert good_crcs(path) == (len(both_ways) if crc else 0)

    def sorted_hex(values: list[str]) -> list[int]:
        return sorted(int(value, 0) for value in values)

    assert sorted_hex(found["iwarp_mpa.ulpdulength"]) == sorted(len(frame) for frame in both_ways)
    assert sorted_hex(found["iwarp_rdma.opcode"]) == sorted(frame[1] & 15 for frame in both_ways)
    assert {frame[1] & 15 for frame in both_ways} == {0, 1, 2, 3, 4, 5, 7}
    assert sum(value in ("1", "True") for value in found["iwarp_ddp.last_flag"]) == sum(
        frame[0] >> 6 & 1 for frame in both_ways
    )
    assert sorted_hex(found["iwarp_rdma.rdmardsz"])[-3:] == [8, 33, 4000]
    assert found["iwarp_rdma.term_layer"] in (["0"], ["0x00"])
