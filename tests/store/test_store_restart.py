"""The memory file: the next store has a store's items again (store/memory_file.pxd, store/recover.pxd)."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_files import HEAD, MB, damage, seeds
from polling import eventually

from rmemcached.store._testing import Store

ALWAYS, FRESH, AUTO = 1, 2, 0
KEY_BINARY = 4096
F_OFD_SETLK = 37


@pytest.fixture
def path() -> Iterator[Path]:
    """A file on a tmpfs."""
    path = Path("/dev/shm") / f"rmemcached-test-{os.getpid()}"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


def lock_byte(fd: int, at: int) -> None:
    """Does as a client with this open file from an earlier run's daemon."""
    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, at, 1, 0))


def killed(use: Callable[[Store], Any], **options: Any) -> None:
    """Uses a store in a child; the child dies of SIGKILL with the store still open."""
    pid = os.fork()
    if pid == 0:
        try:
            store = Store(**options)
            use(store)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def fill(store: Store) -> dict[bytes, bytes]:
    """Stores values of all shapes, with overwritten, deleted and counted ones among them."""
    values = {}
    rng = random.Random(7)
    for i in range(3000):
        key = b"key-%d" % i
        values[key] = rng.randbytes(rng.choice((0, 1, 10, 100, 1000, 5000)))
        assert store.set(key, values[key], flags=i % 3) == "STORED"
    for i in range(12):
        key = b"large-%d" % i
        values[key] = rng.randbytes(rng.randrange(600_000, 1_000_000))
        assert store.set(key, values[key]) == "STORED"
    for i in range(0, 3000, 5):
        key = b"key-%d" % i
        values[key] = rng.randbytes(rng.choice((3, 400)))
        assert store.set(key, values[key]) == "STORED"
    for i in range(0, 3000, 7):
        store.delete(b"key-%d" % i)
        del values[b"key-%d" % i]
    store.delete(b"large-3")
    del values[b"large-3"]
    store.set(b"count", b"99")
    store.delta(b"count", 1)
    values[b"count"] = b"100"
    return values


def check(store: Store, values: dict[bytes, bytes]) -> None:
    assert {key: store.get(key) for key in values} == values
    assert store.stats()["curr_items"] == len(values)
    store.check(True)


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "not direct": {"direct": False},
    "remote": {"direct_remote": True},
    "s3fifo": {"s3fifo": True},
    "without CAS": {"use_cas": False},
    "all memory at once": {"preallocate": True, "lru_maintainer": True},
    "maintained": {"lru_maintainer": True, "lru_crawler": True, "slab_reassign": True},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["in order", "killed"])
def test_items_are_there_again(path: Path, mode: str, end: str) -> None:
    options = {"memory_file": path, "maxbytes": 64 * MB, **MODES[mode]}
    values: dict[bytes, bytes] = {}
    if end == "killed":
        killed(fill, **options)
        with Store(maxbytes=64 * MB) as other:
            values = fill(other)
    else:
        with Store(**options) as store:
            values = fill(store)
    for _ in range(2):
        with Store(**options) as store:
            assert store.restored == (len(values), 0, 0)
            check(store, values)
            assert store.set(b"another", b"one") == "STORED"
            store.delete(b"another")


def test_what_was_deleted_flushed_or_expired_stays_away(path: Path) -> None:
    with Store(memory_file=path) as store:
        for key in (b"deleted", b"flushed", b"expired"):
            store.set(key, b"value", exptime=10 if key == b"expired" else 0)
        store.delete(b"deleted")
        store.advance(5)
        store.flush_all()
        store.set(b"kept", b"value")
        store.set(b"expired", b"value", exptime=10)
        store.advance(20)
        store.tick()
    with Store(memory_file=path) as store:
        assert [store.get(key) for key in (b"deleted", b"flushed", b"expired", b"kept")] == [None, None, None, b"value"]
        store.check(True)


def test_cas_values_go_on(path: Path) -> None:
    with Store(memory_file=path) as store:
        _, first, _ = store.store("set", b"key", b"value")
    with Store(memory_file=path) as store:
        item = store.item(b"key")
        assert item.cas == first
        item.release()
        _, second, _ = store.store("set", b"other", b"value")
        assert second > first


def test_the_order_of_last_use_stays(path: Path) -> None:
    """Eviction begins with the item that was used longest ago, as if the daemon had not ended."""
    with Store(memory_file=path, lru_segmented=False, evict_to_free=True) as store:
        for i in range(50):
            store.set(b"key-%d" % i, b"value")
        for i in random.Random(5).sample(range(50), 50):
            store.advance(61 + i)
            store.get(b"key-%d" % i)
        order = random.Random(5).sample(range(50), 50)
        dumped = store.cachedump(store.class_of(80))
    with Store(memory_file=path, lru_segmented=False) as store:
        assert store.cachedump(store.class_of(80)) == dumped
        assert [line.split()[1] for line in dumped.splitlines()[:-1]] == [b"key-%d" % i for i in reversed(order)]


SHAPES: dict[str, dict[str, Any]] = {
    "-f": {"factor": 1.6},
    "-n": {"chunk_size": 200},
    "-I": {"item_size_max": 2 * MB},
    "slab_chunk_max": {"slab_chunk_size_max": 1 << 18},
    "-m more": {"maxbytes": 96 * MB},
    "-m less": {"maxbytes": 48 * MB},
    "-C": {"use_cas": False},
    "all": {"factor": 2.0, "chunk_size": 128, "item_size_max": 4 * MB, "use_cas": False, "direct_remote": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_other_options_keep_the_items(path: Path, shape: str) -> None:
    options: dict[str, Any] = {"memory_file": path, "maxbytes": 64 * MB, "slab_reassign": True, "lru_maintainer": True}
    with Store(**options) as store:
        values = fill(store)
    with Store(**{**options, **SHAPES[shape]}) as store:
        assert store.restored == (len(values), 0, 0)
        assert {key: store.get(key) for key in values} == values
        eventually(lambda: store.stats()["foreign_pages"] == 0)
        check(store, values)
        for i in range(200):
            assert store.set(b"new-%d" % i, bytes(i * 50)) == "STORED"
    with Store(**options) as store:
        assert {key: store.get(key) for key in values} == values


def test_a_smaller_item_limit_drops_what_is_larger(path: Path) -> None:
    with Store(memory_file=path, maxbytes=64 * MB) as store:
        values = fill(store)
    with Store(memory_file=path, maxbytes=64 * MB, item_size_max=1 << 19) as store:
        kept = {key: value for key, value in values.items() if len(value) < 500_000}
        assert store.restored == (len(kept), len(values) - len(kept), 0)
        eventually(lambda: store.stats()["foreign_pages"] == 0)
        check(store, kept)


def test_a_full_cache_takes_new_values_while_it_changes_its_shape(path: Path) -> None:
    with Store(memory_file=path, maxbytes=32 * MB) as store:
        for i in range(40000):
            store.set(b"key-%d" % i, bytes(1000))
    with Store(memory_file=path, maxbytes=32 * MB, factor=1.7) as store:
        for i in range(4000):
            assert store.set(b"new-%d" % i, bytes(random.Random(i).randrange(3000))) == "STORED"
        eventually(lambda: store.stats()["foreign_pages"] == 0)
        store.check(True)


def test_many_items_take_a_short_time(path: Path) -> None:
    """The hash table comes back in its size, so its chains stay short while the items are linked."""
    with Store(memory_file=path, maxbytes=256 * MB, hashpower_init=12) as store:
        for i in range(300_000):
            store.set(b"key-%d" % i, b"value")
        eventually(lambda: store.stats()["hash_power_level"] >= 18)
        store.tick()
    with Store(memory_file=path, maxbytes=256 * MB, hashpower_init=12) as store:
        assert store.stats()["hash_power_level"] >= 18
        assert store.restored[0] == 300_000


def test_a_file_of_zeros_is_refused_unless_it_is_an_unfinished_head(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, HEAD)
    with Store(memory_file=path) as store:
        assert store.set(b"key", b"value") == "STORED"
    path.unlink()
    path.touch(0o600)
    with path.open("r+b") as file:
        file.truncate(2 * HEAD)
        file.seek(64 * 1024)
        file.write(b"data of another program")
    assert "of another program" in refused(path)
    assert b"data of another program" in path.read_bytes()


def test_counting_keeps_the_state_of_an_item(path: Path) -> None:
    with Store(memory_file=path) as store:
        store.set(b"key", b"10")
        item = store.item(b"key")
        item.set_flag(KEY_BINARY)
        item.release()
        store.delta(b"key", 1)
        item = store.item(b"key")
        assert item.value == b"11" and item.it_flags & KEY_BINARY
        item.release()


def test_pages_stay_for_clients_of_an_earlier_run(path: Path) -> None:
    """A reader of the dead daemon's memory does not die when the next daemon has no use for a page."""
    store = Store(memory_file=path, maxbytes=64 * MB, direct=True)
    for i in range(40):
        store.set(b"key-%d" % i, bytes(900_000))
    reader = os.open(path, os.O_RDONLY)
    lock_byte(reader, 1)
    size = path.stat().st_blocks
    store.close()
    with Store(memory_file=path, maxbytes=16 * MB, slab_reassign=True, lru_maintainer=True) as store:
        # The mover empties pages, but they stay in the pool.
        eventually(lambda: store.stats()["slab_global_page_pool"] >= 15)
        assert path.stat().st_blocks >= size
    os.close(reader)


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        Store(memory_file=path, **options).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_are_no_memory_files_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"another program's data\n" * 1000)
    path.chmod(0o600)
    before = path.read_bytes()
    assert "of another program" in refused(path)
    assert path.read_bytes() == before
    with Store(memory_file=path, restart=FRESH) as store:
        assert store.set(b"key", b"value") == "STORED"
    path.chmod(0o644)
    assert "chmod 600" in refused(path)
    path.chmod(0o600)
    beside = Path(f"{path}.meta")
    beside.touch()
    assert ".meta" in refused(path)
    beside.unlink()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert "cannot open" in refused(link)
    assert "is not a file" in refused(Path("/dev/null")) or os.geteuid() != 0
    assert "cannot open" in refused(tmp_path / "no" / "folder")
    with Store(memory_file=path) as store:
        assert store.get(b"key") == b"value"
        assert "in use" in refused(path)
        assert "in use" in refused(path, restart=FRESH)


def test_a_file_cut_short_is_refused(path: Path) -> None:
    with Store(memory_file=path) as store:
        fill(store)
    # The file has space ahead of its use, so the second half may be unused.
    os.truncate(path, path.stat().st_size // 8)
    assert "cut short" in refused(path)
    os.truncate(path, 100)
    assert "damaged" in refused(path) or "cut short" in refused(path)
    os.truncate(path, 0)
    with Store(memory_file=path) as store:
        assert store.restored == (0, 0, 0)


def test_three_crashes_in_a_row_start_empty(path: Path) -> None:
    def crash() -> None:
        killed(lambda store: store.set(b"key", b"value"), memory_file=path, restart=AUTO)

    for _ in range(2):
        crash()
    with Store(memory_file=path, restart=ALWAYS) as store:
        assert store.get(b"key") == b"value"
    # The store has ended in order: earlier crashes count no more.
    for _ in range(3):
        crash()
    with Store(memory_file=path, restart=AUTO) as store:
        assert "three times" in store.note
        assert store.get(b"key") is None


@pytest.mark.parametrize("seed", seeds(20))
def test_a_damaged_file_is_refused_or_cleaned(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Store(memory_file=path, maxbytes=16 * MB) as store:
        for i in range(300):
            store.set(b"key-%d" % i, rng.randbytes(rng.choice((5, 300, 3000))))
        for i in range(4):
            store.set(b"large-%d" % i, rng.randbytes(600_000))
    damage(path, rng)
    try:
        store = Store(memory_file=path, maxbytes=16 * MB, **rng.choice(list(SHAPES.values())[:4]))
    except ValueError:
        return
    with store:
        eventually(lambda: store.stats()["foreign_pages"] == 0)
        store.check(True)
        for i in range(300):
            store.set(b"key-%d" % i, rng.randbytes(700))
        store.check(True)
