"""A peer made of raw verbs that opens and closes lanes, and keeps their replies apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Self

from daemon_tools import CLOSE, CREDIT, DATA, HEADER, TIMEOUT, Peer
from servers import Server

LANE_BYTES = 20_000  # of replies: the peer's buffer for each lane


class Lanes(Peer):
    """Keeps the replies of its lanes apart.

    `used`: the next message of a lane reports the used bytes of replies, unless the test withholds them. gives_back:
    the peer returns credits without a message to carry them, too.
    """

    def __init__(self, server: Server, *, gives_back: bool = True, **options: Any) -> None:
        self.replies: dict[int, bytearray] = defaultdict(bytearray)
        self.closed: dict[int, bytes] = {}
        self.gives_back = gives_back
        super().__init__(server, lanes=(), lane_bytes=LANE_BYTES, **options)
        self.lanes = int(self.offer["lanes"])

    def __enter__(self) -> Self:
        return self

    def _take(self, index: int, length: int) -> None:
        data = bytes(self.receives[index * self.msgsize : index * self.msgsize + length])
        super()._take(index, length)
        self.inbox.clear()
        lane = int.from_bytes(data[6:8], "big")
        if data[0] == DATA:
            self.replies[lane] += data[HEADER:]
        elif data[0] == CLOSE:
            self.closed[lane] = data[HEADER:]

    def wait(self, until: Callable[[], Any], sent: list[Any] | None = None, timeout: float = TIMEOUT) -> None:
        """Waits like Peer.wait, and gives credits back meanwhile, as section 5 of the protocol demands."""

        def check() -> Any:
            if sent is None and self.owed * 2 >= self.posted and self.credits and self.gives_back:
                self.gives_back = False
                self.send(CREDIT)
                self.gives_back = True
            return until()

        super().wait(check, sent, timeout)

    def open(self, *lanes: int) -> None:
        for lane in lanes:
            super().open(lane)
            self.replies.pop(lane, None)
            self.closed.pop(lane, None)

    def close_lanes(self, *lanes: int) -> None:
        """Waits until the daemon has closed them, too."""
        for lane in lanes:
            self.send(CLOSE, b"", lane)
        self.wait(lambda: all(lane in self.closed for lane in lanes))
        for lane in lanes:
            del self.closed[lane]

    def put(self, lane: int, payload: bytes = b"", used: bool = True) -> None:
        """Sends DATA, which reports the bytes used by the lane."""
        self.send(DATA, payload, lane, used=used)

    def talk(self, lane: int, request: bytes, end: bytes = b"\r\n") -> bytes:
        self.replies[lane].clear()
        self.put(lane, request)
        self.wait(lambda: self.replies[lane].endswith(end) or lane in self.closed)
        return bytes(self.replies[lane])

    def read(self, lane: int, until: Callable[[bytearray], bool]) -> bytes:
        """Takes replies, and reports them as used when they come."""
        while not until(self.replies[lane]):
            have = len(self.replies[lane])
            if self.unsaid[lane]:
                self.put(lane)
            self.wait(lambda: len(self.replies[lane]) > have or until(self.replies[lane]))  # noqa: B023
        return bytes(self.replies[lane])
