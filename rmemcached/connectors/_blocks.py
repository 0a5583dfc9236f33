"""Blocks of any size in one server, stored from and loaded to the caller's memory.

A block up to the server's item size is one item. A longer block is stored in pieces. Each store chooses 16 random
bytes for the keys of its pieces. After the pieces it stores the block's own item, a head with these bytes and the
length. So a load never mixes pieces of two stores. A block without all pieces is a miss.
"""

from __future__ import annotations

import contextlib
import copy
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rmemcached.client import Client, MemcacheError

from ._clients import expiry
from ._keys import block_key, check_prefix, piece_key
from ._settings import as_number, said_by

MAGIC = b"rmcblock"
HEAD = struct.Struct("<8sQQ16s")  # magic, bytes of the block, bytes of each piece but the last, the store
ITEM_OVERHEAD = 1024  # bytes of an item for its header, its key and the headers of its chunks
SMALLEST_PIECE = 4096
MOST_PIECES = 1 << 17  # 128 GB of a server with memcached's -I, and 512 MB of the smallest
USUAL_ITEM = 1 << 20  # memcached's -I, for a proxy without this statistic


class Head(NamedTuple):
    """The item of a block in pieces."""

    length: int
    piece: int
    store: bytes

    @property
    def pieces(self) -> int:
        return -(-self.length // self.piece)


def read_head(value: Any) -> Head | None:
    """Returns the head in a value, or None if `store` would not make this value.

    Every client of the server can forge a head. Its numbers cost memory and requests here, so they have bounds.
    """
    if value is None or len(value) != HEAD.size:
        return None
    magic, length, piece, store = HEAD.unpack(value)
    if magic != MAGIC or length == 0 or piece < SMALLEST_PIECE or length > piece * MOST_PIECES:
        return None
    return Head(length, piece, store)


def flat(memory: memoryview) -> memoryview:
    """Returns the same memory as bytes, for slices in bytes. Raises TypeError for memory with gaps."""
    if memory.itemsize == 1 and memory.ndim == 1:
        return memory
    return memory.cast("B") if memory.nbytes else memoryview(bytearray())


def reason(problem: Exception) -> str:
    """Returns the text of an exception, never empty."""
    return str(problem) or type(problem).__name__


def fresh(problem: Exception) -> Exception:
    """Returns a copy to raise. An exception keeps the frames on its way, and a frame here has the list of exceptions:
    raising an entry of the list would hold the caller's memory until Python collects garbage.
    """
    return copy.copy(problem)


class Blocks:
    """The blocks of a server. Thread-safe: each call borrows a connection until it returns.

    Args: Client's for the server and the transport. prefix: of all keys. expire: lifetime of blocks in seconds,
    0: until eviction. timeout and connect_timeout: seconds. The constructor does not connect.

    Memory is any contiguous buffer, for `load` a writable buffer. Methods raise MemcacheError and OSError
    when the server is unreachable or refuses. After such an error no result of `load` is valid.
    """

    def __init__(
        self,
        server: tuple[str, int] | str,
        *,
        transport: str | None = None,
        prefix: str | bytes = "",
        expire: float = 0,
        timeout: float | None = 10.0,
        connect_timeout: float = 2.0,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.expire = as_number("expire", expire, 0, " seconds")
        self._closed = False
        self._piece = 0  # bytes; 0: not asked yet
        settings: dict[str, Any] = {} if transport is None else {"transport": transport}
        if username is not None or password is not None:
            settings |= {"username": username, "password": password}
        # A URL may contain these two settings; the arguments are left out then.
        said = said_by(server)
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if name not in said:
                settings[name] = None if seconds is None else as_number(name, seconds, 0, " seconds")
        self.client = Client(server, default_noreply=False, **settings)

    def prepare(self, seconds: float = 0.5) -> None:
        """Connects, and maps the memory of a server on this host, in a thread. Waits `seconds` for the thread at most.

        The first batch reports an unreachable server.
        """
        thread = threading.Thread(target=self._prepare, name="rmemcached-blocks-prepare", daemon=True)
        thread.start()
        thread.join(seconds)

    def _prepare(self) -> None:
        with contextlib.suppress(Exception):
            self.client.prefault()
        if self._closed:
            self.client.close()

    def close(self) -> None:
        self._closed = True
        self.client.close()

    def key(self, name: str | bytes) -> bytes:
        return block_key(name, self.prefix)

    def piece_size(self) -> int:
        """Returns the largest size of an item in bytes, from the server's -I."""
        piece = self._piece  # another thread may reset the field meanwhile
        if not piece:
            limit = self.client.stats("settings").get(b"item_size_max")
            whole = limit if isinstance(limit, int) else USUAL_ITEM
            self._piece = piece = max(whole - ITEM_OVERHEAD, SMALLEST_PIECE)
        return piece

    def forget_server(self) -> None:
        """Resets the size of items after an error: the server may have restarted with a new -I."""
        self._piece = 0

    def store(self, name: str | bytes, memory: memoryview) -> bool:
        """Stores a block. False: the server refused the block, and has no block or an earlier block of this name."""
        memory = flat(memory)
        key, size, piece = self.key(name), memory.nbytes, self.piece_size()
        if self._are_items([memory])[0]:
            return bool(self.client.set(key, memory, expiry(self.expire)))
        if size == 0 or size > piece * MOST_PIECES:
            return False
        old = read_head(self._small(key))
        store = os.urandom(16)
        parts = {
            piece_key(store, number, self.prefix): memory[at : at + piece]
            for number, at in enumerate(range(0, size, piece))
        }
        expire = expiry(self.expire)
        done = False
        try:
            done = not self.client.set_many(parts, expire) and bool(
                self.client.set(key, HEAD.pack(MAGIC, size, piece, store), expire)
            )
        except MemcacheError:
            # A server without evictions would keep the stored pieces for ever.
            with contextlib.suppress(MemcacheError, OSError):
                self.client.delete_many(list(parts))
            raise
        if not done:
            self.client.delete_many(list(parts))
        elif old is not None:
            self.client.delete_many(self._pieces(old))
        return done

    def store_many(self, names: Sequence[str | bytes], memories: Sequence[memoryview]) -> Iterable[bool | str]:
        """Stores blocks. Yields for each block in turn the result of `store`, or the server's reason for a refusal.

        Single-item blocks are sent together: this side copies a block while the server copies the block before.
        """
        try:
            memories = [flat(memory) for memory in memories]
            items = self._are_items(memories)
            expire = expiry(self.expire)
            with self.client.pipeline() as pipeline:
                for name, memory, is_item in zip(names, memories, items, strict=True):
                    if is_item:
                        pipeline.set(self.key(name), memory, expire)
        except (MemcacheError, OSError):
            self.forget_server()
            raise
        if pipeline.results == [True] * len(items):
            return list(pipeline.results)
        results = iter(pipeline.results)

        def outcome(name: str | bytes, memory: memoryview, is_item: bool) -> bool:
            result = next(results) if is_item else self.store(name, memory)
            if isinstance(result, Exception):
                raise fresh(result)
            return bool(result)

        return self.each(outcome, names, memories, items)

    def each(self, move: Callable[..., bool], *columns: Sequence[Any]) -> Iterator[bool | str]:
        """Yields for each row in turn the result of `move`, or the reason of a refusal. OSError ends the rows."""
        for row in zip(*columns, strict=True):
            try:
                yield move(*row)
            except MemcacheError as problem:
                self.forget_server()
                yield reason(problem)
            except OSError:
                self.forget_server()
                raise

    def load(self, name: str | bytes, memory: memoryview) -> bool:
        """Loads a block of exactly the memory's length. False: a miss; the memory may have new bytes nevertheless."""
        memory = flat(memory)
        key, size = self.key(name), memory.nbytes
        if size == HEAD.size or size > self.piece_size():
            head = read_head(self._small(key))
        else:
            found = self._into(key, memory)
            if found != HEAD.size:
                return found == size
            head = read_head(memory[: HEAD.size].tobytes())
        if head is None:
            # The block may be a single item still: the server may have taken items above its -I.
            return size != HEAD.size and self._into(key, memory) == size
        if head.length != size:
            return False
        for number, piece in enumerate(self._pieces(head)):
            part = memory[number * head.piece : min((number + 1) * head.piece, size)]
            if self._into(piece, part) != part.nbytes:
                self._forget(key, head)
                return False
        return True

    def load_many(self, names: Sequence[str | bytes], memories: Sequence[memoryview]) -> Iterable[bool | str]:
        """Loads blocks. Yields for each block in turn the result of `load`, or the server's reason for a refusal.

        Direct reads copy all their blocks at once, while other threads of Python run.
        """
        try:
            memories = [flat(memory) for memory in memories]
            items = self._are_items(memories)
            rows = zip(names, memories, items, strict=True)
            sizes = self.client.get_many_into([(self.key(name), memory) for name, memory, is_item in rows if is_item])
        except (MemcacheError, ValueError):
            # The error concerns a single block, such as an item longer than the memory. `load` finds this block.
            return self.each(self.load, names, memories)
        except OSError:
            self.forget_server()
            raise
        if sizes == [memory.nbytes for memory in memories]:
            return [True] * len(sizes)
        found = iter(sizes)

        def outcome(name: str | bytes, memory: memoryview, is_item: bool) -> bool:
            size = next(found) if is_item else HEAD.size
            return self.load(name, memory) if size == HEAD.size else bool(size == memory.nbytes)

        return self.each(outcome, names, memories, items)

    def keep_many(self, names: Sequence[str | bytes], memories: Sequence[memoryview]) -> Iterator[bool | str]:
        """Stores the blocks missing in the server: a block of the same name has the same bytes. Yields for each block
        in turn whether the server has the block now, or the server's reason for a refusal.
        """
        try:
            there = self.exist(names)
        except (MemcacheError, OSError):
            self.forget_server()
            raise
        absent = [number for number, found in enumerate(there) if not found]
        stored = iter(self.store_many([names[number] for number in absent], [memories[number] for number in absent]))
        for found in there:
            yield found or next(stored)

    def exist(self, names: Sequence[str | bytes]) -> list[bool]:
        """Returns for each block whether the server has it, in one round trip. Does not look for the pieces."""
        with self.client.pipeline() as pipeline:
            for name in names:
                pipeline.meta_get(self.key(name), value=False)
        return [item is not None for item in self._results(pipeline)]

    def delete(self, names: Sequence[str | bytes]) -> list[bool]:
        """Removes blocks, and their pieces. Returns for each block whether the server had it."""
        keys = [self.key(name) for name in names]
        with self.client.pipeline() as pipeline:
            for key in keys:
                pipeline.meta_get(key, value=False, size=True)
        sizes = self._results(pipeline)
        headed = [key for key, item in zip(keys, sizes, strict=True) if item is not None and item.size == HEAD.size]
        heads = [read_head(value) for value in self.client.get_many(headed).values()] if headed else []
        with self.client.pipeline() as pipeline:
            for key in keys:
                pipeline.delete(key)
            for head in filter(None, heads):
                for piece in self._pieces(head):
                    pipeline.delete(piece)
        return [bool(done) for done in self._results(pipeline)[: len(keys)]]

    def _are_items(self, memories: Sequence[memoryview]) -> list[bool]:
        """Returns for each block whether it is one item. A block of a head's length is stored in a piece, so every
        item of this length is a head.
        """
        piece = self.piece_size()
        return [memory.nbytes <= piece and memory.nbytes != HEAD.size for memory in memories]

    def _small(self, key: bytes) -> bytes | None:
        """Returns the value of a key if its length is a head's."""
        item = bytearray(HEAD.size)
        return bytes(item) if self._into(key, item) == HEAD.size else None

    def _into(self, key: bytes, memory: Any) -> int:
        """Receives a value into memory. Returns its length, or -1 for a miss or a value longer than the memory."""
        try:
            return int(self.client.get_into(key, memory, default=-1))
        except ValueError:
            return -1

    def _forget(self, key: bytes, head: Head) -> None:
        """Removes a head without all its pieces, so the next store is not skipped. A newer head stays."""
        item = self.client.meta_get(key, cas=True)
        if item is not None and read_head(item.value) == head:
            self.client.meta_delete(key, cas=item.cas)

    def _pieces(self, head: Head) -> list[bytes]:
        return [piece_key(head.store, number, self.prefix) for number in range(head.pieces)]

    @staticmethod
    def _results(pipeline: Any) -> list[Any]:
        """Returns the results of a pipeline. Raises the first error among them."""
        for result in pipeline.results:
            if isinstance(result, Exception):
                raise fresh(result)
        return list(pipeline.results)
