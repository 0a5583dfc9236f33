"""Types of the compiled module; see ends.pyx."""

import socket
from collections.abc import Callable
from typing import Any, NamedTuple

DONE: int
CONTROL: int
ALWAYS_THERE: str

class EndError(Exception): ...
class BrokenError(EndError): ...

def seconds_per_cycle() -> float: ...

class Fabric(NamedTuple):
    name: str
    near: bool
    iwarp: bool
    stream: Callable[..., None] | None

def fabric_of(device: str) -> Fabric: ...

class End:
    device: str
    fabric: Fabric
    mtu: int
    def __init__(
        self,
        device: str,
        port: int = 0,
        gid_index: int = -1,
        *,
        control: int,
        size: int,
        events: bool = False,
        tx_depth: int = 1,
        rx_depth: int = 512,
        inline_size: int = 0,
        mtu: int = 0,
        reads: int = 0,
    ) -> None: ...
    def add(self, tx_depth: int = 0, rx_depth: int = 0) -> int: ...
    def address(self, which: int = 0) -> dict[str, Any]: ...
    def connect(self, peer: dict[str, Any], which: int = 0) -> None: ...
    def stream(
        self, sock: socket.socket, request: bytes | None = None, *, crc: bool = False, which: int = 0
    ) -> None: ...
    def prepare_test(
        self,
        verb: str,
        size: int,
        *,
        total: int | None = None,
        seconds: float = 0,
        expected: int | None = None,
        moderation: int = 1,
        credit_every: int = 0,
        stamps: bool = False,
        peak: bool = False,
    ) -> None: ...
    def run(self, loop: str) -> int: ...
    def ignore_control(self) -> None: ...
    def latencies(self) -> list[float]: ...
    def rate(self) -> tuple[int, float, float]: ...
    def close(self) -> None: ...
