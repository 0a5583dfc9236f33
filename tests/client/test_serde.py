"""Serdes besides pymemcache's, and arrays without copies."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pymemcache.serde
import pytest
import zstandard
from classic_relay import ClassicRelay
from conftest import Backend
from pymemcache.client.hash import HashClient
from transport import RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client, Gathered, MemcacheIllegalInputError, serde
from rmemcached.client.transport._buffers import usage


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x


class Text(str):
    pass


OBJECTS = [b"", b"bytes", "text", "ümlaut", "", 5, -(2**70), True, None, 1.5, [1, {"a": b"b"}], Point(3), Text("sub")]
PAIRS = [
    (serde.pickle_serde, pymemcache.serde.pickle_serde),
    (serde.PickleSerde(2), pymemcache.serde.PickleSerde(2)),
    (serde.compressed_serde, pymemcache.serde.compressed_serde),
    (serde.CompressedSerde(min_compress_len=50), pymemcache.serde.CompressedSerde(min_compress_len=50)),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_same_bytes_and_flags_as_pymemcache(ours: Any, theirs: Any) -> None:
    for value in [*OBJECTS, b"text" * 1000, os.urandom(500), bytes(5000), list(range(1000))]:
        mine, flags = ours.serialize("key", value)
        other, number = theirs.serialize("key", value)
        other = other.encode() if isinstance(other, str) else other
        assert (mine, flags) == (other, number)
        assert ours.deserialize("key", other, number) == value
        assert theirs.deserialize("key", mine, flags) == value


def test_functions_as_in_pymemcache() -> None:
    for value in OBJECTS:
        for ours, theirs in (
            (serde.python_memcache_serializer, pymemcache.serde.python_memcache_serializer),
            (serde.get_python_memcache_serializer(1), pymemcache.serde.get_python_memcache_serializer(1)),
        ):
            other, flags = theirs("key", value)
            assert ours("key", value) == (other.encode() if isinstance(other, str) else other, flags)
    assert serde.python_memcache_deserializer("key", b"5", serde.FLAG_LONG) == 5
    assert serde.python_memcache_deserializer("key", b"no pickle", serde.FLAG_PICKLE) is None
    assert serde.python_memcache_deserializer("key", b"what", 1 << 9) == b"what"
    wrapping = serde.LegacyWrappingSerde(None, lambda key, value, flags: value.decode())
    assert wrapping.serialize("key", b"x") == (b"x", 0)
    assert wrapping.deserialize("key", b"x", 0) == "x"
    for name in ("FLAG_BYTES", "FLAG_PICKLE", "FLAG_INTEGER", "FLAG_LONG", "FLAG_COMPRESSED", "FLAG_TEXT"):
        assert getattr(serde, name) == getattr(pymemcache.serde, name)


ARRAYS: list[Any] = [
    numpy.arange(10.0),
    numpy.arange(24, dtype="<i2").reshape(2, 3, 4),
    numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    numpy.arange(100.0)[::3],
    numpy.arange(12, dtype=">u4"),
    numpy.array(5.0),
    numpy.empty((0, 3)),
    numpy.array([True, False]),
    numpy.array(["2020-01-01", "NaT"], dtype="datetime64[s]"),
    numpy.array([1 + 2j]),
    numpy.array([b"ab", b"c"]),
    numpy.array(["ä", "b"]),
    numpy.zeros(3, dtype=[("a", "<i4"), ("b", "f8", (2,))]),
    numpy.array([1.5], dtype="f2"),
    numpy.arange(100_000.0),
    numpy.arange(1 << 18, dtype="u4").reshape(512, 512),
]


@pytest.mark.parametrize("number", range(len(ARRAYS)))
@pytest.mark.parametrize("kind", [serde.NumpySerde, serde.Pickle5Serde])
@pytest.mark.parametrize("writable", [False, True])
def test_arrays(make_client: Callable[..., Client], key: str, number: int, kind: Any, writable: bool) -> None:
    array = ARRAYS[number]
    client = make_client(serde=kind(writable=writable))
    client.set(key, array)
    for found in (client.get(key), client.gets(key)[0], client.get_many([key])[key], client.gat(key)):
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        numpy.testing.assert_array_equal(found, array)
        if array.size and (writable or kind is serde.NumpySerde or array.nbytes >= 1024):
            assert found.flags.writeable is writable
        if array.flags.contiguous:
            assert found.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("kind", ["sync", "pipeline", "async", "many", "noreply"])
def test_objects_with_arrays(backend: Backend, make_client: Callable[..., Client], key: str, kind: str) -> None:
    """An object with arrays of all sizes is stored and comes back."""
    sizes = (0, 1, 1000, 2000, 5000, 20_000, 300_000, 500_000)
    value = {"arrays": [numpy.arange(size, dtype="u1") for size in sizes], "text": "text", "raw": bytearray(2000)}
    made = serde.Pickle5Serde()
    if kind == "async":

        async def body() -> Any:
            async with AsyncClient(
                backend.server.address, transport=backend.transport, timeout=20, serde=made, default_noreply=False
            ) as client:
                await asyncio.gather(*(client.set(f"{key}-{number}", value) for number in range(5)))
                await client.set(key, value, noreply=True)
                return [await client.get(key), *await asyncio.gather(*(client.get(f"{key}-{n}") for n in range(5)))]

        results = asyncio.run(body())
    else:
        client = make_client(serde=made)
        if kind == "sync":
            client.set(key, value)
        elif kind == "noreply":
            client.set(key, value, noreply=True)
        elif kind == "many":
            client.set_many({key: value, key + "-2": [value, 5]})
            assert client.get(key + "-2")[1] == 5
        else:
            with client.pipeline() as pipeline:
                pipeline.set(key, value)
                pipeline.get(key)
        results = [client.get(key)] + ([pipeline.results[1]] if kind == "pipeline" else [])
    for found in results:
        assert (found["text"], found["raw"]) == ("text", bytearray(2000))
        for mine, theirs in zip(found["arrays"], value["arrays"], strict=True):
            numpy.testing.assert_array_equal(mine, theirs)


def test_arrays_outlive_everything(make_client: Callable[..., Client], backend: Backend, key: str) -> None:
    """The arrays' memory is given back when nobody sees the arrays, and not written before."""
    client = make_client(serde=serde.Pickle5Serde())
    value = [numpy.full(400_000, number, dtype="u1") for number in range(2)]
    client.set(key, value)
    found = client.get(key)
    client.set(key, [numpy.full(400_000, 9, dtype="u1")] * 2)
    for _ in range(20):
        client.get(key)
    client.close()
    for mine, theirs in zip(found, value, strict=True):
        numpy.testing.assert_array_equal(mine, theirs)
    with pytest.raises(ValueError, match="read-only"):
        found[0][0] = 1
    del found, mine
    gc.collect()
    assert usage()["regions"] == usage()["unused"]


@pytest.mark.parametrize("kind", [serde.Pickle5Serde(), serde.NumpySerde(), serde.ZstdSerde(), serde.pickle_serde])
def test_values_of_others_are_what_they_are(make_client: Callable[..., Client], key: str, kind: Any) -> None:
    make_client().set(key, bytes(100_000))
    client = make_client(serde=kind)
    assert client.get(key) == bytes(100_000)
    assert type(client.get(key)) is bytes
    make_client(serde=serde.pickle_serde).set(key, "text")
    assert client.get(key) == "text"
    make_client(serde=serde.pickle_serde).set(key, 12)
    assert client.get(key) == 12


def test_with_compression(make_client: Callable[..., Client], key: str) -> None:
    value = {"a": numpy.zeros(200_000), "b": list(range(1000))}
    for made in (
        serde.ZstdSerde(serde.Pickle5Serde()),
        serde.CompressedSerde(serde=serde.Pickle5Serde()),
        serde.ZstdSerde(serde.pickle_serde, min_size=1, level=19),
    ):
        client = make_client(serde=made)
        client.set(key, value)
        assert len(make_client().get(key)) < 10_000
        found = client.get(key)
        numpy.testing.assert_array_equal(found["a"], value["a"])
        assert found["b"] == value["b"]
        noise = os.urandom(5000)
        client.set(key, noise)
        assert make_client().get(key) == noise
        assert client.get(key) == noise
    arrays = serde.ZstdSerde(serde.NumpySerde())
    client = make_client(serde=arrays)
    for array in (numpy.zeros(10_000), numpy.arange(3)):
        client.set(key, array)
        numpy.testing.assert_array_equal(client.get(key), array)


def test_a_bomb_is_refused() -> None:
    made = serde.ZstdSerde(max_size=10_000)
    exact, _ = made.serialize("key", bytes(10_000))
    assert made.deserialize("key", exact, serde.FLAG_ZSTD) == bytes(10_000)
    bomb, flags = made.serialize("key", bytes(10_001))
    with pytest.raises(ValueError, match="10001 bytes, and max_size is 10000"):
        made.deserialize("key", bomb, flags)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    for damaged in (silent, b"", b"xyz", exact[:-3], b"\x28\xb5\x2f\xfd"):
        with pytest.raises(ValueError, match="damaged"):
            made.deserialize("key", damaged, serde.FLAG_ZSTD)


def test_damaged_values() -> None:
    """A value with a cut or changed head is refused, and nothing is read beyond the end."""
    made = serde.Pickle5Serde()
    whole = bytes(made.serialize("key", [numpy.arange(1000), numpy.arange(2000)])[0])
    for length in [*range(0, 400), len(whole) - 1]:
        with pytest.raises(ValueError, match="damaged"):
            made.deserialize("key", whole[:length], serde.FLAG_BUFFERS)
    with pytest.raises(ValueError, match="damaged"):
        made.deserialize("key", whole + b"x", serde.FLAG_BUFFERS)
    for head in (struct.pack("<II", 2**31, 5), struct.pack("<II", 0, 0), struct.pack("<IIQ", 1, 0, 2**63)):
        with pytest.raises(ValueError, match="damaged"):
            made.deserialize("key", head + bytes(100), serde.FLAG_BUFFERS)

    arrays = serde.NumpySerde()
    whole = bytes(arrays.serialize("key", numpy.arange(100.0))[0])
    for length in [*range(0, 130), len(whole) - 1]:
        with pytest.raises(ValueError, match="damaged"):
            arrays.deserialize("key", whole[:length], serde.FLAG_ARRAY)
    for change in (
        (b"<f8", b"|O8"),
        (b"(100,)", b"(-10,)"),
        (b"(100,)", b"(10, )"),
        (b"(100,)", b"(999,)"),
        (b"(100,)", b"(1.5,)"),
        (b"'descr'", b"'other'"),
        (b"{'descr'", b"__import"),
    ):
        damaged = whole.replace(*change)
        assert len(damaged) == len(whole)
        with pytest.raises(ValueError, match="damaged"):
            arrays.deserialize("key", damaged, serde.FLAG_ARRAY)


def test_what_numpy_serde_refuses(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=serde.NumpySerde())
    with pytest.raises(ValueError, match="Python objects"):
        client.set(key, numpy.array([object()]))
    for value in ([1], None, numpy.ma.masked_array([1, 2], [True, False]), numpy.float64(1)):
        with pytest.raises(TypeError, match="NumpySerde"):
            client.set(key, value)
    client.set(key, "text")
    assert client.get(key) == "text"
    client = make_client(serde=serde.NumpySerde(serde.pickle_serde))
    client.set(key, [1])
    assert client.get(key) == [1]


def test_npy_files() -> None:
    """A stored array has the content of a .npy file."""
    import io

    array = numpy.arange(12.0).reshape(3, 4)
    value = bytes(serde.NumpySerde().serialize("key", array)[0])
    numpy.testing.assert_array_equal(numpy.load(io.BytesIO(value), allow_pickle=False), array)


@pytest.mark.device("scatter entries")
def test_gathered(make_client: Callable[..., Client], make_relay: Callable[..., ClassicRelay], key: str) -> None:
    parts = [b"a" * 10, bytearray(b"b" * 5000), memoryview(b"c" * 300_000), b"", numpy.arange(4, dtype="u1")]
    gathered = Gathered(parts)
    joined = b"".join(bytes(part) for part in parts)
    assert (len(gathered), gathered.nbytes, bytes(gathered)) == (len(joined), len(joined), joined)
    client = make_client()
    for _ in range(2):
        client.set(key, gathered)
        assert client.get(key) == joined
    client.append(key, Gathered([b"x", b"y"]))
    assert client.get(key) == joined + b"xy"
    client.set(key, Gathered([]))
    assert client.get(key) == b""
    with pytest.raises(BufferError):
        Gathered([numpy.arange(10)[::2]])
    with pytest.raises(TypeError):
        Gathered([5])
    with Client(make_relay().address, transport="tcp", timeout=20, default_noreply=False) as classic:
        classic.set(key, gathered)
        assert classic.get(key) == joined


@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
@pytest.mark.parametrize("small", [0, 1, 14, 15, 200])
def test_large_values_in_several_places(rmemcached_server: Any, transport: str, key: str, small: int) -> None:
    """The server reads the parts in place, or as a copy where many small parts lie close together."""
    server = rmemcached_server("-I", "64m", "-m", "256")
    pieces = [bytes([number]) * (number % 7 + 1) for number in range(small)]
    first = bytearray(b"a") * (5 << 20)
    parts = [first, *pieces, numpy.full(6 << 20, 7, "u1"), b"end"]
    whole = b"".join(bytes(part) for part in parts)
    with Client(server.address, transport=transport, timeout=20, default_noreply=False) as client:
        before = usage()["regions"]
        assert client.set(key, Gathered(parts)) is True
        copied = usage()["regions"] > before
        assert copied == (transport == "verbs" or (small > 14 and transport in ("soft_iw", "soft_shm")))
        assert client.get(key) == whole
        assert client.append(key, Gathered(parts[1:])) is True
        assert client.get(key) == whole + whole[5 << 20 :]
        assert client.set(key, Gathered(parts), noreply=True) is True
        # The parts are the caller's again, though the set has no answer.
        first[:] = b"b" * (5 << 20)
        assert client.get(key) == whole


def test_too_large_for_the_server(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=serde.Pickle5Serde())
    for _ in range(3):
        with pytest.raises(Exception, match="too large"):
            client.set(key, [numpy.zeros(9 << 20, dtype="u1")])
        client.set(key, [1])
        assert client.get(key) == [1]


def test_threads_copies_and_other_clients(make_client: Callable[..., Client], backend: Backend, key: str) -> None:
    made = serde.ZstdSerde(serde.Pickle5Serde())
    client = make_client(serde=made)
    value = {"a": numpy.arange(20_000)}

    def work(number: int) -> bool:
        name = f"{key}-{number % 4}"
        client.set(name, value)
        return bool((client.get(name)["a"] == value["a"]).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(80)))
    for again in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
        numpy.testing.assert_array_equal(again.get(f"{key}-0")["a"], value["a"])
        again.close()

    class Ours(HashClient):
        client_class = Client

    if backend.transport == "tcp":
        hashed = Ours([backend.server.address], serde=made)
        hashed.set(key, value, noreply=False)
        numpy.testing.assert_array_equal(hashed.get(key)["a"], value["a"])
        hashed.close()


def test_a_serde_of_someone_elses(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=pymemcache.serde.pickle_serde)
    client.set(key, Point(5))
    assert client.get(key) == Point(5)
    with pytest.raises(MemcacheIllegalInputError):
        make_client().set(key, "ü")


def test_without_the_libraries() -> None:
    program = """
import pickle
import sys
sys.modules["zstandard"] = sys.modules["numpy"] = sys.modules["pymemcache"] = None
from rmemcached.client import serde
assert serde.Pickle5Serde().serialize("key", pickle.PickleBuffer(bytes(5000)))[1] == serde.FLAG_BUFFERS
try:
    serde.ZstdSerde()
except ImportError as error:
    assert "pip install 'rmemcached[zstd]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
