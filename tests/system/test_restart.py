"""A daemon with a memory file (-e): the items outlive the daemon, however it ends (docs/warm-restart.md)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from polling import eventually
from restarts import SHAPES, Run
from servers import Server, free_port, start_rmemcached

from rmemcached.client import Client


@pytest.fixture
def path() -> Iterator[Path]:
    """A file on a tmpfs."""
    path = Path("/dev/shm") / f"rmemcached-restart-{os.getpid()}"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


def client_of(server: Server, transport: str = "tcp") -> Client:
    return Client(server.address, transport=transport, default_noreply=False)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSEGV])
def test_whatever_ends_the_daemon_the_items_stay(path: Path, end: signal.Signals) -> None:
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        client.set("small", b"value", flags=7, expire=1000)
        client.set("large", bytes(900_000))
        client.set("count", b"5")
        client.incr("count", 3)
        client.set("gone", b"value")
        client.delete("gone")
        _, token = client.gets("small")
        server.stop(end)
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        assert client.get_many(["small", "large", "count", "gone"]) == {
            "small": b"value",
            "large": bytes(900_000),
            "count": b"8",
        }
        assert client.gets("small") == (b"value", token)
        stats = client.stats()
        assert (stats[b"restored_items"], stats[b"restored_dropped"], stats[b"curr_items"]) == (3, 0, 3)
        assert client.stats("settings")[b"memory_file"] == os.fsencode(path)


@pytest.mark.parametrize("options", [[], ["-o", "lru_algorithm=s3fifo"], ["-C"]], ids=["segmented", "s3fifo", "no cas"])
def test_kills_under_load(path: Path, options: list[str]) -> None:
    transports = ["tcp"] if "-C" in options else ["tcp", "soft_shm", "soft_iw"]
    run = Run(path, 11, options, transports)
    for kill in range(5):
        run.once(SHAPES[kill % len(SHAPES)] if not options else [])
    assert run.restored > 0


def test_items_expire_while_no_daemon_runs(path: Path) -> None:
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        client.set("brief", b"value", expire=2)
        client.set("long", b"value", expire=1000)
        stored = time.monotonic()
        server.stop()
    eventually(lambda: time.monotonic() > stored + 3.1)
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        assert client.get_many(["brief", "long"]) == {"long": b"value"}


def refusal(*options: str) -> str:
    """The error line of a daemon refusing to start."""
    user = ["-u", "root"] if os.geteuid() == 0 else []
    command = [sys.executable, "-P", "-m", "rmemcached", *user, "-p", str(free_port()), "-l", "127.0.0.1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode in (1, os.EX_USAGE) and done.stdout == "" and done.stderr.count("\n") == 1, done
    return done.stderr


def test_a_file_in_use_is_refused(path: Path) -> None:
    with start_rmemcached("-e", str(path)) as server:
        assert "is in use by another daemon" in refusal("-e", str(path))
        assert "is in use by another daemon" in refusal("-e", str(path), "-o", "restart=fresh")
        server.stop()


def test_foreign_files_are_refused_or_replaced(path: Path) -> None:
    path.write_bytes(b"not a memory file" * 5000)
    path.chmod(0o600)
    assert "is of another program" in refusal("-e", str(path))
    with start_rmemcached("-e", str(path), "-o", "restart=fresh") as server, client_of(server) as client:
        client.set("key", b"value")
        server.stop()
    beside = Path(f"{path}.meta")
    beside.touch()
    assert "memcached's own warm restart" in refusal("-e", str(path))
    beside.unlink()
    assert "it needs -e" in refusal("-o", "restart=fresh")
    assert "must be auto, always or fresh" in refusal("-e", str(path), "-o", "restart=never")


def test_a_crash_loop_ends_with_an_empty_cache(path: Path) -> None:
    for _ in range(3):
        with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
            client.set("key", b"value")
            server.kill()
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        assert client.get("key") is None
        assert eventually(lambda: "crashed three times within a minute" in server.stderr())
        server.stop()


def test_a_full_tmpfs_is_a_lack_of_memory(tmp_path: Path) -> None:
    """In a mount namespace with a small tmpfs: stores evict or fail, and the daemon lives and keeps its items."""
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from servers import start_rmemcached
from rmemcached.client import Client, MemcacheServerError
file = {str(tmp_path / "small" / "items")!r}
for options in ([], ["-M"]):
    with start_rmemcached("-m", "200", "-e", file, *options) as server:
        with Client(server.address, default_noreply=False) as client:
            stored, refused = [], 0
            for i in range(3000):
                try:
                    client.set(f"key-{{i}}", b"%d" % i * 5000)
                    stored.append(i)
                except MemcacheServerError:
                    refused += 1
            kept = [i for i in stored if client.get(f"key-{{i}}") == b"%d" % i * 5000]
            assert kept and (refused or len(kept) < len(stored))
            assert kept == stored or not options
    with start_rmemcached("-m", "200", "-e", file, *options) as server:
        with Client(server.address) as client:
            assert [i for i in kept if client.get(f"key-{{i}}") == b"%d" % i * 5000] == kept
    Path(file).unlink()
print("done")
"""
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=24m,mode=777 tmpfs {small} && exec {sys.executable} -P -c "$0"'
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    done = subprocess.run(["unshare", "--mount", *user, "sh", "-c", mount, script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.by_default("clients of a daemon read directly here")
def test_direct_readers_see_the_end_and_never_the_next_daemons_items(path: Path) -> None:
    with start_rmemcached("-e", str(path)) as server, client_of(server, "soft_shm") as client:
        for i in range(100):
            client.set(f"key-{i}", b"old-%d" % i)
        eventually(lambda: client.get("key-5") == b"old-5" and client.direct)
        port = server.port
        server.kill()
        with start_rmemcached("-e", str(path)) as successor, client_of(successor, "soft_shm") as other:
            for i in range(100):
                other.set(f"key-{i}", b"new-%d" % i)
                assert other.get(f"key-{i}") == b"new-%d" % i
            assert port != successor.port
            with pytest.raises(OSError):
                client.get("key-5")
            successor.stop()


def test_the_start_is_told_with_v(path: Path) -> None:
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        client.set("key", b"value")
        server.stop()
    with start_rmemcached("-v", "-e", str(path)) as server:
        eventually(lambda: re.search(r"1 items kept, 0 expired, 0 dropped", server.stderr()))
        server.stop()
