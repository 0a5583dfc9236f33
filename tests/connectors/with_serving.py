"""Connectors as vLLM 0.33.0 and SGLang 0.5.23 make them, by their own factories: script/serving-suite runs this."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy
import torch
from servers import Server
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from vllm.v1.kv_offload.base import Locality, LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory


def offloading_config() -> OffloadingConfig:
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("a", "b"), group_id=0),),
        worker_kv_bytes_per_block=4096,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig(name="org/model", dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=4),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    )


def test_vllm_makes_the_tier(shared_rmemcached: Server) -> None:
    """vLLM's factory makes the tier from the entries of docs/connectors.md, and chunks go there and back."""
    tier_config = {
        "type": "RMemcachedTier",
        "module_path": "rmemcached.connectors.vllm",
        "host": shared_rmemcached.host,
        "port": shared_rmemcached.port,
        "locality": "REMOTE",
    }
    memory = numpy.zeros((4, 1 << 20), dtype=numpy.int8)
    memory[:2] = [[1], [2]]
    spec = cast(Any, SimpleNamespace(config=offloading_config()))
    tier = SecondaryTierFactory.create_secondary_tier(tier_config, memoryview(cast(Any, memory)), spec)
    assert isinstance(tier, SecondaryTierManager) and tier.locality is Locality.REMOTE
    context = ReqContext(req_id="request")
    keys = [make_offload_key(os.urandom(32), 0) for _ in range(2)]
    for number, (slots, load) in enumerate((([0, 1], False), ([2, 3], True))):
        job = TransferJob(number, keys, numpy.array(slots), load, context)
        (tier.submit_load if load else tier.submit_store)(job)
        tier.drain_jobs()
        assert [(result.job_id, result.success) for result in tier.get_finished_jobs()] == [(number, True)]
    assert (memory[2:] == memory[:2]).all()
    while (found := tier.lookup(keys[0], context)) is LookupResult.RETRY:
        tier.on_schedule_end(ScheduleEndContext((), ()))
    assert found is LookupResult.HIT
    tier.on_request_finished(context)
    tier.shutdown()


def test_sglang_makes_the_back_end(shared_rmemcached: Server) -> None:
    """SGLang's factory makes the back end from the entries of docs/connectors.md, and tensors go there and back."""
    extra = {
        "backend_name": "rmemcached",
        "module_path": "rmemcached.connectors.sglang",
        "class_name": "RMemcachedStorage",
        "host": shared_rmemcached.host,
        "port": shared_rmemcached.port,
    }
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="org/model",
        extra_config=extra,
    )
    storage: Any = StorageBackendFactory.create_backend("dynamic", config, None)
    assert isinstance(storage, HiCacheStorage)
    pages = [torch.rand(2, 3, 16, 8, 64).to(torch.bfloat16).flatten() for _ in range(3)]
    targets = [torch.zeros_like(page) for page in pages]
    assert storage.batch_set(["a", "b", "c"], pages)
    assert storage.batch_exists(["a", "b", "c", "d"]) == 3
    found = storage.batch_get(["a", "b", "c"], targets)
    assert all(torch.equal(page, target) for page, target in zip(pages, found, strict=True))
    assert storage.set("view", torch.arange(100).reshape(10, 10).t())
    assert torch.equal(
        storage.get("view", torch.zeros(100, dtype=torch.int64)), torch.arange(100).reshape(10, 10).t().flatten()
    )
    assert storage.clear() and not storage.exists("a")
    storage.close()


def test_the_memory_of_sglangs_pool(shared_rmemcached: Server) -> None:
    """Pages of a torch pool move in place, by addresses as of SGLang's pools."""
    pages, size = 4, 1 << 16
    buffer = torch.randint(0, 255, (2, pages, size), dtype=torch.uint8)

    def places(indices: Any) -> tuple[list[int], list[int]]:
        addresses = [buffer[part, index].data_ptr() for index in indices.tolist() for part in range(2)]
        return addresses, [size] * len(addresses)

    meta: Callable[[Any], tuple[list[int], list[int]]] = places
    pool = SimpleNamespace(dtype=torch.uint8, layout="page_first", page_size=1, get_page_buffer_meta=meta)
    extra = {"host": shared_rmemcached.host, "port": shared_rmemcached.port, "interface_v1": 1, "prefix": "pool:"}
    extra |= {"extra_backend_tag": "uint8", "prefetch_threshold": 64}
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "org/model", extra_config=extra)
    from rmemcached.connectors.sglang import RMemcachedStorage

    storage = RMemcachedStorage(config, {})
    storage.register_mem_pool_host(pool)
    assert storage.batch_set_v1(["a", "b"], torch.tensor([0, 1])) == [True, True]
    assert storage.batch_exists(["a", "b", "c"]) == 2
    assert storage.batch_get_v1(["a", "b"], torch.tensor([2, 3])) == [True, True]
    assert torch.equal(buffer[:, :2], buffer[:, 2:])
    storage.close()
