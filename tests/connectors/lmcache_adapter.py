"""LMCache's adapter as the connector sees the adapter: submit, wait for the eventfd, drain."""

from __future__ import annotations

import ctypes
import select

from rmemcached.connectors.lmcache import RMemcachedConnector

SECONDS = 30.0


class Adapter:
    """Follows the contract of LMCache 0.5.6's NativeConnectorL2Adapter: the same thread submits and drains."""

    def __init__(self, connector: RMemcachedConnector) -> None:
        self.connector = connector
        self.poll = select.poll()
        self.poll.register(connector.event_fd(), select.POLLIN)
        self.outcomes: dict[int, tuple[bool, str, list[bool] | None]] = {}

    def wait(self, number: int) -> tuple[bool, str, list[bool]]:
        while number not in self.outcomes:
            assert self.poll.poll(SECONDS * 1000), "the eventfd was not written to"
            for other, ok, error, done in self.connector.drain_completions():
                assert other not in self.outcomes
                self.outcomes[other] = ok, error, done
        ok, error, done = self.outcomes.pop(number)
        assert done is not None
        return ok, error, done

    def store(self, keys: list[str], views: list[memoryview]) -> tuple[bool, str, list[bool]]:
        return self.wait(self.connector.submit_batch_set(keys, views))

    def load(self, keys: list[str], views: list[memoryview]) -> tuple[bool, str, list[bool]]:
        return self.wait(self.connector.submit_batch_get(keys, views))

    def exist(self, keys: list[str]) -> tuple[bool, str, list[bool]]:
        return self.wait(self.connector.submit_batch_exists(keys))

    def delete(self, keys: list[str]) -> tuple[bool, str, list[bool]]:
        return self.wait(self.connector.submit_batch_delete(keys))


class Arena:
    """Memory like LMCache's: each view is of ctypes (format "<B"), and of a part of the memory."""

    def __init__(self, size: int) -> None:
        self.memory = (ctypes.c_ubyte * size)()
        self.used = 0

    def view(self, size: int, content: bytes = b"") -> memoryview:
        """Returns the memory's next `size` bytes, filled with repetitions of the content."""
        part = (ctypes.c_ubyte * size).from_buffer(self.memory, self.used)
        self.used += size
        if content:
            ctypes.memmove(part, (content * (size // len(content) + 1))[:size], size)
        return memoryview(part)
