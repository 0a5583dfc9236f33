"""LMCache's second level in rmemcached: a connector for its L2 adapter "native_plugin".

Source for a connector's methods: lmcache/v1/distributed/l2_adapters/native_plugin_l2_adapter.py and
native_connector_l2_adapter.py of LMCache 0.5.6. This module does not import LMCache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmemcached.client.transport.sockets import server_text

from ._blocks import Blocks
from ._workers import LOADS, STORES, WORKERS, Workers


class RMemcachedConnector:
    """Keeps blocks in one server. LMCache makes the connector, with `adapter_params` as arguments.

    host, port, or url: the server (docs/client-servers.md). transport: Client's; None: the fastest of both ends.
    workers: threads, each with a connection while moving a block. prefix: of all keys. expire: seconds, 0: until
    eviction. timeout: seconds of waiting for the server. Raises ValueError.

    Submits return the number of a batch at once. Until `drain_completions` names the batch, nobody may change the
    memory of its stores, or touch the memory of its loads. Every failure to load a block is a miss. Thread-safe.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 11211,
        *,
        url: str | None = None,
        transport: str | None = None,
        workers: int = WORKERS,
        prefix: str = "",
        expire: int = 0,
        timeout: float = 10.0,
        connect_timeout: float = 2.0,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
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
        self._blocks = blocks
        self._workers = Workers(blocks, workers)
        blocks.prepare()

    def event_fd(self) -> int:
        """Returns the eventfd, readable when a batch is finished, and valid until `close`."""
        return self._workers.event

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Stores the bytes of each view under its key."""
        nbytes = sum(view.nbytes for view in memoryviews)
        return self._workers.submit(self._store, keys, memoryviews, nbytes=nbytes, group=STORES)

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Loads each key's block to its view. A block with a length different from the view's is a miss."""
        nbytes = sum(view.nbytes for view in memoryviews)
        return self._workers.submit(self._blocks.load_many, keys, memoryviews, nbytes=nbytes, group=LOADS)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Looks for the blocks of keys, in one round trip."""
        return self._workers.submit(self._blocks.exist, keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes the blocks of the keys."""
        return self._workers.submit(self._blocks.delete, keys)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """Returns [(number of the batch, whether nothing failed, the first error or "", success of each key)]."""
        return [(one.number, one.ok, one.error, one.done) for one in self._workers.drain()]

    def close(self) -> None:
        """Ends the threads and the connections. Waiting batches fail. Any number of times."""
        self._workers.close()

    def _store(self, keys: Sequence[str], views: Sequence[memoryview]) -> Iterator[bool | str]:
        for view, done in zip(views, self._blocks.store_many(keys, views), strict=True):
            yield done or self._not_stored(view.nbytes)

    def _not_stored(self, size: int) -> str:
        return f"{server_text(self._blocks.client.server)}: a block of {size} bytes was not stored"
