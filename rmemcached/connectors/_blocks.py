"""Blocks of any size in one server: stored from the caller's memory, and loaded to it.

A block that fits an item of the server is one item. A longer one is in pieces, whose keys have 16 random bytes of that
one store; the block's own item is then a head, which has these bytes and the length, and is stored when all pieces are.
So a load never finds pieces of two stores. What is not found in full is a miss.
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
ITEM_OVERHEAD = 1024  # bytes of an item that its header, its key and the headers of its chunks may take
SMALLEST_PIECE = 4096
MOST_PIECES = 1 << 17  # 128 GB of a server with memcached's -I, and 512 MB of the smallest
USUAL_ITEM = 1 << 20  # memcached's -I, for a proxy that does not tell


class Head(NamedTuple):
    """What the item of a block in pieces says."""

    length: int
    piece: int
    store: bytes

    @property
    def pieces(self) -> int:
        return -(-self.length // self.piece)


def read_head(value: Any) -> Head | None:
    """The head in a value; None: it is none, or none that `store` makes.

    Anybody who may store can make one: what it says costs memory and requests, and so has bounds.
    """
    if value is None or len(value) != HEAD.size:
        return None
    magic, length, piece, store = HEAD.unpack(value)
    if magic != MAGIC or length == 0 or piece < SMALLEST_PIECE or length > piece * MOST_PIECES:
        return None
    return Head(length, piece, store)


def flat(memory: memoryview) -> memoryview:
    """The same memory as bytes, of which slices count bytes. Raises TypeError when it is not contiguous."""
    if memory.itemsize == 1 and memory.ndim == 1:
        return memory
    return memory.cast("B") if memory.nbytes else memoryview(bytearray())


def reason(problem: Exception) -> str:
    """One line, never empty."""
    return str(problem) or type(problem).__name__


def fresh(problem: Exception) -> Exception:
    """The same, to be raised. One that is in a list would keep the frames that it passes, which have the list: so the
    caller's memory would be held until Python collects garbage.
    """
    return copy.copy(problem)


class Blocks:
    """The blocks of a server. Thread-safe: each call takes a connection for its time.

    Args: those of Client for the server and the transport. prefix: of all keys. expire: seconds that blocks are kept,
    0: until they are evicted. timeout and connect_timeout: seconds. Nothing is connected here.

    Memory is anything with a contiguous buffer; that of `load` is writable. Methods raise MemcacheError and OSError
    when the server cannot be reached or refuses; what `load` has said of no block is to be trusted then.
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
        self._piece = 0  # bytes; 0: the server has not been asked
        settings: dict[str, Any] = {} if transport is None else {"transport": transport}
        if username is not None or password is not None:
            settings |= {"username": username, "password": password}
        # A URL may say these two: they are no arguments then.
        said = said_by(server)
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if name not in said:
                settings[name] = None if seconds is None else as_number(name, seconds, 0, " seconds")
        self.client = Client(server, default_noreply=False, **settings)

    def prepare(self, seconds: float = 0.5) -> None:
        """Connects, and maps the memory of a server on this host, in a thread. Waits for that for so long at most.

        A server that cannot be reached shows in the first batch.
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
        """Bytes that an item can have, as the server's -I says."""
        piece = self._piece  # another thread may forget it meanwhile
        if not piece:
            limit = self.client.stats("settings").get(b"item_size_max")
            whole = limit if isinstance(limit, int) else USUAL_ITEM
            self._piece = piece = max(whole - ITEM_OVERHEAD, SMALLEST_PIECE)
        return piece

    def forget_server(self) -> None:
        """After an error: the server may have been started again, with another -I."""
        self._piece = 0

    def store(self, name: str | bytes, memory: memoryview) -> bool:
        """Stores a block. False: the server did not take it, and has no block of that name, or an earlier one's."""
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
            # A server that evicts nothing would keep for ever what it has of the block.
            with contextlib.suppress(MemcacheError, OSError):
                self.client.delete_many(list(parts))
            raise
        if not done:
            self.client.delete_many(list(parts))
        elif old is not None:
            self.client.delete_many(self._pieces(old))
        return done

    def store_many(self, names: Sequence[str | bytes], memories: Sequence[memoryview]) -> Iterable[bool | str]:
        """Stores blocks, and says of each in turn what `store` returns, or why the server has refused it.

        Those that are items are sent together: this side copies one of them while the server copies another.
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
        """Says of each row in turn what `move` returns, or why the server has refused it. OSError ends it."""
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
        """Loads a block that is exactly as long as the memory. False: a miss; the memory may have been written to."""
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
            # It may be an item still: of a server that took longer ones than it said.
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
        """Loads blocks, and says of each in turn what `load` returns, or why the server has refused it.

        Those that can be read without asking are copied in one go, while other threads of Python run.
        """
        try:
            memories = [flat(memory) for memory in memories]
            items = self._are_items(memories)
            rows = zip(names, memories, items, strict=True)
            sizes = self.client.get_many_into([(self.key(name), memory) for name, memory, is_item in rows if is_item])
        except (MemcacheError, ValueError):
            # Of one of them, such as an item that is longer than the memory: `load` says of which.
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
        """Stores blocks of which there is none: one of the same name has the same bytes. Says of each in turn whether
        there is one now, or why it was refused.
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
        """Whether there are such blocks, in one round trip. The pieces of a long one are not looked for."""
        with self.client.pipeline() as pipeline:
            for name in names:
                pipeline.meta_get(self.key(name), value=False)
        return [item is not None for item in self._results(pipeline)]

    def delete(self, names: Sequence[str | bytes]) -> list[bool]:
        """Removes blocks, and their pieces. Returns whether each was there."""
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
        """Which blocks are one item. One as long as a head is in a piece: so whatever has a head's length is a head."""
        piece = self.piece_size()
        return [memory.nbytes <= piece and memory.nbytes != HEAD.size for memory in memories]

    def _small(self, key: bytes) -> bytes | None:
        """The value of a key if it is as short as a head."""
        item = bytearray(HEAD.size)
        return bytes(item) if self._into(key, item) == HEAD.size else None

    def _into(self, key: bytes, memory: Any) -> int:
        """The length of the value that was received in memory; -1: there is none, or it is longer."""
        try:
            return int(self.client.get_into(key, memory, default=-1))
        except ValueError:
            return -1

    def _forget(self, key: bytes, head: Head) -> None:
        """Removes a head whose pieces are not all there, so that the block is stored again. A newer one stays."""
        item = self.client.meta_get(key, cas=True)
        if item is not None and read_head(item.value) == head:
            self.client.meta_delete(key, cas=item.cas)

    def _pieces(self, head: Head) -> list[bytes]:
        return [piece_key(head.store, number, self.prefix) for number in range(head.pieces)]

    @staticmethod
    def _results(pipeline: Any) -> list[Any]:
        for result in pipeline.results:
            if isinstance(result, Exception):
                raise fresh(result)
        return list(pipeline.results)
