"""The engine of external storage: pages, write buffers and records, in files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from polling import eventually

from rmemcached.flash._testing import Engine

MEGABYTE = 1 << 20
PAGE, WBUF = 4 * MEGABYTE, 2 * MEGABYTE
COMPACT = 1

EngineFactory = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[EngineFactory]:
    """make(pages, ...) makes an engine whose files have so many pages."""
    made: list[Engine] = []

    def engine(*pages: int, buckets: tuple[int, ...] = ()) -> Engine:
        kinds = buckets or (0,) * len(pages)
        paths = [(str(tmp_path / str(n)), count, kinds[n]) for n, count in enumerate(pages)]
        made.append(Engine(paths, PAGE, WBUF))
        return made[-1]

    yield engine
    for one in made:
        one.close()


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
