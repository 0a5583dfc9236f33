"""Tools for tests of external storage (-o ext_path): values on flash, and waiting reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from daemon_tools import Conversation, tcp_client
from polling import eventually
from servers import Server
from suspended import stopped, stopped_without_lock, threads_named

SIZES = (100, 500, 1000, 4000, 16000, 60000, 200_000, 600_000, 1_000_000)
PAGE = 8  # megabytes
SETTLED = 60.0  # seconds


def options(file: Path, size: str = "64m", **more: object) -> str:
    """The -o of a daemon that puts all values of 100 bytes and more on flash as soon as possible."""
    wanted = {
        "ext_path": f"{file}:{size}",
        "ext_page_size": PAGE,
        "ext_wbuf_size": 2,
        "ext_item_size": 100,
        "ext_item_age": 0,
        "ext_max_sleep": 10000,
        "ext_recache_rate": 0,
        **more,
    }
    return ",".join(f"{name}={value}" for name, value in wanted.items() if value is not None)


def value_of(key: str, size: int, version: int = 0) -> bytes:
    """Bytes that only this key has."""
    block = hashlib.sha256(f"{key} {version}".encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def on_flash(control: Conversation, key: str) -> bool:
    """Whether the value is on flash: a dump shows its place then."""
    control.send(b"lru_crawler metadump all\r\n")
    found = False
    while (line := control.line()) != b"END\r\n":
        if line.startswith(b"BUSY"):
            return False
        found |= line.startswith(f"key={key} ".encode()) and b" ext_page=" in line
    return found


def settle(control: Conversation, objects: int) -> None:
    """Waits until so many objects have been written."""
    eventually(lambda: control.number("extstore_objects_written") >= objects, SETTLED, what=f"{objects} on flash")


def fill(server: Server, control: Conversation, flags: int = 0) -> dict[str, bytes]:
    """Stores values of all sizes, and waits until they are on flash. Keys are long, so no header is written again."""
    values = {f"key-{size}": value_of(f"key-{size}", size) for size in SIZES}
    before = control.number("extstore_objects_written")
    with closing(tcp_client(server)) as client:
        for key, value in values.items():
            assert client.set(key, value, flags=flags)
    settle(control, before + len(values))
    return values


@contextmanager
def held(server: Server) -> Iterator[None]:
    """The readers of external storage stand still, so values from the device do not come."""
    with ExitStack() as stack:
        for tid in threads_named(server.pid, "mc-ext-io"):
            stack.enter_context(stopped(tid))
        yield


@contextmanager
def writer_held(server: Server) -> Iterator[None]:
    """The writer of external storage stands still."""
    (tid,) = threads_named(server.pid, "mc-ext-write")
    with stopped_without_lock(tid):
        yield
