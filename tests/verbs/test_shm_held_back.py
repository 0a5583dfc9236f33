"""soft_shm: records that stay in their socket, because of their descriptors or of earlier records."""

from __future__ import annotations

import polling
import pytest
from test_shm_windows import MB, declined, fresh, in_a_process, paid_peer

from rmemcached.verbs import State

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]
LONG = 20.0
SHORT = """
import polling
old = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, old[1]))
"""


def test_records_that_are_held_back_wake_nobody() -> None:
    """While a peer's memory waits to be closed, its records do not make the channel readable. Later they do."""
    end, hostile = paid_peer()
    with end:
        channel = end.channel
        assert channel is not None

        def held_back() -> bool:
            """Whether the rest is held back at the time of the look, which takes a moment."""
            before = end.context.windows()["declined"]
            declined(hostile, fresh(512 * MB), *[fresh(2 * MB) for _ in range(30)])
            for _ in range(100):
                end.poll()
            end.cq.arm()
            slept = not polling.readable(channel, 0)
            taken = end.context.windows()["declined"] - before
            while end.context.windows()["declined"] < before + 31:
                assert polling.readable(channel, LONG)
                end.poll()
                end.cq.arm()
            return slept and taken == 8

        assert any(held_back() for _ in range(5))
        assert end.qp.state == State.RTS


def test_a_shortage_of_descriptors_holds_records_back() -> None:
    """A shortage of descriptors holds back records of an untrusted peer, whose descriptors the system would close.

    The records are read afterwards. Messages come meanwhile.
    """
    found = in_a_process(
        SHORT,
        """
for _ in range(100):
    end.poll()
end.cq.arm()
assert not polling.readable(end.channel, 0) and answers(peer) == []
end.qp.post_recv((2, [end.mr.sge(0, 100)]))
peer.cell(b"while", MESSAGE)
os.eventfd_write(peer.bell, 1)
assert statuses(completions(end, 1)) == [Status.SUCCESS] and end.buffer[:5] == b"while"
resource.setrlimit(resource.RLIMIT_NOFILE, old)
end.cq.arm()
assert polling.readable(end.channel, 20)
until(lambda: answers(peer) == [MAPPED], end)
locked = 0
""",
        paid=True,
        size=4096,
    )
    assert (found["regions"], found["declined"]) == (1, 0)


def test_a_peer_that_goes_while_its_records_are_held_back() -> None:
    """The end of a peer with records held back ends its queue pair at once."""
    found = in_a_process(
        SHORT,
        """
for _ in range(100):
    end.poll()
peer.sock.shutdown(socket.SHUT_RDWR)
until(lambda: end.qp.state == State.ERR, end)
resource.setrlimit(resource.RLIMIT_NOFILE, old)
locked = 0
end, peer = paid_peer()
""",
        paid=True,
        size=4096,
    )
    assert (found["regions"], found["declined"]) == (0, 0)
