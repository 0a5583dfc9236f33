"""The secondary tier for vLLM against real daemons: a load gives the stored bytes, or a miss."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import serving  # noqa: F401  (vLLM's base classes)
from dumps import keys_in
from servers import Server, start_rmemcached
from suspended import suspended
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from rmemcached.client import Client
from rmemcached.connectors._blocks import HEAD, ITEM_OVERHEAD
from rmemcached.connectors.vllm import RMemcachedTier

MEGABYTE = 1 << 20
SECONDS = 30.0


@dataclasses.dataclass
class Model:
    """The part of vLLM's OffloadingConfig that the tier reads."""

    name: str = "org/model"
    dtype: str = "bfloat16"
    tokens_per_hash: int = 16
    blocks_per_chunk: int = 4
    layers: tuple[str, ...] = ("layer.0", "layer.1")
    tp_size: int = 1
    pp_size: int = 1
    pcp_size: int = 1
    dcp_size: int = 1
    canonical: bool = False
    layout: str | None = None

    def spec(self) -> Any:
        config = SimpleNamespace(
            model=SimpleNamespace(name=self.name, dtype=self.dtype),
            cache=SimpleNamespace(tokens_per_hash=self.tokens_per_hash, blocks_per_chunk=self.blocks_per_chunk),
            groups=(SimpleNamespace(tokens_per_block=16, layer_names=self.layers),),
            parallel=SimpleNamespace(
                tp_size=self.tp_size, pp_size=self.pp_size, pcp_size=self.pcp_size, dcp_size=self.dcp_size, rank=0
            ),
            replicated_layout=False,
            canonical_layout=self.canonical,
            kv_cache_layout=self.layout,
        )
        return SimpleNamespace(config=config)


class Engine:
    """Uses a tier like vLLM's TieringOffloadingManager: from a single thread, in steps."""

    def __init__(self, address: tuple[str, int], chunks: int, size: int, model: Model, **params: Any) -> None:
        self.memory = numpy.zeros((chunks, size), dtype=numpy.int8)
        self.view = memoryview(cast(Any, self.memory))
        self.tier = RMemcachedTier(
            offloading_spec=model.spec(),
            primary_kv_view=self.view,
            tier_type="RMemcachedTier",
            backpressure_detector=None,
            host=address[0],
            port=address[1],
            **params,
        )
        self.jobs = 0

    def lookup(self, keys: list[bytes], request: str = "request") -> list[bool]:
        context = SimpleNamespace(req_id=request)
        end = time.monotonic() + SECONDS
        while True:
            results = [self.tier.lookup(key, context) for key in keys]
            if LookupResult.RETRY not in results:
                return [result is LookupResult.HIT for result in results]
            assert time.monotonic() < end
            self.tier.on_schedule_end(SimpleNamespace(new_req_ids=(), preempted_req_ids=()))

    def submit(self, keys: list[bytes], chunks: list[int], load: bool) -> int:
        self.jobs += 1
        job = TransferJob(self.jobs, keys, numpy.array(chunks), load, SimpleNamespace(req_id="request"))
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return self.jobs

    def finish(self) -> dict[int, JobResult]:
        self.tier.drain_jobs()
        return {result.job_id: result for result in self.tier.get_finished_jobs()}

    def store(self, keys: list[bytes], chunks: list[int]) -> JobResult:
        number = self.submit(keys, chunks, load=False)
        return self.finish()[number]

    def load(self, keys: list[bytes], chunks: list[int]) -> JobResult:
        number = self.submit(keys, chunks, load=True)
        return self.finish()[number]


MakeEngine = Callable[..., Engine]


@pytest.fixture
def engine() -> Iterator[MakeEngine]:
    made: list[Engine] = []

    def make(server: Any, chunks: int, size: int, model: Model | None = None, **params: Any) -> Engine:
        made.append(Engine((server.host, server.port), chunks, size, model or Model(), **params))
        return made[-1]

    yield make
    for one in made:
        one.tier.shutdown()


def keys_of(count: int) -> list[bytes]:
    return [os.urandom(32) + bytes(4) for _ in range(count)]


@pytest.mark.parametrize("transport", ["tcp", "soft_shm", "soft_iw"])
def test_what_is_stored_is_loaded(engine: MakeEngine, rmemcached_server: Callable[..., Server], transport: str) -> None:
    """Chunks of any size, also above the server's item size, come to slots of this engine and of a second engine."""
    server = rmemcached_server("-m", "128", "-t", "1")
    for size in (1, HEAD.size, 100_000, MEGABYTE - ITEM_OVERHEAD, MEGABYTE, 3 * MEGABYTE + 7):
        one, other = (engine(server, 6, size, transport=transport) for _ in range(2))
        one.memory[:3] = numpy.frombuffer(os.urandom(3 * size), dtype=numpy.int8).reshape(3, size)
        keys = keys_of(3)
        assert one.lookup(keys, "first") == [False] * 3
        one.tier.on_request_finished(SimpleNamespace(req_id="first"))
        result = one.store(keys, [2, 0, 1])
        assert result.success and result.transfer_bytes == 3 * size and result.transfer_time is not None
        assert one.lookup([*keys, b"x" * 36], "second") == [True] * 3 + [False]
        for engine_, slots in ((one, [3, 4, 5]), (other, [5, 4, 0])):
            assert engine_.lookup(keys, "third") == [True] * 3
            assert engine_.load(keys, slots).success
            for slot, source in zip(slots, [2, 0, 1], strict=True):
                assert (engine_.memory[slot] == one.memory[source]).all()


def test_two_models_never_share(engine: MakeEngine, shared_rmemcached: Server) -> None:
    """Engines with any difference do not find each other's chunks."""
    models = [
        Model(),
        Model(name="org/model2"),
        Model(dtype="fp8"),
        Model(dtype="fp8_e4m3"),
        Model(dtype="fp8_e5m2"),
        Model(tokens_per_hash=32),
        Model(blocks_per_chunk=8),
        Model(layers=("layer.0", "layer.2")),
        Model(tp_size=2),
        Model(pp_size=2),
        Model(pcp_size=2),
        Model(dcp_size=2),
        Model(canonical=True, layout="NHD"),
        Model(canonical=True, layout="HND"),
    ]
    keys = keys_of(2)
    engines = [engine(shared_rmemcached, 4, 1000, model, prefix="models:") for model in models]
    engines += [engine(shared_rmemcached, 4, 1001, models[0], prefix="models:")]
    for number, one in enumerate(engines):
        assert one.lookup(keys) == [False, False], number
        one.memory[:2] = number
        assert one.store(keys, [0, 1]).success
    for number, one in enumerate(engines):
        assert one.load(keys, [2, 3]).success
        assert (one.memory[2:] == number).all()


def test_keys_over_250_bytes(engine: MakeEngine, shared_rmemcached: Server) -> None:
    """Long block hashes that differ in their last byte only, or in the group, have chunks of their own."""
    one = engine(shared_rmemcached, 8, 100, prefix="long:")
    keys = [b"h" * 200 + bytes([last]) + bytes([0, 0, 0, group]) for last in (0, 1) for group in (0, 1)]
    one.memory[:4] = numpy.arange(4).reshape(4, 1)
    assert one.store(keys, [0, 1, 2, 3]).success
    assert one.load(keys, [4, 5, 6, 7]).success
    assert (one.memory[4:] == one.memory[:4]).all()


@pytest.mark.parametrize("size", [1000, 3 * MEGABYTE])
def test_what_is_missing_is_a_miss_and_stored_again(
    engine: MakeEngine, rmemcached_server: Callable[..., Server], size: int
) -> None:
    """A load keeps the chunks found. A chunk lost after its lookup, as a whole or in part, is a miss for later lookups,
    until the chunk is stored again."""
    server = rmemcached_server("-m", "64", "-t", "1")
    one = engine(server, 4, size)
    one.memory[:2] = [[1], [2]]
    keys = keys_of(2)
    assert one.store(keys, [0, 1]).success
    assert one.lookup(keys) == [True, True]
    with Client(server.address, default_noreply=False) as client:
        names = keys_in(client)
        lost = [name for name in names if name.startswith(b"p:")] or [n for n in names if keys[0].hex().encode() in n]
        assert client.delete(sorted(lost)[0])
    result = one.load(keys, [2, 3])
    found = list(result.successful_keys or ())
    assert not result.success and len(found) == 1
    assert one.lookup(keys) == [key in found for key in keys]
    assert one.store(keys, [0, 1]).success
    assert one.load(keys, [2, 3]).success
    assert (one.memory[2:] == one.memory[:2]).all()


def test_a_server_that_is_killed_and_started_again(engine: MakeEngine) -> None:
    """Transfers under way end, and no slot that counts as loaded has foreign bytes. Then all is as before."""
    size, count = 3 * MEGABYTE, 8
    server = start_rmemcached("-m", "256", "-I", "8m", "-t", "2")
    one = engine(server, 2 * count, size, timeout=5.0)
    one.memory[:count] = numpy.arange(1, count + 1).reshape(count, 1)
    keys, other = keys_of(count), keys_of(count)
    slots = list(range(count, 2 * count))
    assert one.store(keys, list(range(count))).success
    numbers = [one.submit(keys, slots, load=True), one.submit(other, list(range(count)), load=False)]
    server.kill()
    results = one.finish()
    assert sorted(results) == numbers
    loaded = keys if results[numbers[0]].success else results[numbers[0]].successful_keys or ()
    for key in loaded:
        assert (one.memory[count + keys.index(key)] == one.memory[keys.index(key)]).all()
    assert one.lookup(keys, "after") == [False] * count
    assert not one.load(keys, slots).success
    again = Server(server.command, server.port)
    try:
        # Each lost connection fails one call: several calls may fail before all connections are new.
        attempts = 0
        while not one.store(keys, list(range(count))).success:
            attempts += 1
            assert attempts <= 10
        assert one.lookup(keys, "again") == [True] * count
        assert one.load(keys, slots).success
        assert (one.memory[count:] == one.memory[:count]).all()
    finally:
        one.tier.shutdown()
        again.stop()


@pytest.mark.without_direct("a direct read asks no server")
def test_no_call_waits_for_the_server(engine: MakeEngine, rmemcached_server: Callable[..., Server]) -> None:
    """While the server stands still, submits and lookups return. When the server goes on, all is done."""
    server = rmemcached_server("-t", "1")
    one = engine(server, 2, 1000, timeout=60.0)
    one.memory[0] = 7
    first, second = keys_of(2)
    assert one.store([first], [0]).success
    with suspended(server.pid):
        numbers = [one.submit([second], [0], load=False), one.submit([first], [1], load=True)]
        for _ in range(3):
            assert one.tier.lookup(first, SimpleNamespace(req_id="a")) is LookupResult.RETRY
            one.tier.on_schedule_end(None)
        assert list(one.tier.get_finished_jobs()) == []
    assert {number: result.success for number, result in one.finish().items()} == dict.fromkeys(numbers, True)
    assert one.lookup([first, second], "a") == [True, True]
    assert (one.memory[1] == 7).all()


def test_what_was_known_is_forgotten_with_the_request(engine: MakeEngine, shared_rmemcached: Server) -> None:
    """A request keeps its answer, unless this engine stores the chunk. A new request asks the server again."""
    one, other = (engine(shared_rmemcached, 1, 10, prefix="requests:") for _ in range(2))
    keys = keys_of(2)
    assert one.lookup(keys, "first") == [False, False]
    assert other.store(keys[:1], [0]).success
    assert one.lookup(keys, "first") == [False, False]
    assert one.store(keys[1:], [0]).success
    assert one.lookup(keys, "first") == [False, True]
    one.tier.on_request_finished(SimpleNamespace(req_id="first"))
    assert one.lookup(keys, "second") == [True, True]


def test_shutdown_lets_the_memory_go(engine: MakeEngine, shared_rmemcached: Server) -> None:
    """Waiting jobs fail, and are reported. The primary tier can release its view."""
    one = engine(shared_rmemcached, 4, MEGABYTE, prefix="shutdown:")
    numbers = [one.submit(keys_of(4), [0, 1, 2, 3], load=False) for _ in range(20)]
    one.tier.shutdown()
    one.tier.shutdown()
    assert [result.job_id for result in sorted(one.tier.get_finished_jobs(), key=lambda one: one.job_id)] == numbers
    one.view.release()


def test_wrong_parameters(shared_rmemcached: Server) -> None:
    address = (shared_rmemcached.host, shared_rmemcached.port)
    for params, message in (({"workers": 0}, "workers"), ({"prefix": "a b"}, "prefix"), ({"locality": "x"}, "x")):
        with pytest.raises(ValueError, match=message):
            Engine(address, 1, 1, Model(), **params)


def test_a_view_that_cannot_be_taken(shared_rmemcached: Server) -> None:
    """A refused view leaves no thread and no descriptor behind."""
    before = len(os.listdir("/proc/self/fd"))
    view = memoryview(cast(Any, numpy.zeros((4, 20), dtype=numpy.int8)[:, :10]))
    with pytest.raises(TypeError, match="contiguous"):
        RMemcachedTier(Model().spec(), view, "RMemcachedTier", host=shared_rmemcached.host, port=shared_rmemcached.port)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("rmemcached-blocks")] == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_vllm() -> None:
    """Without vLLM the import gives the reason in a line."""
    code = "import sys; sys.modules['vllm'] = None; import rmemcached.connectors.vllm"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: rmemcached.connectors.vllm is for vLLM 0.33, which")
