"""A storage back end of SGLang's HiCache: rmemcached keeps the pages evicted from the host's memory.

Source: sglang/srt/mem_cache/hicache_storage.py, storage/backend_factory.py and managers/cache_controller.py of SGLang
0.5.23. SGLang loads this module by name, and only this module imports SGLang.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import Any

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError as problem:
    raise ImportError(
        f"rmemcached.connectors.sglang is for SGLang 0.5, which cannot be imported: {problem}"
    ) from problem

from rmemcached.client import MemcacheError

from ._blocks import Blocks
from ._keys import block_key, identity, platform
from ._settings import as_whole
from ._workers import LOADS, STORES, WORKERS, groups_of

SETTINGS = {
    "host",
    "port",
    "url",
    "transport",
    "prefix",
    "expire",
    "timeout",
    "connect_timeout",
    "username",
    "password",
}
# Entries read by SGLang itself, which leaves some of them in the dict.
SGLANGS = {
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
    "file_storage_path",
}
# Properties of the engine's model with an effect on the meaning of a page's bytes.
MODEL = (
    "model_path",
    "revision",
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",
    "json_model_override_args",
)

Move = Callable[[Sequence[str], Sequence[memoryview]], Iterable[bool | str]]  # a method of Blocks for many

logger = logging.getLogger(__name__)
CLEARS = 8  # dumps in a `clear`, at most: engines may store all the time


@cache
def _bytes_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    # ctypes keeps each type for ever: the cache makes a single type for a size.
    return ctypes.c_ubyte * size


def _memory_at(address: int, size: int) -> memoryview:
    return memoryview(_bytes_type(size).from_address(address))


def _memory_of(tensor: Any) -> memoryview:
    """Returns the memory of a contiguous tensor of the CPU, kept by the caller. Raises ValueError for a device's."""
    if not getattr(tensor, "is_cpu", True):
        raise ValueError(f"pages are in the memory of the host, and this tensor is on {tensor.device}")
    return _memory_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _model() -> dict[str, str]:
    """Returns the properties of this process' model; empty outside of an engine, and for unknown versions of SGLang."""
    context = sys.modules.get("sglang.srt.runtime_context")
    try:
        model = None if context is None else context.get_model()
    except (AttributeError, ValueError):
        # SGLang has not published a model.
        model = None
    return {name: str(getattr(model, name)) for name in MODEL if hasattr(model, name)}


class RMemcachedStorage(HiCacheStorage):
    """Keeps HiCache's pages in one server. SGLang makes the back end for `--hicache-storage-backend dynamic`.

    storage_config: SGLang's. Its extra_config may have host and port, or url, of the server (docs/client-servers.md);
    transport: Client's; workers: threads for the parts of a batch; prefix: of all keys; expire: seconds, 0: until
    eviction; timeout and connect_timeout, in seconds; username, password; interface_v1: true for pages without a copy;
    extra_backend_tag: a part of all names, so engines with different tags share no pages. Raises ValueError for
    any other entry.

    Methods wait. Every failure to load a page is a miss, and every failure to store a page is False, with a warning in
    the log. Thread-safe.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        self._workers = as_whole("workers", extra.pop("workers", WORKERS), 1)
        self._zero_copy = bool(extra.get("interface_v1", 0))
        self._tag = extra.pop("extra_backend_tag", None)
        extra = {name: value for name, value in extra.items() if name not in SGLANGS}
        if extra.keys() - SETTINGS:
            raise ValueError(f"extra_config: {', '.join(sorted(extra.keys() - SETTINGS))}: there is no such entry")
        host, port, url = extra.pop("host", "127.0.0.1"), extra.pop("port", 11211), extra.pop("url", None)
        self._config = storage_config
        self._blocks = Blocks((host, port) if url is None else url, **extra)
        self._identity = self._identity_with(None)
        self._begin()
        self._blocks.prepare()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="rmemcached-pages")

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the pool of pages. Its layout is part of all names from here on.

        Raises ValueError if the meaning of its pages' bytes is unknown.
        """
        super().register_mem_pool_host(mem_pool_host)
        self._identity = self._identity_with(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Raises NotImplementedError: this back end stores no other pools of hybrid models."""
        raise NotImplementedError(f"rmemcached keeps no pages of the pool {host_pool_name}: use a model without it")

    # --- pages in the pool's own memory ---

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages to their places in the pool. Returns for each page whether the whole page was found."""
        return self._move_pages(self._blocks.load_many, LOADS, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores the pages missing in the server, from their places in the pool."""
        return self._move_pages(self._blocks.keep_many, STORES, keys, host_indices)

    # --- pages in tensors ---

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Loads a page to a contiguous tensor, and returns the tensor, or None."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Loads pages to contiguous tensors. Returns the tensors, with None for each missing page."""
        targets = list(target_locations or [])
        if len(targets) != len(keys) or any(target is None or not target.is_contiguous() for target in targets):
            raise ValueError("each page is loaded to a contiguous tensor, which target_locations has to name")
        names = [self._name(key) for key in keys]
        found = self._each(self._blocks.load_many, LOADS, names, [_memory_of(one) for one in targets])
        return [target if hit else None for target, hit in zip(targets, found, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a tensor's bytes, unless the server has the page. Returns whether the server has the page now."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores the tensors of pages missing in the server. Returns whether the server has all pages now."""
        tensors = [value.contiguous() for value in values]
        if len(tensors) != len(keys):
            raise ValueError(f"{len(tensors)} tensors for {len(keys)} pages")
        names = [self._name(key) for key in keys]
        return all(self._each(self._blocks.keep_many, STORES, names, [_memory_of(tensor) for tensor in tensors]))

    # --- present pages ---

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns the number of present pages before the first missing page, in one round trip."""
        names = [self._name(key, 0) if self._zero_copy else self._name(key) for key in keys]
        try:
            found = self._blocks.exist(names)
        except (MemcacheError, OSError) as problem:
            self._failed(problem)
            return 0
        return [*found, False].index(False)

    def clear(self) -> bool:
        """Removes the pages of this model and rank. Returns whether the server answered.

        Pages stored meanwhile may stay.
        """
        begin = block_key(f"{self._identity}@", self._blocks.prefix)
        marked = len(self._blocks.prefix) + 2
        try:
            # A dump leaves out an item in use, or on its way to a different queue.
            for _ in range(CLEARS):
                keys = (item["key"] for item in self._blocks.client.metadump())
                names = [key[marked:] for key in keys if key.startswith(begin)]
                for at in range(0, len(names), 1000):
                    self._blocks.delete(names[at : at + 1000])
                if not names:
                    break
        except (MemcacheError, OSError) as problem:
            self._failed(problem)
            return False
        return True

    def close(self) -> None:
        """Ends threads and connections. Any number of times."""
        self._threads.shutdown()
        self._blocks.close()

    # --- names and moves ---

    def _name(self, key: str, part: int | None = None) -> str:
        return f"{self._identity}@{key}" if part is None else f"{self._identity}@{key}@{part}"

    def _identity_with(self, pool: Any) -> str:
        """Returns the identity for names of pages: of model, rank, and pool if there is any."""
        config = self._config
        # Ranks of an MLA model have the same pages, unless each rank has a part of the context.
        replicated = config.is_mla_model and config.dcp_size == 1
        model = _model()
        told = [self._tag, getattr(config, "model_identity_hash", None), model.get("kv_cache_dtype")]
        return identity(
            engine="sglang",
            fp8=platform(),
            model=[config.model_name, model],
            told=[None if one is None else str(one) for one in told],
            tensor=None if replicated else [config.tp_rank, config.tp_size],
            pipeline=[config.pp_rank, config.pp_size],
            context=[config.attn_cp_rank, config.attn_cp_size, config.dcp_rank, config.dcp_size],
            pool=None if pool is None else self._identity_of_pool(pool, any(one is not None for one in told)),
        )

    @staticmethod
    def _identity_of_pool(pool: Any, told: bool) -> list[Any]:
        """Returns the properties of a pool on which the meaning of its pages depends. told: whether the names tell the
        kinds of FP8 apart, since SGLang stores every kind as uint8. Raises ValueError."""
        meant = getattr(getattr(pool, "device_pool", None), "dtype", None)
        if str(pool.dtype) == "torch.uint8" and str(meant) in ("None", "torch.uint8") and not told:
            raise ValueError(
                "nothing says what the bytes of these pages mean (the pool's are torch.uint8): give engines of each"
                " model and --kv-cache-dtype an extra_backend_tag of their own"
            )
        layers = [getattr(pool, name, None) for name in ("start_layer", "end_layer")]
        return [str(pool.dtype), None if meant is None else str(meant), pool.layout, pool.page_size, layers]

    def _move_pages(self, move: Move, group: int, keys: list[str], host_indices: Any) -> list[bool]:
        """Moves pages. A page is one item for each of its pieces in the pool, the same number for each page."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if not keys or len(addresses) % len(keys):
            raise ValueError(f"{len(addresses)} pieces of memory for {len(keys)} pages")
        parts = len(addresses) // len(keys)
        whole = [True] * len(keys)
        # The first part stands for the page (batch_exists). So this part is moved last, for pages with all other parts.
        for part in reversed(range(parts)):
            pages = [page for page, has_others in enumerate(whole) if has_others]
            names = [self._name(keys[page], part) for page in pages]
            places = [page * parts + part for page in pages]
            memories = [_memory_at(addresses[place], sizes[place]) for place in places]
            for page, done in zip(pages, self._each(move, group, names, memories), strict=True):
                whole[page] = done
        return whole

    def _each(self, move: Move, group: int, names: Sequence[str], memories: Sequence[memoryview]) -> list[bool]:
        """Moves all pages, each to or from its memory. A failure is False. After the loss of the server the rest fails.

        group: bytes of a thread's part.
        """
        lost = threading.Event()
        if self._pid != os.getpid():
            # The threads are the parent's: a forked child makes threads of its own.
            self._begin()

        def some(rows: slice) -> list[bool]:
            done: list[bool] = []
            try:
                for outcome in () if lost.is_set() else move(names[rows], memories[rows]):
                    done.append(outcome is True)
                    if isinstance(outcome, str):
                        self._failed(outcome)
            except OSError as problem:
                # Each further group would wait as long as this group.
                lost.set()
                self._failed(problem)
            except MemcacheError as problem:
                self._failed(problem)
            return done + [False] * (len(names[rows]) - len(done))

        groups = groups_of(len(names), sum(memory.nbytes for memory in memories), group)
        return list(chain.from_iterable(self._threads.map(some, groups)))

    def _failed(self, problem: Exception | str) -> None:
        self._blocks.forget_server()
        logger.warning("%s", problem)
