"""The engine of external storage: pages, write buffers and records, in files."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from polling import eventually
from program import in_tmpfs

from rmemcached.flash._testing import Engine

MEGABYTE = 1 << 20
PAGE, WBUF = 4 * MEGABYTE, 2 * MEGABYTE
COMPACT = 1

EngineFactory = Callable[..., Engine]


def engines(folder: Path, reader: str) -> Iterator[EngineFactory]:
    made: list[Engine] = []

    def engine(*pages: int, buckets: tuple[int, ...] = (), threads: int = 1) -> Engine:
        kinds = buckets or (0,) * len(pages)
        paths = [(str(folder / str(n)), count, kinds[n]) for n, count in enumerate(pages)]
        made.append(Engine(paths, PAGE, WBUF, threads, reader))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def make(tmp_path: Path, reader: str) -> Iterator[EngineFactory]:
    """make(pages, ...) makes an engine whose files have so many pages."""
    yield from engines(tmp_path, reader)


@pytest.fixture
def make_for_writes(tmp_path: Path) -> Iterator[EngineFactory]:
    """The same, with one way of reading."""
    yield from engines(tmp_path, "threads")


def written(engine: Engine, key: bytes, value: bytes, bucket: int = 0) -> tuple[int, int, int]:
    """Writes a value, as soon as there is space."""
    place: tuple[int, int, int] = eventually(lambda: engine.put(key, value, bucket), what="space")
    return place


def fill(engine: Engine, count: int, length: int = 400_000, bucket: int = 0) -> dict[bytes, tuple[int, int, int]]:
    """Writes so many values: zeros. Waits for free buffers."""
    return {key: written(engine, key, bytes(length), bucket) for key in (b"k%d" % number for number in range(count))}


def test_a_value_is_read_from_its_buffer(make: EngineFactory) -> None:
    engine = make(4)
    place = engine.put(b"key", b"value")
    assert place is not None
    assert engine.get(place, b"key", 5) == b"value"
    assert engine.exists(place)
    assert engine.get(place, b"other", 5) is None
    assert engine.get(place, b"key", 4) is None
    assert engine.stats()["objects_used"] == 1


def test_values_are_read_from_the_device(make: EngineFactory) -> None:
    engine = make(8)
    chance = random.Random(1)
    values = {}
    for number in range(200):
        key = b"k%d" % number
        value = chance.randbytes(chance.choice((0, 1, 100, 5000, 70_000)))
        values[key] = written(engine, key, value), value
    for key, (place, value) in values.items():
        assert engine.get(place, key, len(value)) == value
    assert engine.stats()["objects_read"] == 200


def test_pages_alternate_between_files(make: EngineFactory) -> None:
    engine = make(2, 4)
    fill(engine, 40)
    assert engine.stats()["page_allocs"] > 2
    assert engine.stats()["limit_maxbytes"] == 6 * PAGE


def test_a_page_without_values_is_free_again(make: EngineFactory) -> None:
    engine = make(4)
    places = fill(engine, 20)
    first = {key: place for key, place in places.items() if place[0] == places[b"k0"][0]}
    eventually(lambda: not engine.page(places[b"k0"][0])["active"])
    for key, place in first.items():
        assert engine.page(place[0])["version"] == place[1]
        engine.gone(place, key, 400_000)
    assert engine.page(places[b"k0"][0])["version"] == 0
    assert not engine.exists(places[b"k0"])
    assert engine.get(places[b"k0"], b"k0", 400_000) is None
    assert engine.stats()["page_reclaims"] == 1
    # An old place says nothing about the page's next use.
    engine.gone(places[b"k0"], b"k0", 400_000)
    assert engine.stats()["objects_used"] == 20 - len(first)


def test_without_a_free_page_the_oldest_is_dropped(make: EngineFactory) -> None:
    engine = make(3)
    places = fill(engine, 60)
    stats = engine.stats()
    assert stats["page_evictions"] > 0
    assert stats["objects_evicted"] > 0
    assert not engine.exists(places[b"k0"])
    assert engine.get(places[b"k59"], b"k59", 400_000) == bytes(400_000)
    assert stats["objects_used"] == sum(engine.exists(place) for place in places.values())


def test_a_page_is_not_used_again_while_a_read_keeps_it(make: EngineFactory) -> None:
    engine = make(3)
    places = fill(engine, 11)
    page, version, _ = places[b"k0"]
    eventually(lambda: not engine.page(page)["active"])
    kept = engine.keep(places[b"k0"], b"k0", 400_000)
    assert kept
    engine.evict(page, version)
    # The value is gone for others, and the page stays as it is for the read.
    assert not engine.exists(places[b"k0"])
    fill(engine, 40)
    assert engine.page(page)["version"] == version
    engine.release(kept)
    eventually(lambda: engine.page(page)["version"] != version)


def keep_oldest(engine: Engine, places: dict[bytes, tuple[int, int, int]]) -> int:
    """Begins a read of the oldest value whose page is complete."""
    key = next(key for key, place in places.items() if engine.exists(place))
    eventually(lambda: not engine.page(places[key][0])["active"])
    kept = engine.keep(places[key], key, 400_000)
    assert kept
    return kept


def test_a_slow_read_drops_no_further_page(make: EngineFactory) -> None:
    engine = make(6)
    kept = keep_oldest(engine, fill(engine, 70))
    before = engine.stats()
    fill(engine, 20)
    after = engine.stats()
    assert after["page_allocs"] > before["page_allocs"]
    assert after["page_evictions"] - before["page_evictions"] <= after["page_allocs"] - before["page_allocs"]
    engine.release(kept)


def test_where_each_page_is_read_a_single_page_is_dropped(make: EngineFactory) -> None:
    engine = make(6)
    places = fill(engine, 60)
    eventually(lambda: sum(engine.page(n)["active"] for n in range(6)) <= 1)
    held = [engine.keep(place, key, 400_000) for key, place in places.items() if engine.exists(place)]
    before = engine.stats()["page_evictions"]
    tries = [engine.put(b"key", bytes(400_000), COMPACT) for _ in range(20)]
    assert tries == [None] * 20
    assert engine.stats()["page_evictions"] == before + 1
    for kept in held:
        engine.release(kept)
    assert eventually(lambda: engine.put(b"key", bytes(400_000), COMPACT))
    assert engine.stats()["page_evictions"] == before + 1


def test_pages_of_a_bucket_are_for_it_alone(make: EngineFactory) -> None:
    engine = make(4, 2, buckets=(0, COMPACT))
    own = {n for n in range(6) if engine.page(n)["free_bucket"] == COMPACT}
    assert len(own) == 2
    assert not own & {place[0] for place in fill(engine, 40).values()}
    assert written(engine, b"key", b"value", COMPACT)[0] in own


def test_space_that_would_drop_a_page_can_be_refused(make: EngineFactory) -> None:
    engine = make(2)
    fill(engine, 12)
    eventually(lambda: engine.stats()["pages_free"] == 0)
    assert engine.put(b"key", b"value", COMPACT, may_drop=False) is None
    assert engine.stats()["page_evictions"] == 0
    eventually(lambda: engine.put(b"key", b"value", COMPACT) is not None)
    assert engine.stats()["page_evictions"] == 1


def test_every_changed_byte_is_found(make: EngineFactory, tmp_path: Path) -> None:
    engine = make(4)
    places = fill(engine, 12, 1000) | fill(engine, 8)
    page, version, offset = engine.put(b"mark", b"x" * 50) or (0, 0, 0)
    fill(engine, 8)
    eventually(lambda: b"mark" in (tmp_path / "0").read_bytes())
    del places
    with (tmp_path / "0").open("r+b") as file:
        at = (tmp_path / "0").read_bytes().find(b"mark") - 16
        for place in range(at, at + 16 + 4 + 50):
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1]))
            file.flush()
            # The last two bytes of the head are padding, and under the checksum, too.
            assert engine.get((page, version, offset), b"mark", 50) is None, place - at
            file.seek(place)
            file.write(bytes([byte]))
            file.flush()
    assert engine.get((page, version, offset), b"mark", 50) == b"x" * 50


def test_a_short_file_is_a_miss(make: EngineFactory, tmp_path: Path) -> None:
    engine = make(4)
    places = fill(engine, 30)
    eventually(lambda: not engine.page(places[b"k0"][0])["active"])
    os.truncate(tmp_path / "0", 1000)
    assert engine.get(places[b"k0"], b"k0", 400_000) is None


def test_two_engines_cannot_have_a_file(make: EngineFactory) -> None:
    make(2)
    with pytest.raises(OSError, match="in use by another process"):
        make(2)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory"):
        Engine([(str(tmp_path / "none" / "file"), 2, 0)], PAGE, WBUF)


@contextmanager
def failing_writes(above: int) -> Iterator[None]:
    """Writes of this process fail beyond this place of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (above, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_page_rests_after_a_write_error(make_for_writes: EngineFactory) -> None:
    pages = 24
    engine = make_for_writes(pages)
    fill(engine, 250)
    with failing_writes(MEGABYTE):

        def fails() -> bool:
            """Whether all open pages have failed. With eight write buffers some are open before the first error."""
            engine.put(b"key", bytes(400_000))
            return engine.stats()["pages_resting"] > 0 and not any(engine.page(n)["active"] for n in range(pages))

        eventually(fails)
        before = engine.stats()
        assert [engine.put(b"key", bytes(400_000)) for _ in range(50)] == [None] * 50
        # No page is dropped for a file that is not written.
        assert engine.stats() == before
        assert before["io_errors"] == before["pages_resting"] <= 8
    # The file is tried again, with another page.
    resting = [n for n in range(pages) if not engine.page(n)["version"]]
    place = eventually(lambda: engine.put(b"key", b"value"), 20.0)
    assert place[0] not in resting
    assert engine.get(place, b"key", 5) == b"value"
    assert engine.stats()["pages_resting"] == len(resting)


def test_a_full_device_is_asked_once_for_all_pages(tmp_path: Path) -> None:
    small = tmp_path / "small"
    call = f"import test_engine; test_engine.ask_once({str(small / 'file')!r})"
    script = f"import sys; sys.path[:0] = {sys.path!r}; {call}"
    subprocess.run([*in_tmpfs(small, "5m"), sys.executable, "-P", "-c", script], check=True)


def ask_once(file: str) -> None:
    """Takes all pages of a full device, for a process with a small tmpfs."""
    engine = Engine([(file, 65534, 0)], PAGE, WBUF)
    assert written(engine, b"first", b"value")
    begin = time.monotonic()
    assert engine.put(b"second", b"value", COMPACT) is None
    # The device takes a millisecond to find out: the time of a minute for 65533 pages.
    assert time.monotonic() - begin < 5
    assert engine.stats()["pages_free"] == 0
    engine.close()


def test_the_mode_of_files(make: EngineFactory, tmp_path: Path) -> None:
    """A new file is its user's alone, and a file that was there keeps its mode."""
    (tmp_path / "0").touch()
    (tmp_path / "0").chmod(0o644)
    before = os.umask(0)
    try:
        make(2, 2)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in ("0", "1")] == [0o644, 0o600]


LONG = 900_000


def places_of(engine: Engine, count: int, length: int = LONG) -> list[tuple[int, int, int]]:
    """Writes so many values with the key `key`."""
    return [written(engine, b"key", b"%08d" % n * (length // 8)) for n in range(count)]


def test_many_reads_at_a_time(make: EngineFactory) -> None:
    engine = make(64, threads=4)
    places = places_of(engine, 60)
    rounds = [random.Random(n).sample(range(60), 60) for n in range(5)]
    for numbers in rounds:
        found = engine.get_many([places[n] for n in numbers], b"key", LONG)
        assert found == [b"%08d" % n * (LONG // 8) for n in numbers]


def test_values_under_way_have_little_memory(make: EngineFactory) -> None:
    """Of 64 MB an eighth, whatever clients ask for, and all reads come to their end."""
    engine = make(64, threads=16)
    places = places_of(engine, 40)
    assert None not in engine.get_many(places, b"key", LONG)
    begun, peak, _ = engine.reads()
    assert begun == 40
    assert LONG < peak <= 8 * MEGABYTE


def test_a_read_above_the_bound_is_alone(tmp_path: Path, reader: str) -> None:
    length = 2_000_000
    with closing(Engine([(str(tmp_path / "file"), 16, 0)], PAGE, WBUF, io=reader, memory=8 * MEGABYTE)) as engine:
        places = places_of(engine, 4, length)
        for _ in range(3):
            assert None not in engine.get_many(places[:2], b"key", length)
        assert MEGABYTE < engine.reads()[1] < 2 * length


def test_an_end_gives_up_queued_reads(make: EngineFactory) -> None:
    engine = make(8)
    places = places_of(engine, 4)
    eventually(lambda: not engine.page(places[0][0])["active"] or engine.put(b"more", bytes(LONG)) is None)
    found = engine.get_many(places * 1000, b"key", LONG, stop=True)
    assert len(found) == 4000
    assert engine.reads()[0] < 1000
    assert found.count(None) > 3000


def test_a_record_of_an_earlier_use_is_not_taken_for_the_present(make: EngineFactory, tmp_path: Path) -> None:
    """A device that loses a write has the bytes of before: the same key, the same length, a right checksum."""
    engine = make(4)
    file = tmp_path / "0"

    def on_device(place: tuple[int, int, int], value: bytes) -> int:
        """Stores more, until the value leaves its buffer. Returns its record's place in the file."""
        eventually(lambda: engine.put(b"more", bytes(400_000)) and value in file.read_bytes())
        eventually(lambda: not engine.page(place[0])["active"] or engine.put(b"more", bytes(400_000)) is None)
        return file.read_bytes().find(value) - 19

    first = written(engine, b"key", b"old value")
    at = on_device(first, b"old value")
    before = file.read_bytes()[at : at + 30]
    assert engine.get(first, b"key", 9) == b"old value"
    place, count, value = first, 0, b""
    while place[0] != first[0] or place[1] == first[1] or place[2] != first[2]:
        engine.put(b"more", bytes(400_000))
        count += 1
        value = b"%09d" % count
        place = written(engine, b"key", value)
    assert engine.get(place, b"key", 9) == value
    assert on_device(place, value) == at
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(before)
    assert engine.exists(place)
    assert engine.get(place, b"key", 9) is None
