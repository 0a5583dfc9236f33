"""A secondary tier of vLLM's KV-cache offloading: rmemcached keeps the chunks evicted from the host's memory.

Source: vllm/v1/kv_offload/tiering/base.py, manager.py and config.py of vLLM 0.33.0. vLLM loads this module by name, and
only this module imports vLLM.
"""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

try:
    from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
except ImportError as problem:
    raise ImportError(f"rmemcached.connectors.vllm is for vLLM 0.33, which cannot be imported: {problem}") from problem

from ._blocks import Blocks
from ._keys import identity, platform
from ._workers import LOADS, STORES, WORKERS, Outcome, Workers


@dataclass
class _Lookup:
    """The state of a chunk. found: None until the server's answer. requests: ids of the asking requests."""

    found: bool | None = None
    requests: set[str] = field(default_factory=set)


@dataclass
class _Job:
    """A transfer under way. number: vLLM's job id. keys: in the order of the batch. began: time.monotonic()."""

    number: int
    keys: list[bytes]
    loads: bool
    began: float


class RMemcachedTier(SecondaryTierManager):
    """Keeps vLLM's chunks in one server. vLLM makes the tier, with the entries of its configuration as arguments.

    host, port, or url: the server (docs/client-servers.md). transport: Client's; None: the fastest of both ends.
    workers: threads, each with a connection while moving a chunk. prefix: of all keys. expire: seconds, 0: until
    eviction. timeout: seconds of waiting for the server. locality: "LOCAL" or "REMOTE", for vLLM's filters. Raises
    ValueError.

    Only `drain_jobs` and `shutdown` wait for the server. Every failure to load a chunk is a miss. vLLM makes one call
    at a time, from any thread.
    """

    medium: ClassVar[Medium | None] = Medium.STORAGE
    # The default, because the tier is neither memory of this engine nor a disk.
    cache_hit_source = SecondaryTierManager.cache_hit_source

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        host: str = "127.0.0.1",
        port: int = 11211,
        url: str | None = None,
        transport: str | None = None,
        workers: int = WORKERS,
        prefix: str = "",
        expire: int = 0,
        timeout: float = 10.0,
        connect_timeout: float = 2.0,
        username: str | None = None,
        password: str | None = None,
        locality: str | None = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        blocks = Blocks(
            (host, port) if url is None else url,
            transport=transport,
            prefix=prefix,
            expire=expire,
            timeout=timeout,
            connect_timeout=connect_timeout,
            username=username,
            password=password,
        )
        self._identity = _identity_of(offloading_spec.config, self.block_size_bytes)
        self._blocks = blocks
        # A view of two dimensions has no slices of bytes. The cast comes before the threads: its exception would leave
        # them behind.
        self._memory = primary_kv_view.cast("B")
        try:
            self._workers = Workers(blocks, workers)
        except BaseException:
            self._memory.release()
            raise
        blocks.prepare()
        self._jobs: dict[int, _Job] = {}  # by number of the batch, like _asked
        self._asked: dict[int, list[tuple[bytes, _Lookup]]] = {}
        self._results: list[JobResult] = []
        self._lookups: dict[bytes, _Lookup] = {}
        self._requests: dict[str, set[bytes]] = {}  # the keys asked by each request
        self._to_ask: list[tuple[bytes, _Lookup]] = []

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Returns HIT or MISS from the server's answer, RETRY before. on_schedule_end asks the server for new keys."""
        self._collect()
        one = self._lookups.get(key)
        if one is None:
            one = self._lookups[key] = _Lookup()
            self._to_ask.append((key, one))
        one.requests.add(req_context.req_id)
        self._requests.setdefault(req_context.req_id, set()).add(key)
        if one.found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if one.found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Asks for all keys looked up since the last call, in one round trip."""
        self._collect()
        asked = [(key, one) for key, one in self._to_ask if self._lookups.get(key) is one]
        self._to_ask = []
        if asked:
            number = self._workers.submit(self._blocks.exist, [self._name(key) for key, _ in asked])
            self._asked[number] = asked

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets the chunks looked up by this request alone."""
        for key in self._requests.pop(req_context.req_id, ()):
            one = self._lookups.get(key)
            if one is not None:
                one.requests.discard(req_context.req_id)
                if not one.requests:
                    del self._lookups[key]

    def submit_store(self, job_metadata: Any) -> None:
        """Stores the chunks missing in the server."""
        self._submit(job_metadata, self._store, loads=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Loads chunks to the job's slots of the primary tier."""
        self._submit(job_metadata, self._load, loads=True)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._collect()
        results, self._results = self._results, []
        return results

    def drain_jobs(self) -> None:
        """Waits until no transfer is under way. A transfer with a silent server ends after `timeout`."""
        poll = select.poll()
        poll.register(self._workers.event, select.POLLIN)
        while self._jobs:
            poll.poll()
            self._collect()

    def shutdown(self) -> None:
        """Ends threads and connections, and releases the primary tier's memory. Any number of times."""
        self._workers.close()
        self._collect()
        self._memory.release()

    # --- transfers ---

    def _name(self, key: bytes) -> str:
        return f"{self._identity}@{bytes(key).hex()}"

    def _chunk(self, number: int) -> memoryview:
        size = self.block_size_bytes
        return self._memory[number * size : (number + 1) * size]

    def _submit(self, metadata: Any, task: Any, loads: bool) -> None:
        keys = list(metadata.keys)
        chunks = [int(chunk) for chunk in metadata.chunk_ids]
        names = [self._name(key) for key in keys]
        began = time.monotonic()
        nbytes = len(keys) * self.block_size_bytes
        number = self._workers.submit(task, names, chunks, nbytes=nbytes, group=LOADS if loads else STORES)
        self._jobs[number] = _Job(metadata.job_id, keys, loads, began)

    def _store(self, names: Sequence[str], chunks: Sequence[int]) -> Iterator[bool | str]:
        return self._move(self._blocks.keep_many, names, chunks)

    def _load(self, names: Sequence[str], chunks: Sequence[int]) -> Iterator[bool | str]:
        return self._move(self._blocks.load_many, names, chunks)

    def _move(self, move: Any, names: Sequence[str], chunks: Sequence[int]) -> Iterator[bool | str]:
        memories = [self._chunk(chunk) for chunk in chunks]
        try:
            yield from move(names, memories)
        finally:
            for memory in memories:
                memory.release()

    def _collect(self) -> None:
        """Takes the batches finished by the threads."""
        for outcome in self._workers.drain():
            job = self._jobs.pop(outcome.number, None)
            if job is not None:
                self._results.append(self._result(job, outcome))
                continue
            for (key, one), found in zip(self._asked.pop(outcome.number), outcome.done, strict=True):
                if self._lookups.get(key) is one:
                    one.found = found

    def _result(self, job: _Job, outcome: Outcome) -> JobResult:
        done = [key for key, found in zip(job.keys, outcome.done, strict=True) if found]
        whole = len(done) == len(job.keys)
        if job.loads:
            # Without this answer vLLM would ask for the same loads again and again.
            self._learn(set(job.keys).difference(done), False)
        else:
            self._learn(done, True)
        return JobResult(
            job_id=job.number,
            success=whole,
            successful_keys=tuple(done) if job.loads and done and not whole else None,
            transfer_time=time.monotonic() - job.began,
            transfer_bytes=len(done) * self.block_size_bytes,
        )

    def _learn(self, keys: Collection[bytes], found: bool) -> None:
        """Changes the answers given to present requests. An answer under way from the server may be newer."""
        for key in keys:
            one = self._lookups.get(key)
            if one is not None and one.found is not None:
                one.found = found


def _identity_of(config: Any, chunk: int) -> str:
    """Returns the identity in the names of chunks, the same for engines with exchangeable chunks. config: vLLM's
    OffloadingConfig."""
    parallel = config.parallel
    return identity(
        engine="vllm",
        fp8=platform(),
        model=config.model.name,
        dtype=str(config.model.dtype),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        groups=[[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        parallel=[parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size, parallel.rank],
        layout=[config.replicated_layout, config.canonical_layout, config.kv_cache_layout],
        chunk_bytes=chunk,
    )
