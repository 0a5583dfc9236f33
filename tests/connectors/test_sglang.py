"""The storage back end for SGLang's HiCache against real daemons: a load gives the stored bytes, or a miss."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import serving  # noqa: F401  (SGLang's base class)
from concurrency import in_child
from dumps import keys_in
from servers import Server, start_rmemcached
from suspended import suspended

from rmemcached.client import Client
from rmemcached.connectors._blocks import HEAD
from rmemcached.connectors.sglang import RMemcachedStorage

MEGABYTE = 1 << 20
SIZES = [1, HEAD.size, 100_000, MEGABYTE, 3 * MEGABYTE + 7]


@dataclasses.dataclass
class Config:
    """The part of SGLang's HiCacheStorageConfig that the back end reads."""

    extra_config: dict[str, Any] | None = None
    model_name: str = "org/model"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    dcp_rank: int = 0
    dcp_size: int = 1
    is_mla_model: bool = False
    model_identity_hash: str | None = None


class Tensor:
    """The part of a torch.Tensor of bytes that the back end uses."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_cpu = True
        self.device = "cpu"

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else Tensor(numpy.ascontiguousarray(self.array))


class Pool:
    """A host pool of pages, each in `parts` pieces, with the attributes of SGLang's HostKVCache."""

    def __init__(
        self, pages: int, size: int, parts: int = 2, layout: str = "page_first", dtype: str = "bf16", device: str = ""
    ) -> None:
        self.memory = numpy.zeros((pages, parts, size), dtype=numpy.uint8)
        self.layout = layout
        self.dtype = dtype
        self.page_size = 4
        self.start_layer, self.end_layer = 0, 3
        if device:
            # Both kinds of FP8 are stored as torch.uint8.
            self.device_pool = SimpleNamespace(dtype=device, store_dtype=dtype)

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        pages = [index // self.page_size for index in indices[:: self.page_size]]
        places = [self.memory[page, part] for page in pages for part in range(self.memory.shape[1])]
        return [int(place.ctypes.data) for place in places], [place.nbytes for place in places]

    def tokens(self, *pages: int) -> list[int]:
        """The indices of the pages' tokens."""
        return [page * self.page_size + token for page in pages for token in range(self.page_size)]


MakeStorage = Callable[..., RMemcachedStorage]


@pytest.fixture
def storage() -> Iterator[MakeStorage]:
    made: list[RMemcachedStorage] = []

    def make(server: Any, pool: Pool | None = None, config: Config | None = None, **extra: Any) -> RMemcachedStorage:
        entries = {"backend_name": "rmemcached", "module_path": "m", "class_name": "c"}
        extra |= {"host": server.host, "port": server.port, **entries}
        made.append(RMemcachedStorage(dataclasses.replace(config or Config(), extra_config=extra), {}))
        if pool is not None:
            made[-1].register_mem_pool_host(pool)
        return made[-1]

    yield make
    for one in made:
        one.close()


def hashes(count: int) -> list[str]:
    return [os.urandom(32).hex() for _ in range(count)]


def fill(memory: Any) -> None:
    memory[...] = numpy.frombuffer(os.urandom(memory.size), dtype=numpy.uint8).reshape(memory.shape)


@pytest.mark.parametrize("transport", ["tcp", "soft_shm", "soft_iw"])
def test_what_is_stored_is_loaded(
    storage: MakeStorage, rmemcached_server: Callable[..., Server], transport: str
) -> None:
    """Pages of any size are loaded as stored: in the pool's own memory, in a piece or several, and in tensors."""
    server = rmemcached_server("-m", "128", "-t", "1")
    for size in SIZES:
        for parts in (1, 2):
            pool = Pool(6, size, parts)
            one = storage(server, pool, transport=transport, interface_v1=1)
            keys = hashes(3)
            fill(pool.memory[:3])
            assert one.batch_exists(keys) == 0
            assert one.batch_get_v1(keys, pool.tokens(3, 4, 5)) == [False] * 3
            assert one.batch_set_v1(keys[:2], pool.tokens(0, 1)) == [True, True]
            assert one.batch_exists(keys) == 2
            assert one.batch_set_v1(keys, pool.tokens(0, 1, 2)) == [True] * 3
            assert one.batch_exists(keys) == 3 and one.exists(keys[2])
            assert one.batch_get_v1(keys, pool.tokens(3, 4, 5)) == [True] * 3
            assert (pool.memory[3:] == pool.memory[:3]).all()
        tensors = [Tensor(numpy.frombuffer(os.urandom(size), dtype=numpy.uint8)) for _ in range(3)]
        targets = [Tensor(numpy.zeros(size, dtype=numpy.uint8)) for _ in range(3)]
        one = storage(server, transport=transport)
        assert one.get(keys[0], targets[0]) is None
        assert one.batch_set(keys, tensors)
        assert one.batch_exists([*keys, "other"]) == 3
        assert one.batch_get([*keys[:2], "other"], targets) == [*targets[:2], None]
        assert one.get(keys[2], targets[2]) is targets[2]
        assert all((a.array == b.array).all() for a, b in zip(tensors, targets, strict=True))
        assert one.clear() and one.batch_exists(keys) == 0


def fp8(kind: str) -> Pool:
    return Pool(2, 100, dtype="torch.uint8", device=f"torch.float8_{kind}")


def other_layers() -> Pool:
    pool = Pool(2, 100)
    pool.start_layer, pool.end_layer = 4, 7
    return pool


def test_two_models_never_share(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """Engines with any difference do not find each other's pages."""
    made: list[tuple[Config, Pool, dict[str, Any]]] = [
        (Config(), Pool(2, 100), {}),
        (Config(model_name="org/model2"), Pool(2, 100), {}),
        (Config(tp_size=2), Pool(2, 100), {}),
        (Config(tp_size=2, tp_rank=1), Pool(2, 100), {}),
        (Config(pp_size=2), Pool(2, 100), {}),
        (Config(pp_size=2, pp_rank=1), Pool(2, 100), {}),
        (Config(attn_cp_size=2), Pool(2, 100), {}),
        (Config(attn_cp_size=2, attn_cp_rank=1), Pool(2, 100), {}),
        (Config(is_mla_model=True, dcp_size=2, tp_size=2), Pool(2, 100), {}),
        (Config(is_mla_model=True, dcp_size=2, dcp_rank=1, tp_size=2, tp_rank=1), Pool(2, 100), {}),
        (Config(), Pool(2, 100, layout="layer_first"), {}),
        (Config(), Pool(2, 100, dtype="fp8"), {}),
        (Config(), other_layers(), {}),
        (Config(), fp8("e4m3fn"), {}),
        (Config(), fp8("e5m2"), {}),
        (Config(), fp8("e4m3fnuz"), {}),
        (Config(model_identity_hash="a"), Pool(2, 100), {}),
        (Config(model_identity_hash="b"), Pool(2, 100), {}),
        (Config(), Pool(2, 100), {"extra_backend_tag": "a"}),
        (Config(), Pool(2, 100), {"extra_backend_tag": "b"}),
    ]
    keys = hashes(1)
    ones = [
        storage(shared_rmemcached, pool, config, prefix="models:", interface_v1=1, **extra)
        for config, pool, extra in made
    ]
    for number, (one, (_, pool, _)) in enumerate(zip(ones, made, strict=True)):
        assert one.batch_exists(keys) == 0, number
        assert one.batch_get_v1(keys, pool.tokens(1)) == [False], number
        pool.memory[0] = number
        assert one.batch_set_v1(keys, pool.tokens(0)) == [True]
    for number, (one, (_, pool, _)) in enumerate(zip(ones, made, strict=True)):
        assert one.batch_get_v1(keys, pool.tokens(1)) == [True]
        assert (pool.memory[1] == number).all()
    assert ones[0].clear()
    assert [one.batch_exists(keys) for one in ones] == [0] + [1] * (len(ones) - 1)


def test_what_only_the_engine_knows_of_its_model(
    storage: MakeStorage, shared_rmemcached: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that differ in weights or in their kind of FP8 do not share pages: only SGLang's engine knows the
    difference."""
    first = {"model_path": "org/model", "revision": None, "kv_cache_dtype": "fp8_e4m3", "quantization": None}
    others = [{"kv_cache_dtype": "fp8_e5m2"}, {"revision": "v2"}, {"quantization": "awq"}, {"model_path": "/models/b"}]
    keys = hashes(1)
    for number, known in enumerate([first, *({**first, **other} for other in others)]):
        context = SimpleNamespace(get_model=lambda known=known: SimpleNamespace(**known))
        monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
        pools = [Pool(2, 100, dtype="torch.uint8") for _ in range(2)]
        stores, loads = (storage(shared_rmemcached, pool, prefix="known:", interface_v1=1) for pool in pools)
        assert stores.batch_get_v1(keys, pools[0].tokens(0)) == [False], known
        pools[0].memory[0] = number
        assert stores.batch_set_v1(keys, pools[0].tokens(0)) == [True]
        assert loads.batch_get_v1(keys, pools[1].tokens(1)) == [True]
        assert (pools[1].memory[1] == number).all()


def test_bytes_of_which_nobody_says_what_they_mean(
    storage: MakeStorage, shared_rmemcached: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The back end refuses pages of uint8 if neither the engine nor the configuration tells the kind of FP8."""

    def unset() -> None:
        raise ValueError("config namespace 'model' is not published")

    for get_model in (unset, lambda: SimpleNamespace(model_path="org/model")):
        monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", SimpleNamespace(get_model=get_model))
        with pytest.raises(ValueError, match="what the bytes of these pages mean"):
            storage(shared_rmemcached, Pool(2, 100, dtype="torch.uint8"))
    for pool in (Pool(2, 100, dtype="torch.uint8"), Pool(2, 100, dtype="torch.uint8", device="torch.uint8")):
        with pytest.raises(
            ValueError, match=r"what the bytes of these pages mean .* an extra_backend_tag of their own"
        ):
            storage(shared_rmemcached, pool, interface_v1=1)
        storage(shared_rmemcached, pool, interface_v1=1, extra_backend_tag="model-e4m3")
        storage(shared_rmemcached, pool, Config(model_identity_hash="a"), interface_v1=1)


def test_entries_that_are_sglangs(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """The back end accepts the entries read by SGLang 0.5.23 itself, whether SGLang removes these entries or not."""
    entries = {
        "prefetch_threshold": 64,
        "prefetch_timeout_base": 1,
        "prefetch_timeout_per_ki_token": 0.25,
        "hicache_storage_pass_prefix_keys": False,
        "tp_lcm_size": 4,
        "file_storage_path": "/cache",
        "extra_backend_tag": "tag",
    }
    assert storage(shared_rmemcached, **entries).exists("none") is False


def test_ranks_of_a_replicated_model_share(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """Rank 0 stores the pages of a model with the same pages in all ranks, and the rest load them."""
    pools = [Pool(1, 1000, 1) for _ in range(2)]
    first, second = (
        storage(shared_rmemcached, pool, Config(is_mla_model=True, tp_size=2, tp_rank=rank), prefix="mla:")
        for rank, pool in enumerate(pools)
    )
    fill(pools[0].memory)
    assert first.batch_set_v1(["page"], pools[0].tokens(0)) == [True]
    assert second.batch_get_v1(["page"], pools[1].tokens(0)) == [True]
    assert (pools[0].memory == pools[1].memory).all()


def test_keys_over_250_bytes(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """Names that differ behind the 250th byte, or in bytes forbidden in memcached's keys, have their own values."""
    one = storage(shared_rmemcached, prefix="long:")
    keys = ["k" * 300 + "a", "k" * 300 + "b", "a page", "a\tpage", "Seite ß"]
    tensors = [Tensor(numpy.full(5, number, dtype=numpy.uint8)) for number in range(len(keys))]
    targets = [Tensor(numpy.zeros(5, dtype=numpy.uint8)) for _ in keys]
    assert one.batch_set(keys, tensors)
    assert one.batch_get(keys, targets) == targets
    assert [target.array[0] for target in targets] == list(range(len(keys)))


@pytest.mark.parametrize("size", [1000, 3 * MEGABYTE])
def test_what_is_lost_is_a_miss_and_stored_again(
    storage: MakeStorage, rmemcached_server: Callable[..., Server], size: int
) -> None:
    """A page without a part, or without a piece of a part, does not count as loaded."""
    server = rmemcached_server("-m", "64", "-t", "1")
    pool = Pool(4, size)
    one = storage(server, pool, interface_v1=1)
    keys = hashes(2)
    fill(pool.memory[:2])
    assert one.batch_set_v1(keys, pool.tokens(0, 1)) == [True, True]
    with Client(server.address, default_noreply=False) as client:
        names = keys_in(client)
        lost = [name for name in names if name.startswith(b"p:")] or [n for n in names if n.endswith(b"@1")]
        assert client.delete(lost[0])
    assert sorted(one.batch_get_v1(keys, pool.tokens(2, 3))) == [False, True]
    assert one.batch_set_v1(keys, pool.tokens(0, 1)) == [True, True]
    assert one.batch_get_v1(keys, pool.tokens(2, 3)) == [True, True]
    assert (pool.memory[2:] == pool.memory[:2]).all()


def test_a_page_that_is_refused_in_part(storage: MakeStorage, rmemcached_server: Callable[..., Server]) -> None:
    """A page is refused if the server has room for its short part but not for its long part."""

    class Uneven(Pool):
        def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
            addresses, sizes = super().get_page_buffer_meta(indices)
            return addresses, [100 if place % 2 == 0 else size for place, size in enumerate(sizes)]

    server = rmemcached_server("-m", "16", "-M", "-t", "1")
    with Client(server.address, default_noreply=False) as client:
        client.set("short", b"x" * 100)
    pool = Uneven(100, 300_000)
    one = storage(server, pool, interface_v1=1)
    keys = hashes(100)
    done = one.batch_set_v1(keys, pool.tokens(*range(100)))
    assert 20 < sum(done) < 60
    assert [one.exists(key) for key in keys] == done
    assert one.batch_get_v1(keys, pool.tokens(*range(100))) == done


def test_a_server_that_is_killed_and_started_again(storage: MakeStorage, caplog: pytest.LogCaptureFixture) -> None:
    """A batch under way ends, and no page that counts as loaded has foreign bytes. Then all is as before."""
    count, size = 8, 3 * MEGABYTE
    server = start_rmemcached("-m", "256", "-I", "8m", "-t", "2")
    pool = Pool(2 * count, size, 1)
    one = storage(server, pool, interface_v1=1, timeout=5.0)
    keys = hashes(count)
    pool.memory[:count] = numpy.arange(1, count + 1).reshape(count, 1, 1)
    stored, targets = pool.tokens(*range(count)), pool.tokens(*range(count, 2 * count))
    assert all(one.batch_set_v1(keys, stored))
    done: list[bool] = []
    loading = threading.Thread(target=lambda: done.extend(one.batch_get_v1(keys, targets)))
    loading.start()
    server.kill()
    loading.join()
    assert len(done) == count
    for page, found in enumerate(done):
        assert not found or (pool.memory[count + page] == pool.memory[page]).all()
    assert one.batch_exists(keys) == 0
    assert one.batch_get_v1(keys, targets) == [False] * count
    assert one.batch_set_v1(keys, stored) == [False] * count
    assert not one.clear()
    assert str(server.port) in caplog.text
    again = Server(server.command, server.port)
    try:
        # Each lost connection fails one call: several calls may fail before all connections are new.
        attempts = 0
        while not all(one.batch_set_v1(keys, stored)):
            attempts += 1
            assert attempts <= 10
        assert one.batch_exists(keys) == count
        assert all(one.batch_get_v1(keys, targets))
        assert (pool.memory[count:] == pool.memory[:count]).all()
    finally:
        one.close()
        again.stop()


def test_a_server_that_stands_still(
    storage: MakeStorage, rmemcached_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """A batch waits for the server once in each thread, not for each page."""
    server = rmemcached_server("-m", "64", "-t", "1")
    pool = Pool(20, 1000, 1)
    one = storage(server, pool, interface_v1=1, transport="tcp", timeout=1.0, connect_timeout=1.0, workers=2)
    keys = hashes(20)
    assert all(one.batch_set_v1(keys, pool.tokens(*range(20))))
    caplog.clear()
    with suspended(server.pid):
        assert one.batch_get_v1(keys, pool.tokens(*range(20))) == [False] * 20
        assert 1 <= len(caplog.records) <= 2
    assert all(one.batch_get_v1(keys, pool.tokens(*range(20))))


def test_a_forked_child_has_threads_of_its_own(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """A forked child has threads of its own: the parent's threads would never answer."""
    pool = Pool(4, 1000)
    one = storage(shared_rmemcached, pool, prefix="forks:", interface_v1=1)
    keys = hashes(2)
    fill(pool.memory[:2])
    assert one.batch_set_v1(keys, pool.tokens(0, 1)) == [True, True]

    def child() -> None:
        signal.alarm(20)
        assert one.batch_get_v1(keys, pool.tokens(2, 3)) == [True, True]
        assert (pool.memory[2:] == pool.memory[:2]).all()
        one.close()

    in_child(child)
    assert one.batch_get_v1(keys, pool.tokens(2, 3)) == [True, True]


def test_what_is_refused(storage: MakeStorage, shared_rmemcached: Server) -> None:
    """Wrong entries, other pools, and tensors unfit as targets are refused."""
    for extra, message in (({"workers": 0}, "workers"), ({"prefix": "a b"}, "prefix"), ({"hots": "x"}, "hots")):
        with pytest.raises(ValueError, match=message):
            storage(shared_rmemcached, **extra)
    one = storage(shared_rmemcached)
    with pytest.raises(NotImplementedError, match="mamba"):
        one.register_mem_host_pool_v2(None, "mamba")
    with pytest.raises(ValueError, match="contiguous"):
        one.get("page", Tensor(numpy.zeros((4, 4), dtype=numpy.uint8)[:, 1]))
    assert one.set("page", Tensor(numpy.zeros((4, 4), dtype=numpy.uint8)[:, 1]))
    with pytest.raises(ValueError, match="1 tensors for 2 pages"):
        one.batch_set(["page", "other"], [Tensor(numpy.zeros(4, dtype=numpy.uint8))])
    elsewhere = Tensor(numpy.zeros(4, dtype=numpy.uint8))
    elsewhere.is_cpu, elsewhere.device = False, "cuda:0"
    for call in (lambda: one.get("page", elsewhere), lambda: one.set("page", elsewhere)):
        with pytest.raises(ValueError, match="this tensor is on cuda:0"):
            call()


def test_without_sglang() -> None:
    """Without SGLang the import gives the reason in a line."""
    code = "import sys; sys.modules['sglang'] = None; import rmemcached.connectors.sglang"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: rmemcached.connectors.sglang is for SGLang 0.5, which")
