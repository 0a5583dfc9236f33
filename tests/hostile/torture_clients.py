"""A process of script/torture: threads with several clients each use every operation of a client, and check the
results.

    torture_clients.py HOST PORT TRANSPORT SEED THREADS CLIENTS

Over RDMA all clients of the process are lanes of its shared queue pairs. The process goes on until its stdin has a
line or ends, and closes its clients. Each line of stdout is a JSON object with the state so far, one each 0.1 s
because the process may be killed: operations, the longest in seconds, hits of gets, time-outs, sets refused for want
of memory, forks, faults, and whether this is the last line.

A value contains its size and seed, and its key. A client with a long time-out also has keys of its own: they have the
client's last value, or nothing (evicted), and its counter is exactly one more each time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import polling
from attacker import die_with_parent
from load_clients import OUT_OF_MEMORY
from selfcheck import make_value, problem
from transport import within

from rmemcached.client import Client, MemcacheServerError

KB, MB = 1 << 10, 1 << 20
EDGES = (4 * KB, 8 * KB, 16 * KB, 64 * KB, 128 * KB, 512 * KB, MB)
"""The eager size, the sizes of a message and of a lane's buffer, and larger sizes of chunks and regions. Values have
sizes around each of these. A message also has a header and the reply's line: BELOW has sizes around this limit."""
SMALL = (0, 1, 7, 8, 100, 1000)
BELOW = (-64, -40, -9, -8, -1, 0, 1)
LARGE = (2 * MB + 1, 4 * MB)
RARE = (8 * MB - 1, 8 * MB, 8 * MB + 1)
KEYS = 200
STALL = within(20.0)  # seconds: a longer operation is a stall
SHORT = (0.002, 0.005, 0.02)  # seconds
SHORT_SHARE = 0.25  # of the clients have a short time-out
FORKED_SECONDS = STALL


def size_of(source: random.Random) -> int:
    x = source.random()
    if x < 0.45:
        return source.choice(SMALL)
    if x < 0.90:
        return source.choice(EDGES[:5] if x < 0.84 else EDGES) + source.choice(BELOW)
    if x < 0.985:
        return source.randrange(64 * KB)
    return source.choice(LARGE if x < 0.999 else RARE)


def value_of(key: int, source: random.Random, size: int | None = None) -> bytes:
    return make_value(key << 16 | source.getrandbits(16), size_of(source) if size is None else size)


class Result:
    """The results of a thread."""

    def __init__(self) -> None:
        self.operations = 0
        self.longest = 0.0
        self.hits = 0
        self.timeouts = 0
        self.full = 0  # sets refused for want of memory
        self.forks = 0
        self.wrong: list[str] = []

    def add(self, other: Result) -> None:
        for name in ("operations", "hits", "timeouts", "full", "forks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.wrong += other.wrong

    def check(self, key: int, value: Any) -> None:
        if value is None:
            return
        self.hits += 1
        wrong = problem(value)
        if wrong is None and len(value) >= 8 and int.from_bytes(value[4:8], "big") >> 16 != key:
            wrong = f"the value is that of key {int.from_bytes(value[4:8], 'big') >> 16}"
        if wrong:
            self.wrong.append(f"torture{key}: {wrong}")


class Lane:
    """A client, and its knowledge of its own keys. `patient`: no operation may reach its long time-out."""

    def __init__(self, connect: Callable[[float], Client], name: str, source: random.Random) -> None:
        self.connect, self.name = connect, name
        self.stored: bytes | None = None
        self.count: int | None = None
        self.reopen(source)

    def reopen(self, source: random.Random) -> None:
        self.patient = source.random() >= SHORT_SHARE
        self.client = self.connect(STALL if self.patient else source.choice(SHORT))
        # Commands of a client with a short time-out may come later than commands of the next client: so the next client
        # has keys of another generation.
        self.stored = self.count = None
        self.generation = source.getrandbits(32)

    def own(self, what: str) -> str:
        return f"{what}{self.name}.{self.generation:x}"


class Worker:
    """The operations of a thread."""

    def __init__(self, connect: Callable[[float], Client], name: str, clients: int, seed: int) -> None:
        self.source = random.Random(seed)
        self.result = Result()
        self.connect = connect
        self.lanes = [Lane(connect, f"{name}.{number}", self.source) for number in range(clients)]
        self.table: list[tuple[Callable[[Lane], None], int]] = [
            (self.get, 36),
            (self.set, 22),
            (self.own_key, 14),
            (self.get_many, 6),
            (self.noreply, 6),
            (self.cas, 5),
            (self.delete, 3),
            (self.count, 5),
            (self.reopen, 2),
        ]

    def run(self, end: threading.Event) -> None:
        doings = [doing for doing, _ in self.table]
        weights = [weight for _, weight in self.table]
        while not end.is_set():
            lane = self.source.choice(self.lanes)
            doing = self.source.choices(doings, weights)[0]
            if self.source.random() < 0.0005:
                doing = self.fork
            began = time.monotonic()
            try:
                doing(lane)
            except MemcacheServerError as error:
                if OUT_OF_MEMORY in str(error):
                    self.result.full += 1
                    lane.stored = lane.count = None
                else:
                    self.failed(lane, doing, error)
            except Exception as error:
                self.failed(lane, doing, error)
            self.result.operations += 1
            self.result.longest = max(self.result.longest, time.monotonic() - began)
        for lane in self.lanes:
            lane.client.close()

    def failed(self, lane: Lane, doing: Callable[[Lane], None], error: Exception) -> None:
        """The only permitted failure is the time-out of a client with a short limit."""
        if isinstance(error, TimeoutError) and not lane.patient:
            self.result.timeouts += 1
        else:
            self.result.wrong.append(f"{lane.name}, {doing.__name__}: {type(error).__name__}: {error}")
            lane.client.close()
            lane.stored = lane.count = None

    # ---- operations ----

    def key(self) -> int:
        return self.source.randrange(KEYS)

    def get(self, lane: Lane) -> None:
        key = self.key()
        self.result.check(key, lane.client.get(f"torture{key}"))

    def get_many(self, lane: Lane) -> None:
        for name, value in lane.client.get_many([f"torture{self.key()}" for _ in range(5)]).items():
            self.result.check(int(name.removeprefix("torture")), value)

    def set(self, lane: Lane) -> None:
        key = self.key()
        if not lane.client.set(f"torture{key}", value_of(key, self.source)):
            self.result.wrong.append(f"torture{key}: not stored")

    def noreply(self, lane: Lane) -> None:
        key = self.key()
        lane.client.set(f"torture{key}", value_of(key, self.source), noreply=True)

    def cas(self, lane: Lane) -> None:
        key = self.key()
        value, unique = lane.client.gets(f"torture{key}")
        self.result.check(key, value)
        if unique is not None:
            lane.client.cas(f"torture{key}", value_of(key, self.source), unique)

    def delete(self, lane: Lane) -> None:
        lane.client.delete(f"torture{self.key()}")

    def own_key(self, lane: Lane) -> None:
        """Only this client writes the key: the value is the client's last."""
        if not lane.patient:
            return
        key = lane.own("own")
        if lane.stored is None or self.source.random() < 0.4:
            value, lane.stored = value_of(KEYS, self.source), None
            noreply = self.source.random() < 0.3
            if noreply:
                # A refused set leaves nothing, also no earlier value.
                lane.client.set(key, value, noreply=True)
            elif not lane.client.set(key, value):
                self.result.wrong.append(f"{key}: not stored")
            lane.stored = value
            return
        found = lane.client.get(key)
        if found is not None and found != lane.stored:
            self.result.wrong.append(f"{key}: not what was stored last: {problem(found) or 'an older value'}")
        self.result.hits += found is not None

    def count(self, lane: Lane) -> None:
        """Only this client changes the counter."""
        if not lane.patient:
            return
        key = lane.own("count")
        found = None if lane.count is None else lane.client.incr(key, 1)
        if found is None:
            lane.count = None
            if lane.client.set(key, b"0"):
                lane.count = 0
            return
        assert lane.count is not None
        if found != lane.count + 1:
            self.result.wrong.append(f"{key}: {lane.count} and 1 is {found}")
        lane.count = found

    def reopen(self, lane: Lane) -> None:
        lane.client.close()
        lane.reopen(self.source)

    def fork(self, lane: Lane) -> None:
        """Forks a child, which uses a new client, closes its copy of the lane's client, and uses the copy again."""
        self.result.forks += 1
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            self.in_child(lane, writer)
        os.close(writer)
        if polling.readable(reader, FORKED_SECONDS):
            said = os.read(reader, 4096).decode()
        else:
            os.kill(pid, 9)
            said = "it stalls"
        os.close(reader)
        os.waitpid(pid, 0)
        if said != "well":
            self.result.wrong.append(f"{lane.name}, the child of a fork: {said or 'it has died'}")

    def in_child(self, lane: Lane, writer: int) -> None:
        said = "well"
        try:
            die_with_parent()
            self.result = Result()
            with self.connect(STALL) as client:
                self.get(Lane(lambda timeout: client, lane.name, self.source))
            lane.client.close()
            if lane.patient:
                self.get(lane)
                self.set(lane)
            said = self.result.wrong[0] if self.result.wrong else said
        except MemcacheServerError as error:
            said = said if OUT_OF_MEMORY in str(error) else repr(error)
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writer, said.encode()[:4000])
            os._exit(0)


def say(workers: list[Worker], last: bool) -> None:
    total = Result()
    for worker in workers:
        total.add(worker.result)
    total.wrong = total.wrong[:10]
    print(json.dumps({**vars(total), "last": last}), flush=True)


def main() -> None:
    host, port, transport, seed, threads, clients = sys.argv[1:]
    die_with_parent()

    def connect(timeout: float) -> Client:
        return Client(
            (host, int(port)), transport=transport, timeout=timeout, connect_timeout=STALL, default_noreply=False
        )

    end = threading.Event()
    workers = [Worker(connect, f"{os.getpid()}.{i}", int(clients), int(seed) * 64 + i) for i in range(int(threads))]
    running = [threading.Thread(target=worker.run, args=(end,)) for worker in workers]
    for thread in running:
        thread.start()
    while not polling.readable(sys.stdin, 0.1):
        say(workers, last=False)
    end.set()
    for thread in running:
        thread.join()
    say(workers, last=True)


if __name__ == "__main__":
    main()
