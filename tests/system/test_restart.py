"""A daemon with a memory file (-e): the items outlive the daemon, however it ends (docs/warm-restart.md)."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_tools import Conversation
from memory_files import damage, damage_table, seeds
from polling import eventually
from program import in_tmpfs
from restarts import SHAPES, Run
from servers import Server, StartError, free_port, start_rmemcached

from rmemcached.client import Client


@pytest.fixture
def path() -> Iterator[Path]:
    """A file on a tmpfs."""
    path = Path("/dev/shm") / f"rmemcached-restart-{os.getpid()}"
    for file in (path, Path(f"{path}.flash")):
        file.unlink(missing_ok=True)
    yield path
    for file in (path, Path(f"{path}.flash")):
        file.unlink(missing_ok=True)


def client_of(server: Server, transport: str = "tcp") -> Client:
    return Client(server.address, transport=transport, default_noreply=False)


def flash(*files: tuple[Path, str], **more: object) -> list[str]:
    """Options for values on flash: all values of 100 bytes and more go there as soon as possible."""
    wanted = {
        "ext_page_size": 8,
        "ext_wbuf_size": 2,
        "ext_item_size": 100,
        "ext_item_age": 0,
        "ext_max_sleep": 10000,
        "ext_recache_rate": 0,
        **more,
    }
    paths = [f"ext_path={file}:{size}" for file, size in files]
    return ["-m", "128", "-o", ",".join(paths + [f"{name}={value}" for name, value in wanted.items()])]


def value_of(key: str, size: int) -> bytes:
    return random.Random(key).randbytes(size)


def outward(server: Server, values: dict[str, bytes]) -> None:
    """Stores values, and waits until they are on flash."""
    with Conversation(server) as control, client_of(server) as client:
        before = control.number("extstore_objects_written")
        for key, value in values.items():
            assert client.set(key, value)
        eventually(lambda: control.number("extstore_objects_written") >= before + len(values), 60)


def values_named(name: str, count: int = 40) -> dict[str, bytes]:
    """Values for a few pages of 8 MB. Keys are long, so a header is not written again."""
    keys = [f"{name}-{number}-{'k' * 60}" for number in range(count)]
    return {key: value_of(key, random.Random(key).choice((400, 5000, 200_000, 900_000))) for key in keys}


@pytest.mark.parametrize("where", ["memory", "flash"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSEGV])
def test_whatever_ends_the_daemon_the_items_stay(path: Path, end: signal.Signals, where: str, tmp_path: Path) -> None:
    options = ["-e", str(path), *(flash((tmp_path / "flash", "64m")) if where == "flash" else [])]
    with start_rmemcached(*options) as server, client_of(server) as client:
        client.set("small", b"value", flags=7, expire=1000)
        client.set("large", bytes(900_000))
        client.set("count", b"5")
        client.incr("count", 3)
        client.set("gone", b"value")
        client.delete("gone")
        _, token = client.gets("small")
        if where == "flash":
            eventually(lambda: client.stats()[b"extstore_objects_written"] > 0)
        server.stop(end)
    with start_rmemcached(*options) as server, client_of(server) as client:
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


@pytest.mark.parametrize("algorithm", ["segmented", "s3fifo"])
def test_kills_under_load_with_values_on_flash(path: Path, tmp_path: Path, algorithm: str) -> None:
    """Also while values are written, and while the compaction moves values."""
    options = ["-o", f"lru_algorithm={algorithm}"]
    run = Run(path, 12, options, ["tcp", "soft_shm", "soft_iw"], tmp_path)
    for kill in range(6):
        run.once(SHAPES[kill % len(SHAPES)])
    assert run.restored > run.outward > 0


def always(path: Path) -> list[str]:
    """Options for a memory file kept after any number of kills."""
    return ["-e", str(path), "-o", "restart=always"]


class TestFlash:
    """Values that fit are kept; others are dropped and counted."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        return tmp_path / "a", tmp_path / "b"

    def check(
        self, options: list[str], values: dict[str, bytes], kept: int | None = None, line: str = ""
    ) -> dict[bytes, int]:
        """Starts a daemon, and compares the values. kept: how many are there; None: some, but not all."""
        with start_rmemcached(*options) as server, client_of(server) as client:
            found = client.get_many(list(values))
            assert all(values[key] == value for key, value in found.items())
            assert len(found) == kept if kept is not None else 0 < len(found) < len(values)
            stats: dict[bytes, int] = client.stats()
            assert stats[b"restored_items"] + stats[b"restored_dropped"] == len(values)
            assert len(found) == stats[b"restored_items"]
            assert stats.get(b"miss_from_extstore", 0) == 0
            assert server.stderr().count("\n") == (line != "")
            assert line in server.stderr()
            server.kill()
        return stats

    def prepared(self, path: Path, *options: str) -> dict[str, bytes]:
        values = values_named("key")
        with start_rmemcached(*always(path), *options) as server:
            outward(server, values)
            server.kill()
        return values

    def test_files_in_another_order_and_of_another_size(self, path: Path, files: tuple[Path, Path]) -> None:
        a, b = files
        values = self.prepared(path, *flash((a, "32m"), (b, "48m")))
        for options in (
            flash((b, "48m"), (a, "32m")),
            flash((b, "160m"), (a, "80m")),
            flash((a, "32m"), (b, "48m")),
            flash((b, "48m:compact"), (a, "32m")),
            flash((a, "32m"), (b, "48m"), (a.parent / "c", "64m")),
        ):
            stats = self.check([*always(path), *options], values, len(values))
            assert stats[b"extstore_objects_used"] == len(values)

    def test_fewer_files_and_pages(self, path: Path, files: tuple[Path, Path]) -> None:
        a, b = files
        values = self.prepared(path, *flash((a, "64m"), (b, "64m")))
        line = "values of the last run are lost: a file of the last run is not given, or with a smaller size"
        self.check([*always(path), *flash((b, "64m"))], values, None, line)

    def test_a_smaller_file(self, path: Path, files: tuple[Path, Path]) -> None:
        a, _ = files
        values = self.prepared(path, *flash((a, "64m")))
        self.check([*always(path), *flash((a, "16m"))], values, None, "with a smaller size")
        assert a.stat().st_size <= 16 << 20

    @pytest.mark.parametrize("change", ["page", "buffer", "new", "cut", "other daemon", "no table", "no path", "fresh"])
    def test_what_does_not_fit(self, path: Path, files: tuple[Path, Path], change: str) -> None:
        a, _ = files
        usual = flash((a, "64m"))
        values = self.prepared(path, *usual)
        options, line = usual, f"values of the last run are lost: {a} is not a file of the last run"
        if change == "page":
            options, line = flash((a, "64m"), ext_page_size=16), "ext_page_size or ext_wbuf_size has changed"
        elif change == "buffer":
            options, line = flash((a, "64m"), ext_wbuf_size=4), "ext_page_size or ext_wbuf_size has changed"
        elif change == "new":
            a.unlink()
        elif change == "cut":
            os.truncate(a, 0)
        elif change == "other daemon":
            with start_rmemcached(*usual) as server:
                outward(server, values)
                server.stop()
        elif change == "no table":
            Path(f"{path}.flash").unlink()
            line = f"values of the last run are lost: {path}.flash is missing"
        elif change == "no path":
            options, line = ["-m", "128"], "values on flash are lost: there is no ext_path"
        if change == "fresh":
            with (
                start_rmemcached(*always(path), *usual, "-o", "restart=fresh") as server,
                client_of(server) as client,
            ):
                assert client.get_many(list(values)) == {} and server.stderr() == ""
                server.kill()
        else:
            self.check([*always(path), *options], values, 0, line)
        # The storage works afterwards.
        later = values_named("later")
        with start_rmemcached(*always(path), *usual) as server, client_of(server) as client:
            assert client.get_many(list(values)) == {}
            outward(server, later)
            server.kill()
        self.check([*always(path), *usual], later, len(later))

    def test_a_table_open_to_others_is_refused(self, path: Path, files: tuple[Path, Path]) -> None:
        options = [*always(path), *flash((files[0], "64m"))]
        values = self.prepared(path, *flash((files[0], "64m")))
        table = Path(f"{path}.flash")
        table.chmod(0o644)
        assert f"{table} belongs to another user, or is open to others: remove it" in refusal(*options)
        table.chmod(0o600)
        self.check(options, values, len(values))

    def test_names_of_others_beside_the_table(self, path: Path, files: tuple[Path, Path]) -> None:
        """A foreign file stops no start, and the next start removes a file left by a kill."""
        options = flash((files[0], "64m"))
        values = self.prepared(path, *options)
        folder, other, left = (Path(f"{path}.flash.new{ending}") for ending in ("", "-others", "abcdef"))
        folder.mkdir()
        other.touch()
        left.touch()
        try:
            self.check([*always(path), *options], values, len(values))
            assert folder.exists() and other.exists() and not left.exists()
            assert len(list(path.parent.glob(f"{path.name}.flash*"))) == 3
            # Such a file stays if it is given for values.
            given = flash((left, "64m"))
            values = self.prepared(path, *given)
            self.check([*always(path), *given], values, len(values))
        finally:
            folder.rmdir()
            other.unlink()
            left.unlink(missing_ok=True)

    def test_a_restart_on_a_full_tmpfs(self, tmp_path: Path) -> None:
        """Items fill the memory file, and somebody fills the file system to the last page while no daemon runs."""
        small = tmp_path / "small"
        options = [*always(small / "items"), *flash((tmp_path / "flash", "64m"), ext_item_age=3600)]
        script = f"""
import sys
sys.path[:0] = {sys.path!r}
from servers import start_rmemcached
from rmemcached.client import Client
values = {{f"key-{{i}}": b"%05d" % i * 40_000 for i in range(450)}}
for start in range(4):
    with start_rmemcached(*{options!r}) as server:
        with Client(server.address, default_noreply=False) as client:
            if start == 0:
                for key, value in values.items():
                    client.set(key, value)
                assert client.stats()[b"extstore_objects_used"] > 0
            found = client.get_many(list(values))
            if start == 0:
                # A slow device may cost items, each of which is counted.
                values = {{key: value for key, value in values.items() if key in found}}
                assert 450 - len(values) == client.stats()[b"evictions"]
            assert found == values
        server.kill()
    if start == 0:
        with open({str(small / "other")!r}, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
print("done")
"""
        run_in_tmpfs(small, "100m", script)

    def test_other_chunk_sizes(self, path: Path, files: tuple[Path, Path]) -> None:
        """Headers are copied into other chunks, also longer and shorter ones, and still count for their pages."""
        options = flash((files[0], "64m"))
        values = self.prepared(path, *options)
        for shape in (["-f", "1.6"], ["-n", "200", "-C"], []):
            with start_rmemcached(*always(path), *options, *shape) as server, client_of(server) as client:
                eventually(lambda: client.stats()[b"foreign_pages"] == 0)
                stats = client.stats()
                assert stats[b"restored_items"] == stats[b"extstore_objects_used"] == len(values)
                assert client.get_many(list(values)) == values
                server.kill()

    def test_a_half_written_record_hides_no_other(self, path: Path, files: tuple[Path, Path]) -> None:
        """A thread dies while it copies a value into a buffer: the next values of the buffer outlive a compaction."""
        a, _ = files
        sizes = {"ext_page_size": 2, "ext_wbuf_size": 2}
        values = {f"key-{number}-{'k' * 60}": value_of(str(number), 10_000) for number in range(5)}
        with start_rmemcached(*always(path), *flash((a, "32m"), **sizes)) as server:
            outward(server, values)
            server.kill()
        table = Path(f"{path}.flash")
        with table.open("r+b") as file:
            first = file.read().find(b"key-", 8192)
            file.seek(first + 1000)
            file.write(bytes(100))
        more = {"ext_compact_under": 16, "ext_drop_under": 0, "ext_max_frag": 0.99}
        with start_rmemcached(*always(path), *flash((a, "32m"), **sizes, **more)) as server:
            with client_of(server) as client:
                eventually(lambda: client.stats()[b"extstore_compact_rescues"] == 4, 60)
                found = client.get_many(list(values))
                assert len(found) == 4 and all(values[key] == value for key, value in found.items())
            server.stop()

    def test_a_file_cut_short_loses_its_last_pages(self, path: Path, files: tuple[Path, Path]) -> None:
        a, _ = files
        values = self.prepared(path, *flash((a, "64m")))
        os.truncate(a, 8 << 20)
        self.check([*always(path), *flash((a, "64m"))], values, None, f"{a} has been cut short")

    def test_old_content_is_never_believed(self, path: Path, files: tuple[Path, Path]) -> None:
        """The user puts an older copy of the file in its place: its values are misses."""
        a, _ = files
        options = [*always(path), *flash((a, "32m"))]
        old = {key: bytes(len(value)) for key, value in values_named("key", 16).items()}
        with start_rmemcached(*options) as server:
            outward(server, old)
            server.stop()
        copy = a.read_bytes()
        with start_rmemcached(*options) as server, client_of(server) as client:
            for key in old:
                client.delete(key)
            # All pages get new values.
            for turn in range(3):
                outward(server, values_named(f"between-{turn}"))
            values = values_named("key", 16)
            outward(server, values)
            outward(server, values_named("behind", 24))
            server.stop()
        a.write_bytes(copy)
        with start_rmemcached(*options) as server, client_of(server) as client:
            found = client.get_many(list(values))
            assert all(value == values[key] for key, value in found.items())
            server.stop()

    @pytest.mark.parametrize("seed", seeds(10))
    def test_damage_ends_no_daemon(self, path: Path, files: tuple[Path, Path], seed: int) -> None:
        a, b = files
        rng = random.Random(seed)
        options = [*always(path), *flash((a, "48m"), (b, "48m"), ext_compact_under=11, ext_max_frag=0.9)]
        values = values_named("key")
        with start_rmemcached(*options) as server:
            outward(server, values)
            server.kill()
        damage_table(Path(f"{path}.flash"), rng)
        if rng.random() < 0.5:
            damage(path, rng)
        more = values_named("more", 60)
        try:
            with start_rmemcached(*options) as server, client_of(server) as client:
                client.get_many(list(values))
                outward(server, more)
                assert client.get_many(list(more)) == more
                server.stop()
        except StartError as error:
            assert re.search("memory file .* (is damaged|has been cut short|is of another)", str(error))


def test_items_expire_while_no_daemon_runs(path: Path) -> None:
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        client.set("brief", b"value", expire=2)
        client.set("long", b"value", expire=1000)
        stored = time.monotonic()
        server.stop()
    eventually(lambda: time.monotonic() > stored + 3.1)
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        assert client.get_many(["brief", "long"]) == {"long": b"value"}


def refusal(*options: str, lines: int = 1) -> str:
    """The error of a daemon refusing to start, in so many lines."""
    user = ["-u", "root"] if os.geteuid() == 0 else []
    command = [sys.executable, "-P", "-m", "rmemcached", *user, "-p", str(free_port()), "-l", "127.0.0.1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode in (1, os.EX_USAGE) and done.stdout == "" and done.stderr.count("\n") == lines, done
    return done.stderr


def run_in_tmpfs(folder: Path, size: str, script: str) -> None:
    """Runs Python code with a small tmpfs."""
    command = [*in_tmpfs(folder, size), sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


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


def test_a_failed_start_is_no_crash(path: Path) -> None:
    for _ in range(2):
        with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
            client.set("key", b"value")
            server.kill()
    for _ in range(2):
        assert "max memory must be at least" in refusal("-e", str(path), "-m", "10", "-L", lines=2)
    with start_rmemcached("-e", str(path)) as server, client_of(server) as client:
        assert client.get("key") == b"value"
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
    run_in_tmpfs(tmp_path / "small", "24m", script)


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
