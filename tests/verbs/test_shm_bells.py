"""soft_shm: a sleeping end is woken by its bell, an eventfd of its own that the peer has, too."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from shm_by_hand import BELL, HELLO, RECORD, WAKEUP, record
from shm_ends import RawPeer
from verbs_ends import PATHS, End, completions

from rmemcached.verbs import Opcode, SendWR, Status

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]
WAKEUP_AT = 72  # of the word in an end's page that asks for a wake-up
LONG = 20.0


@contextlib.contextmanager
def ringing_peer(end: End, bell: int, pair: tuple[socket.socket, socket.socket] | None = None) -> Iterator[RawPeer]:
    """A hand-made peer of the end, with a bell of its own. pair: the socket belongs to the maker of the pair."""
    peer = RawPeer(end, hello=False, pair=pair)
    peer.sock.sendmsg(
        [record(HELLO, access=BELL)],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [peer.ring_fd, peer.registry_fd, bell]))],
    )
    peer.sent += 1
    peer.set_sent(peer.sent)
    end.poll()
    yield peer
    peer.close()


def ask_for_wakeup(peer: RawPeer, number: int) -> None:
    struct.pack_into("=I", peer.page, WAKEUP_AT, number << 1)


def send(end: End) -> None:
    end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 8)], flags=0))


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


def test_the_bell_is_rung_once_for_each_request(bell: int) -> None:
    with End() as end, ringing_peer(end, bell) as peer:
        send(end)
        assert not is_readable(bell)
        for number in (1, 2):
            ask_for_wakeup(peer, number)
            send(end)
            send(end)
            assert os.eventfd_read(bell) == 1
        peer.receive()
        assert WAKEUP not in [RECORD.unpack(octets)[0] for octets in peer.records]


def test_a_bell_of_another_user_is_not_rung(bell: int) -> None:
    """An end does not ring the bell of another user's process: a full bell that blocks would hold up the end. A record
    wakes the peer."""
    os.eventfd_write(bell, 2**64 - 2)
    os.set_blocking(bell, True)
    with End() as end:
        end.context.limit_windows(nobody=os.geteuid())
        with ringing_peer(end, bell) as peer:
            ask_for_wakeup(peer, 1)
            send(end)
            peer.receive()
            assert RECORD.unpack(peer.records[-1])[0] == WAKEUP


IN_A_CONTAINER = """
import os, socket, sys
sys.path[:0] = {paths!r}
import verbs_ends
verbs_ends.FABRIC = "soft_shm"
from test_shm_bells import *

bell = os.eventfd(0, os.EFD_NONBLOCK)
pair = tuple(socket.socket(fileno=fd) for fd in {fds!r})
with End() as end, ringing_peer(end, bell, pair) as peer:
    ask_for_wakeup(peer, 1)
    send(end)
    peer.receive()
    print(RECORD.unpack(peer.records[-1])[0] == WAKEUP, is_readable(bell))
"""


@pytest.mark.parametrize("beside", (True, False), ids=("of another container", "of the same one"))
def test_a_bell_of_another_container_is_not_rung(beside: bool) -> None:
    """An end does not ring the bell of a peer without a PID in the end's namespace, even of the same user, or of
    root."""
    ours, theirs = socket.socketpair()
    fds = (ours.fileno(), theirs.fileno())
    code = IN_A_CONTAINER.format(paths=PATHS, fds=fds)
    # Root needs no user namespace, and could make none below a changed root directory.
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user")
    container = ("unshare", *user, "--pid", "--fork", "--kill-child")
    if beside and subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    command = [*(container if beside else ()), sys.executable, "-P", "-c", code]
    # AddressSanitizer's search for leaks, in tests under ASan, needs a /proc with the PIDs of its own namespace.
    environment = os.environ | ({"ASAN_OPTIONS": "detect_leaks=0"} if beside else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, pass_fds=fds, timeout=120)
    assert done.stdout.split() == [str(beside), str(not beside)], done.stderr
    ours.close()
    theirs.close()


def test_a_bell_that_rings_wakes_who_waits() -> None:
    """An end that the bell wakes finds the octets written before. Without the bell nothing announces the octets."""
    with End(channel=True) as end:
        peer = RawPeer(end)
        end.qp.post_recv((7, [end.mr.sge(0, 64)]))
        end.cq.arm()
        assert end.channel is not None
        assert not is_readable(end.channel.fileno())
        peer.cell(b"hello", 1)
        assert not is_readable(end.channel.fileno())
        os.eventfd_write(peer.bell, 1)
        assert select.select([end.channel.fileno()], [], [], LONG)[0]
        end.channel.get_event()
        (wc,) = completions(end, 1)
        assert (wc.wr_id, wc.status, wc.byte_len) == (7, Status.SUCCESS, 5)


def test_a_bell_that_rings_without_end_is_one_event() -> None:
    """The bell is edge-triggered: for any counter there is a single event for all rings since the last event."""
    with End(channel=True) as end:
        peer = RawPeer(end)
        end.cq.arm()
        assert end.channel is not None
        os.eventfd_write(peer.bell, 2**64 - 2)
        assert is_readable(end.channel.fileno())
        end.poll()
        end.cq.arm()
        assert not is_readable(end.channel.fileno())
        # A full bell cannot be rung any more, to its peer's own loss.
        with pytest.raises(BlockingIOError):
            os.eventfd_write(peer.bell, 1)


@pytest.mark.parametrize("count", (2, 4))
def test_a_hello_with_other_descriptors_ends_the_stream(count: int, bell: int) -> None:
    with End() as end:
        peer = RawPeer(end, hello=False)
        fds = [peer.ring_fd, peer.registry_fd, bell, bell][:count]
        peer.post(record(HELLO, access=BELL), *fds)
        with contextlib.suppress(BlockingIOError):
            end.poll()
        assert peer.sock.recv(1) == b""
