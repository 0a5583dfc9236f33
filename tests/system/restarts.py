"""Kills a daemon with a memory file under load, again and again, and checks the items of the next daemon from outside.

Each worker has keys of its own, and knows the states possible for each key: the last acknowledged state or, for the
operation under way when the daemon died, the state before or after. Any other value is an error: a store lost or
undone, a delete undone, a value torn. `python restarts.py KILLS` runs the check alone.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "shared")]

from servers import Server, StartError

from rmemcached.client import Client, MemcacheError

KEYS = 60  # of each worker
SIZES = (0, 1, 20, 200, 3000, 60_000, 700_000, 1_000_000)
WEIGHTS = (2, 4, 20, 20, 10, 3, 1, 1)
ABSENT = None

# With storage on flash most values go outward.
FLASH_SIZES = (1, 200, 400, 3000, 20_000, 60_000, 200_000)
FLASH_WEIGHTS = (2, 4, 20, 20, 10, 5, 3)

# Counts of values that a daemon gives up by itself, and others that may explain a loss.
LOSSES = (b"evictions", b"extstore_objects_evicted", b"extstore_compact_lost", b"extstore_io_errors")
TOLD = (
    b"restored_items",
    b"restored_dropped",
    b"restored_expired",
    b"cmd_flush",
    b"miss_from_extstore",
    b"badcrc_from_extstore",
    b"get_oom_extstore",
)

State = bytes | None


def value_of(key: str, version: int, size: int) -> bytes:
    """A value with its key and version in front; a torn copy is no such value."""
    head = b"%s:%d:%d:" % (key.encode(), version, size)
    seed = zlib.crc32(head)
    body = random.Random(seed).randbytes(min(size, 4096))
    return head + (body * (size // 4096 + 1))[:size]


@dataclass
class Known:
    """The states possible for a key; several while an operation's outcome is unknown."""

    states: list[State] = field(default_factory=lambda: [ABSENT])

    @property
    def state(self) -> State:
        assert len(self.states) == 1
        return self.states[0]


class Worker:
    """A client with keys of its own. `run` works until the daemon is gone."""

    def __init__(self, number: int, seed: int, flash: bool) -> None:
        self.number = number
        self.rng = random.Random(seed * 100 + number)
        self.known = {f"w{number}-{i}": Known() for i in range(KEYS)}
        self.version = 0
        self.done = 0
        self.problems: list[str] = []
        self.sizes = (FLASH_SIZES, FLASH_WEIGHTS) if flash else (SIZES, WEIGHTS)
        self.gate = threading.RLock()

    def change(self, key: str, to: State, act: Callable[[], object]) -> None:
        """Makes a change to the state `to`. act: whether the server has acknowledged the change."""
        known = self.known[key]
        before = known.state
        known.states = [before, to]
        known.states = [to if act() else before]
        self.done += 1

    def step(self, client: Client) -> None:
        key = self.rng.choice(list(self.known))
        before = self.known[key].state
        what = self.rng.choice(("set", "set", "set", "delete", "count", "cas", "touch", "append", "get", "add"))
        self.version += 1
        size = self.rng.choices(*self.sizes)[0]
        value = value_of(key, self.version, size)
        if what == "set":
            self.change(key, value, lambda: client.set(key, value, noreply=False))
        elif what == "delete":
            self.change(key, ABSENT, lambda: client.delete(key, noreply=False) or before is ABSENT)
        elif what == "count":
            number = b"%d" % self.rng.randrange(10**9)
            self.change(key, number, lambda: client.set(key, number, noreply=False))
            for _ in range(3):
                # As memcached: a shorter number is padded with spaces.
                down = b"%d" % max(0, int(number) - 7)
                after = down.ljust(len(number))
                self.change(key, after, partial(self.count_down, client, key, int(after)))
                number = after
        elif what == "cas":
            found, token = client.gets(key)
            self.compare(key, found)
            if token is not None:
                self.change(key, value, lambda: client.cas(key, value, token, noreply=False) is True)
        elif what == "touch":
            self.change(key, before, lambda: client.touch(key, 1000, noreply=False) or before is ABSENT)
        elif what == "append" and before is not ABSENT and len(before) < 1000:
            self.change(key, before + b"more", lambda: client.append(key, b"more", noreply=False))
        elif what == "add":
            self.change(
                key,
                before if before is not ABSENT else value,
                lambda: bool(client.add(key, value, noreply=False)) == (before is ABSENT),
            )
        else:
            self.compare(key, client.get(key))

    def count_down(self, client: Client, key: str, after: int) -> bool:
        return client.decr(key, 7, noreply=False) == after

    def compare(self, key: str, found: State) -> None:
        if found not in self.known[key].states:
            self.problems.append(f"{key} is {told(found)}, and should be {[told(s) for s in self.known[key].states]}")

    def run(self, connect: Callable[[], Client]) -> None:
        """Works until an operation fails."""
        try:
            with connect() as client:
                while not self.problems:
                    with self.gate:
                        if any(len(known.states) > 1 for known in self.known.values()):
                            # A flush_all without an answer: the daemon is about to be gone.
                            return
                        self.step(client)
        except (OSError, MemcacheError, EOFError):
            # The daemon has gone; `known` has the operation under way.
            return

    def settle(self, client: Client) -> None:
        """After a restart: checks each key, and takes the value found for its state."""
        for key, known in self.known.items():
            found = client.get(key)
            self.compare(key, found)
            known.states = [found]


def told(state: State) -> str:
    if state is ABSENT:
        return "absent"
    return f"{state[:40]!r}... of {len(state)} bytes, {zlib.crc32(state):#x}"


class Run:
    """Kills, restarts and checks. flash: a folder for files with values; none: all values stay in memory."""

    def __init__(
        self, path: Path, seed: int, options: Sequence[str], transports: Sequence[str], flash: Path | None = None
    ) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.options = list(options)
        self.transports = list(transports)
        # Bound for the whole run: between two daemons nobody else gets the port. Clients of another daemon there would
        # flush this one.
        self.holder = socket.socket()
        self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.holder.bind(("127.0.0.1", 0))
        self.port = int(self.holder.getsockname()[1])
        self.gate = threading.RLock()
        # Each worker has a gate of its own, taken by flush_all with all others.
        self.workers = [Worker(i, seed, flash is not None) for i in range(4)]
        self.restored = 0
        self.flash = flash
        self.outward = 0  # values found on flash
        self.moved = 0  # values moved by compactions
        self.lost = 0  # values that the daemons gave up by themselves

    def flash_options(self) -> list[str]:
        """Two files, in any order. A value goes outward soon after its store, and the compactor always finds work."""
        if self.flash is None:
            return []
        files = self.rng.sample([("a", 160), ("b", 96)], 2)
        paths = [f"ext_path={self.flash}/flash-{name}:{size}m" for name, size in files]
        more = ",".join(
            (
                "ext_page_size=8,ext_wbuf_size=2,ext_item_size=300,ext_max_sleep=10000,ext_recache_rate=20",
                f"ext_compact_under=31,ext_drop_under=0,ext_max_frag=0.9,ext_item_age={self.rng.choice((0, 0, 1, 2))}",
            )
        )
        return ["-o", ",".join([*paths, more])]

    def command(self, shape: Sequence[str]) -> list[str]:
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return [
            sys.executable,
            "-P",
            "-m",
            "rmemcached",
            *user,
            "-p",
            str(self.port),
            "-l",
            "127.0.0.1",
            "-U",
            "0",
            "-m",
            "512",
            "-t",
            "3",
            "-e",
            str(self.path),
            "-o",
            "restart=always",
            *self.options,
            *self.flash_options(),
            *shape,
        ]

    def start(self, shape: Sequence[str] = ()) -> Server:
        """Starts a daemon; sometimes another one is killed in its start before."""
        if self.rng.random() < 0.1:
            with subprocess.Popen(self.command(shape), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as early:
                time.sleep(self.rng.uniform(0.1, 0.6))  # the kill comes at any moment
                early.kill()
        return Server(self.command(shape), self.port)

    def client(self, transport: str) -> Client:
        return Client(("127.0.0.1", self.port), transport=transport, default_noreply=False, timeout=20)

    def flush(self, client: Client) -> None:
        """flush_all, while the workers pause."""
        for worker in self.workers:
            worker.gate.acquire()
        try:
            if any(len(known.states) > 1 for worker in self.workers for known in worker.known.values()):
                return
            for worker in self.workers:
                for known in worker.known.values():
                    known.states = [known.state, ABSENT]
            client.flush_all(noreply=False)
            for worker in self.workers:
                for known in worker.known.values():
                    known.states = [ABSENT]
        finally:
            for worker in self.workers:
                worker.gate.release()

    def once(self, shape: Sequence[str] = ()) -> None:
        """A daemon's life: checks the items, loads the daemon, kills it."""
        with self.start(shape) as server:
            with self.client(self.rng.choice(self.transports)) as client:
                stats = client.stats()
                if stats[b"pid"] != server.pid:
                    raise StartError(f"another daemon has taken port {self.port}")
                for worker in self.workers:
                    worker.settle(client)
                self.restored += int(stats[b"restored_items"])
                self.outward += int(stats.get(b"extstore_objects_used", 0))
                after = client.stats()
            self.raise_problems("after the start", server, after)
            threads = []
            for worker in self.workers:
                transport = self.rng.choice(self.transports)
                thread = threading.Thread(target=worker.run, args=(partial(self.client, transport),))
                thread.start()
                threads.append(thread)
            time.sleep(self.rng.uniform(0.02, 0.4))  # the kill comes at any moment
            with self.client("tcp") as client:
                after = client.stats()
            self.moved += int(after.get(b"extstore_compact_rescues", 0))
            self.lost += sum(int(after.get(name, 0)) for name in LOSSES)
            if self.rng.random() < 0.2:
                killer = threading.Timer(self.rng.uniform(0, 0.003), os.kill, (server.pid, signal.SIGKILL))
                try:
                    with self.client("tcp") as client:
                        killer.start()
                        self.flush(client)
                except (OSError, MemcacheError):
                    pass
                killer.join()
            server.kill()
            for thread in threads:
                thread.join()
        self.raise_problems("under load", server, after)

    def remove_flash(self) -> None:
        if self.flash is not None:
            for name in "ab":
                (self.flash / f"flash-{name}").unlink(missing_ok=True)

    def raise_problems(self, when: str, server: Server, stats: dict[bytes, bytes]) -> None:
        problems = [problem for worker in self.workers for problem in worker.problems]
        if problems:
            counts = [f"{name.decode()} {stats[name].decode()}" for name in (*LOSSES, *TOLD) if name in stats]
            raise AssertionError(
                "\n".join([f"{when}:", *problems[:10], f"{self.lost} values given up so far", *counts, server.said()])
            )


SHAPES: list[list[str]] = [[], [], [], ["-f", "1.4"], ["-n", "100"], ["-m", "480"], ["-I", "2m"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Options of the daemon may follow behind --.")
    parser.add_argument("kills", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", action="append")
    parser.add_argument("--path", type=Path, default=Path(f"/dev/shm/rmemcached-restarts-{os.getpid()}"))
    parser.add_argument("--flash", type=Path, metavar="FOLDER", help="values on flash, in files there")
    parser.add_argument("--same-shape", action="store_true", help="the same -m, -I, -f and -n each time")
    # argparse would take no options of the daemon behind options of its own.
    words = [*sys.argv[1:], "--"]
    own, options = words[: words.index("--")], words[words.index("--") + 1 : -1]
    args = parser.parse_args(own)
    run = Run(args.path, args.seed, options, args.transport or ["tcp", "soft_shm", "soft_iw"], args.flash)
    began = time.monotonic()
    try:
        for kill in range(args.kills):
            run.once([] if args.same_shape else run.rng.choice(SHAPES))
            if kill % 50 == 49 or kill == args.kills - 1:
                done = sum(worker.done for worker in run.workers)
                print(
                    f"{kill + 1} kills, {done} acknowledged changes, {run.restored} items taken over, {run.outward} of "
                    f"them on flash, {run.moved} moved by compactions, {run.lost} given up, "
                    f"{time.monotonic() - began:.0f} s",
                    flush=True,
                )
    except (AssertionError, StartError) as error:
        sys.exit(f"after {kill} kills: {error}")
    finally:
        args.path.unlink(missing_ok=True)
        Path(f"{args.path}.flash").unlink(missing_ok=True)
        run.remove_flash()


if __name__ == "__main__":
    main()
