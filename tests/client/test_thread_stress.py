"""Threads do everything at a time, with the same Clients, and check every value.

A Python without the GIL shows here the races that the GIL prevents (script/free-threaded).
"""

from __future__ import annotations

import ctypes
import random
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import pytest
from transport import rounds

from rmemcached.client import Client

THREADS = 12
TURNS = rounds(120)
SMALL = (1, 50, 200)
SIZES = (1, 100, 5000, 100_000, 400_000, 900_000)

Make = Callable[..., Client]


def value_of(key: str, size: int) -> bytes:
    return (key.encode() + b"%d;" % size) * (size // 8 + 1)


class Worker:
    """The work of a thread, with keys of its own."""

    def __init__(self, number: int, key: str, clients: list[Client], ordered: Client, make: Make) -> None:
        self.order = random.Random(number)
        self.prefix = f"{key}-{number}-"
        self.clients = clients
        self.ordered = ordered
        self.make = make
        self.seen: list[tuple[Any, bytes]] = []

    def run(self) -> None:
        tasks = (self.get, self.views, self.buffers, self.registered, self.many, self.pipeline, self.quiet, self.others)
        for _ in range(TURNS):
            key = f"{self.prefix}{self.order.randrange(10)}"
            size = self.order.choice(SIZES if self.order.random() < 0.2 else SMALL)
            self.order.choice(tasks)(self.order.choice(self.clients), key, value_of(key, size))

    def get(self, client: Client, key: str, value: bytes) -> None:
        assert client.set(key, value) is True
        assert client.get(key) == value

    def views(self, client: Client, key: str, value: bytes) -> None:
        client.set(key, value)
        self.seen.append((client.get(key, copy=False), value))
        if len(self.seen) > 4:
            view, value = self.seen.pop(0)
            assert view == value

    def buffers(self, client: Client, key: str, value: bytes) -> None:
        with client.buffer(len(value)) as buffer:
            with memoryview(buffer) as view:
                view[:] = value
            assert client.set(key, buffer) is True
            with memoryview(buffer) as view:
                view[:] = bytes(len(value))
            assert client.get_into(key, buffer) == len(value)
            assert bytes(memoryview(buffer)) == value

    def registered(self, client: Client, key: str, value: bytes) -> None:
        own = bytearray(value)
        with client.register(own):
            assert client.set(key, own) is True
            assert client.get(key) == value

    def many(self, client: Client, key: str, value: bytes) -> None:
        values = {f"{self.prefix}{number}": value[:100] for number in range(30)}
        assert client.set_many(values) == []
        assert client.get_many(values) == values

    def pipeline(self, client: Client, key: str, value: bytes) -> None:
        with client.pipeline() as requests:
            requests.set(key, value)
            for _ in range(10):
                requests.get(key)
        assert requests.results == [True, *[value] * 10]

    def quiet(self, client: Client, key: str, value: bytes) -> None:
        self.ordered.set(key + "quiet", value, noreply=True)
        assert self.ordered.get(key + "quiet") == value

    def others(self, client: Client, key: str, value: bytes) -> None:
        what = self.order.randrange(4)
        if what == 0:
            client.close()
        elif what == 1:
            with self.make() as another:
                assert another.set(key, value) is True
                assert another.get(key) == value
        else:
            assert isinstance(client.transport, str)
            assert client.calls <= THREADS + 2
            assert 0 <= client.connections <= THREADS + 2
            shown = client.sock
            assert shown is None or shown.family in (socket.AF_INET, socket.AF_UNIX)


@pytest.mark.device("threads")
def test_everything_at_a_time(make_client: Make, key: str) -> None:
    clients = [make_client() for _ in range(3)]
    ordered = make_client()
    # Arrays of ctypes do not count their exports. A bytearray's count is not safe without the GIL in Python 3.13.
    memory = (ctypes.c_char * (1 << 20))()
    ended = threading.Event()
    problems: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            problems.append(error)

    def register() -> None:
        # Another thread sets values from the same memory meanwhile.
        while not ended.is_set():
            buffer = clients[0].register(memory)
            while not buffer.closed:
                try:
                    buffer.close()
                except BufferError:
                    assert clients[0].get("none") is None

    def use() -> None:
        while not ended.is_set():
            assert clients[1].set(key, memory) is True

    workers = [Worker(number, key, clients, ordered, make_client) for number in range(THREADS)]
    threads = [threading.Thread(target=guarded, args=(worker.run,)) for worker in workers]
    beside = [threading.Thread(target=guarded, args=(body,)) for body in (register, use)]
    for thread in (*threads, *beside):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    for thread in beside:
        thread.join()
    assert problems == []


def test_importing_the_client_leaves_the_gil_as_it_is() -> None:
    """A module without support for a Python without the GIL would bring the GIL back, with a warning."""
    program = "import sys, rmemcached.client; print(getattr(sys, '_is_gil_enabled', lambda: True)())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not sysconfig.get_config_var("Py_GIL_DISABLED"))
