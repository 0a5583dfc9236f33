"""AsyncClient: the methods of a Client, awaitable."""

import asyncio
import contextlib
import copy
import copyreg
import functools
import warnings

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.api._async_connection cimport ANSWERS_MOST, EXPOSED_MOST, AsyncConnection, Group, open_connection
from rmemcached.client.api._client cimport Client
from rmemcached.client.api._connection cimport MISS
from rmemcached.client.api._meta cimport (
    exists_request,
    meta_arithmetic_request,
    meta_debug_request,
    meta_delete_request,
    meta_get_request,
    meta_noop_request,
    meta_set_request,
    remaining_request,
)
from rmemcached.client.api._request cimport (
    REQUEST_GET,
    REQUEST_GETS,
    Request,
    arithmetic_request,
    delete_request,
    get_request,
    store_request,
    touch_request,
)
from rmemcached.client.api._retrieval cimport target_view, too_long
from rmemcached.client.transport._direct cimport DirectMemory, cas_bytes
from rmemcached.client.wire._modes cimport STORE_ADD, STORE_APPEND, STORE_CAS, STORE_PREPEND, STORE_REPLACE, STORE_SET
from rmemcached.direct cimport direct_prefault

from rmemcached.client.api import leases
from rmemcached.client.exceptions import MemcacheError, MemcacheUnexpectedCloseError

# For __del__: the modules' names are gone when the interpreter ends.
cdef object warn = warnings.warn
cdef object get_running_loop = asyncio.get_running_loop
cdef object sleep = asyncio.sleep

cdef enum:
    PIECE = 1 << 20          # bytes of values copied before other tasks of the loop have their turn
    PREFAULT_TURNS = 16      # calls of direct_prefault, each for 32 MB, in a call of _prefault

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)


def target_bytes(buffer, offset):
    # The bytes of the caller's memory behind an offset.
    cdef object view = target_view(buffer)
    if not isinstance(offset, int) or not 0 <= offset <= view.nbytes:
        raise ValueError(f"offset must be from 0 to {view.nbytes}, the bytes of the buffer, not {offset!r}")
    return view.cast("B")[offset:] if view.nbytes else view


cdef Py_ssize_t size_of(Request r) except -1:
    # Bytes of the request's value.
    if r.data is None:
        return 0
    return len(r.data) if isinstance(r.data, bytes) else r.data.nbytes


def _open(Client client, logged):
    return open_connection(client, logged)


def _prefault(DirectMemory memory, uint64_t at, uint64_t mapped):
    # Maps a part of the memory. Returns whether there is more, and both numbers for the next call of direct_prefault.
    cdef bint more = True
    cdef int _turn
    with nogil:
        for _turn in range(PREFAULT_TURNS):
            more = more and direct_prefault(&memory.memory, &at, &mapped)
    return more, at, mapped


def _forget(task):
    # Retrieves the task's exception. Perhaps nobody has awaited the task to its end, and asyncio logs an exception that
    # nobody has retrieved.
    if not task.cancelled():
        task.exception()


cdef class AsyncClient:
    """A client of one memcached or rmemcached server for asyncio: `Client`'s methods, awaitable.

    >>> async with AsyncClient(("127.0.0.1", 11211)) as client:
    ...     await client.set("key", b"value")
    ...     await client.get("key")

    Args: as for `Client`. There is one connection. Any number of tasks may use it at the same time. Requests do not
    wait for each other's answers, and are sent together if they come in the same turn of the loop. Beyond some thousand
    requests under way a call waits until there is room.

    A call can be cancelled at any time, for example by asyncio.timeout. Its request may have been carried out or not,
    its answer is dropped, and other calls go on. timeout: seconds without progress, while calls wait for answers: no
    input arrives, and no output leaves. Then all calls under way get TimeoutError, and the client closes the
    connection. The next call makes a new connection. With ``noreply`` a call returns when its request has been queued,
    and its errors are dropped.

    Where the server allows direct reads (`direct`), gets read the server's memory at once. But a get sends a request
    while an earlier request may still change the key's item. Now and then a get lets other tasks run, so a task with
    nothing but gets does not keep the loop to itself.

    An AsyncClient belongs to the event loop of its connection. Another loop gets a connection of its own after `close`,
    or when the first loop does not run any more. Works on asyncio's loops and on uvloop. Not thread-safe. After a fork
    the child makes its own connection. Methods raise the same errors as `Client`'s.
    """

    cdef Client client
    cdef AsyncConnection connection
    cdef object connecting       # the task that makes the connection, or None
    cdef object logged           # the last text in the log about the connection
    cdef dict __dict__
    cdef object __weakref__

    def __init__(self, *arguments, **options):
        """Takes the arguments of `Client`, and raises the same errors. Does not connect."""
        self.client = Client(*arguments, **options)
        if self.client.socket_module is not None:
            raise ValueError("socket_module is Client's: an AsyncClient waits by its event loop, on plain sockets")

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), (self.client, vars(self))

    def __setstate__(self, state):
        client, attributes = state
        # In a shallow copy, `client` is the original's.
        self.client = copy.copy(client)
        vars(self).update(attributes)

    def __repr__(self):
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.client.server!r} transport={self.transport}>"

    def __del__(self):
        if self.connection is not None and self.connection.usable:
            warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.connection.close()

    @property
    def server(self):
        """The server's (host, port), or the path of its UNIX socket."""
        return self.client.server

    @property
    def transport(self):
        """As `Client.transport`."""
        if self.connection is not None and self.connection.usable:
            return self.connection.connection.transport
        return self.client.transport

    @property
    def direct(self):
        """As `Client.direct`."""
        cdef AsyncConnection c = self.connection
        return c is not None and c.reader is not None and c.reader.memory.is_read()

    @property
    def serde(self):
        """The object that turns values into bytes and back; None: bytes and str are stored as they are."""
        return self.client.serde

    @property
    def key_prefix(self):
        """The bytes before each key."""
        return self.client.key_prefix

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.close()

    async def close(self):
        """Closes the connection, if there is one. Waiting calls get MemcacheUnexpectedCloseError.

        May be called any number of times. The next command makes a new connection.
        """
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.client.close()

    # --- the connection ---

    async def _connect(self, loop):
        connection, self.logged = await loop.run_in_executor(None, _open, self.client, self.logged)
        self.connection = AsyncConnection(self.client, connection, loop)
        self.connecting = None

    def _usable(self, loop):
        # The connection of this loop, or None.
        cdef AsyncConnection c = self.connection
        if c is None or not c.usable:
            return None
        if c.loop is loop:
            return c
        if c.loop.is_running():
            raise RuntimeError("this AsyncClient is in use by another event loop: each loop takes one of its own")
        c.close()
        return None

    async def _room(self, size):
        # Returns a connection with room for another request, whose value has `size` bytes. Connects, or waits for room.
        loop = asyncio.get_running_loop()
        while True:
            c = self._usable(loop)
            if c is None:
                task = self.connecting
                if task is None or task.done() or task.get_loop() is not loop:
                    self.connecting = task = loop.create_task(self._connect(loop))
                    task.add_done_callback(_forget)
                try:
                    await asyncio.shield(task)
                except asyncio.CancelledError:
                    if task.cancelled() and not asyncio.current_task().cancelling():
                        raise MemcacheUnexpectedCloseError("the AsyncClient was closed") from None
                    raise
                c = self.connection
                if c is not None and (<AsyncConnection>c).connection is None:
                    # The connection ended before this call could use it. A new connection would end in the same way.
                    raise (<AsyncConnection>c).error
            elif (<AsyncConnection>c).full():
                try:
                    await c.room(size)
                except asyncio.CancelledError:
                    # Another waiting call may have the room meant for this call.
                    c.look_again()
                    raise
                if c.usable and len((<AsyncConnection>c).answers) < ANSWERS_MOST and (
                        len((<AsyncConnection>c).exposed) < EXPOSED_MOST):
                    return c
            else:
                return c

    async def _call(self, Request r):
        cdef AsyncConnection c = self.connection
        loop = asyncio.get_running_loop()
        if c is None or c.connection is None or c.loop is not loop or c.full() or not c.usable:
            c = await self._room(size_of(r))
        r.future = loop.create_future()
        c.submit(r)
        return await r.future

    async def _send(self, Request r):
        # Sends a quiet request, with a copy of the value: the caller may change the value once this call has returned.
        if r.data is not None and type(r.data) is not bytes:
            r.data = bytes(r.data)
        cdef AsyncConnection c = await self._room(size_of(r))
        c.submit(r)
        return True

    async def _call_many(self, list requests):
        # Returns the results in the order of the requests; an exception for a failed request.
        cdef AsyncConnection c
        cdef Group group = Group.__new__(Group)
        cdef Request r
        cdef Py_ssize_t place = 0
        loop = asyncio.get_running_loop()
        group.future = loop.create_future()
        group.results = [None] * len(requests)
        group.left = len(requests)
        for r in requests:
            c = self.connection
            if c is None or c.connection is None or c.loop is not loop or c.full() or not c.usable:
                c = await self._room(size_of(r))
            r.group = group
            r.place = place
            place += 1
            c.submit(r)
        return await group.future

    # --- direct reads (docs/direct-reads.md) ---

    cdef bint may_look(self) noexcept:
        # Whether a direct read is worth a try.
        return self.connection is not None and self.connection.reader is not None

    cdef bint gives_way(self) except -1:
        # Whether a direct read must first await `_turn`, so other tasks of the loop get their turn. False in another
        # loop, where there are no direct reads.
        cdef AsyncConnection c = self.connection
        return self.may_look() and (c.eager <= 0 or c.readers) and self.reads_from() is c and c.gives_way(None)

    async def _turn(self):
        # Returns once other tasks have had their turn. The caller then reads without another await.
        cdef AsyncConnection c = self.connection
        call = object()
        c.readers.append(call)
        try:
            while c.gives_way(call):
                await sleep(0)
        finally:
            c.readers.remove(call)

    cdef AsyncConnection reads_from(self):
        # The connection, if its server's memory can be read. None: the caller must send a request.
        cdef AsyncConnection c = self.connection
        if c is None or c.reader is None or c.loop is not get_running_loop():
            return None
        return c

    cdef object look(self, AsyncConnection c, object key, object default, bint with_cas, bint raw):
        # The result of a get, by a direct read. MISS: the caller must send a request. default: the result of an error
        # with ignore_exc.
        cdef bytes encoded = self.client.encoded_key(key)
        cdef uint32_t flags = 0
        cdef uint64_t cas = 0
        value = None if c is None else c.read(encoded, &flags, &cas)
        if value is None:
            return MISS
        if self.client.serde is not None and not raw:
            try:
                value = self.client.load(key, value, flags)
            except Exception:
                if not self.client.ignore_exc:
                    raise
                return default
        return (value, cas_bytes(cas)) if with_cas else value

    cdef object look_into(self, object key, object target):
        # Copies the value to the target by a direct read. Returns its length. MISS: the caller must send a request.
        cdef bytes encoded = self.client.encoded_key(key)
        cdef AsyncConnection c = self.reads_from()
        cdef Py_buffer *memory = PyMemoryView_GET_BUFFER(target)
        cdef Py_ssize_t size = -1 if c is None else c.read_into(encoded, <char *>memory.buf, memory.len)
        if size > memory.len:
            raise too_long(key, size, memory.len)
        return MISS if size < 0 else size

    # --- retrieval ---

    async def get(self, key, default=None):
        """As `Client.get`, without the argument `copy`."""
        if self.may_look():
            if self.gives_way():
                await self._turn()
            value = self.look(self.reads_from(), key, default, False, False)
            if value is not MISS:
                return value
        return await self._call(get_request(self.client, REQUEST_GET, b"get", key, default, None))

    async def gets(self, key, default=None, cas_default=None):
        """As `Client.gets`."""
        if self.may_look():
            if self.gives_way():
                await self._turn()
            found = self.look(self.reads_from(), key, (default, cas_default), True, False)
            if found is not MISS:
                return found
        return await self._call(get_request(self.client, REQUEST_GETS, b"gets", key, (default, cas_default), None))

    async def gat(self, key, expire=0, default=None):
        """As `Client.gat`."""
        return await self._call(get_request(self.client, REQUEST_GET, b"gat", key, default, expire))

    async def gats(self, key, expire=0, default=None, cas_default=None):
        """As `Client.gats`."""
        return await self._call(get_request(self.client, REQUEST_GETS, b"gats", key, (default, cas_default), expire))

    async def get_many(self, keys):
        """As `Client.get_many`."""
        return await self._get_many(REQUEST_GET, b"get", keys)

    async def gets_many(self, keys):
        """As `Client.gets_many`."""
        return await self._get_many(REQUEST_GETS, b"gets", keys)

    async def gat_many(self, keys, expire=0):
        """As `Client.gat_many`."""
        return await self._get_many(REQUEST_GET, b"gat_many", keys, expire)

    async def _get_many(self, kind, name, keys, expire=None):
        cdef list names = list(keys)
        cdef list results = [MISS] * len(names)
        cdef list requests = []
        cdef dict found = {}
        cdef Request r
        cdef Py_ssize_t i
        if expire is None and self.may_look():
            for i in range(len(names)):
                if self.gives_way():
                    await self._turn()
                results[i] = self.look(self.reads_from(), names[i], None, kind == REQUEST_GETS, False)
        for i in range(len(names)):
            if results[i] is MISS:
                requests.append(get_request(self.client, kind, name, names[i], None, expire))
        if not requests:
            return dict(zip(names, results))
        answers = iter(await self._call_many(requests))
        asked = iter(requests)
        for i in range(len(names)):
            if results[i] is MISS:
                r = next(asked)
                result = next(answers)
                if isinstance(result, BaseException):
                    raise result
                if not r.found:
                    continue
                results[i] = result
            found[names[i]] = results[i]
        return found

    # --- storage ---

    async def _store(self, Request r, noreply):
        return await (self._send(r) if self.client.is_quiet(noreply) else self._call(r))

    async def set(self, key, value, expire=0, noreply=None, flags=None):
        """As `Client.set`. The value must not be changed before the call has returned."""
        return await self._store(
            store_request(self.client, STORE_SET, b"set", key, value, expire, flags, None), noreply)

    async def add(self, key, value, expire=0, noreply=None, flags=None):
        """As `Client.add`."""
        return await self._store(
            store_request(self.client, STORE_ADD, b"add", key, value, expire, flags, None), noreply)

    async def replace(self, key, value, expire=0, noreply=None, flags=None):
        """As `Client.replace`."""
        return await self._store(
            store_request(self.client, STORE_REPLACE, b"replace", key, value, expire, flags, None), noreply)

    async def append(self, key, value, expire=0, noreply=None, flags=None):
        """As `Client.append`."""
        return await self._store(
            store_request(self.client, STORE_APPEND, b"append", key, value, expire, flags, None), noreply)

    async def prepend(self, key, value, expire=0, noreply=None, flags=None):
        """As `Client.prepend`."""
        return await self._store(
            store_request(self.client, STORE_PREPEND, b"prepend", key, value, expire, flags, None), noreply)

    async def cas(self, key, value, cas, expire=0, noreply=False, flags=None):
        """As `Client.cas`."""
        return await self._store(
            store_request(self.client, STORE_CAS, b"cas", key, value, expire, flags, cas), noreply or False)

    async def set_many(self, values, expire=0, noreply=None, flags=None):
        """As `Client.set_many`."""
        return await self._store_many(self._stores(values, expire, flags), noreply)

    def _stores(self, values, expire, flags):
        # The requests of set_many. Raises for a bad value.
        return [
            store_request(self.client, STORE_SET, b"set", key, values[key], expire, flags, None)
            for key in list(values)]

    async def _store_many(self, list requests, noreply):
        # The keys that were not stored.
        cdef list failed = []
        cdef Request r
        if self.client.is_quiet(noreply):
            for r in requests:
                await self._send(r)
            return failed
        results = await self._call_many(requests) if requests else []
        for i in range(len(requests)):
            if isinstance(results[i], BaseException):
                raise results[i]
            if not results[i]:
                r = requests[i]
                failed.append(r.key)
        return failed

    async def delete(self, key, noreply=None):
        """As `Client.delete`."""
        return await self._store(delete_request(self.client, key), noreply)

    async def delete_many(self, keys, noreply=None):
        """As `Client.delete_many`."""
        cdef list requests = [delete_request(self.client, key) for key in keys]
        if self.client.is_quiet(noreply):
            for r in requests:
                await self._send(r)
        elif requests:
            for result in await self._call_many(requests):
                if isinstance(result, BaseException):
                    raise result
        return True

    async def incr(self, key, value, noreply=False):
        """As `Client.incr`."""
        result = await self._store(arithmetic_request(self.client, b"incr", key, value), noreply or False)
        return None if noreply else result

    async def decr(self, key, value, noreply=False):
        """As `Client.decr`."""
        result = await self._store(arithmetic_request(self.client, b"decr", key, value), noreply or False)
        return None if noreply else result

    async def touch(self, key, expire=0, noreply=None):
        """As `Client.touch`."""
        return await self._store(touch_request(self.client, key, expire), noreply)

    get_multi = get_many
    set_multi = set_many
    delete_multi = delete_many

    # --- meta commands ---

    async def meta_get(
        self, key, *, value=True, flags=False, cas=False, ttl=False, size=False, hit_before=False, last_access=False,
        bump=True, touch=None, vivify=None, recache=None, new_cas=None, opaque=None,
    ):
        """As `Client.meta_get`."""
        return await self._call(meta_get_request(self.client, key, {
            "value": value, "flags": flags, "cas": cas, "ttl": ttl, "size": size, "hit_before": hit_before,
            "last_access": last_access, "bump": bump, "touch": touch, "vivify": vivify, "recache": recache,
            "new_cas": new_cas, "opaque": opaque}))

    async def meta_set(
        self, key, value, *, expire=0, flags=None, mode="set", cas=None, new_cas=None, invalidate=False, vivify=None,
        return_cas=False, return_size=False, opaque=None,
    ):
        """As `Client.meta_set`."""
        return await self._call(meta_set_request(self.client, key, value, {
            "expire": expire, "flags": flags, "mode": mode, "cas": cas, "new_cas": new_cas, "invalidate": invalidate,
            "vivify": vivify, "return_cas": return_cas, "return_size": return_size, "opaque": opaque}))

    async def meta_delete(
        self, key, *, cas=None, new_cas=None, invalidate=False, clear=False, expire=None, opaque=None,
    ):
        """As `Client.meta_delete`."""
        return await self._call(meta_delete_request(self.client, key, {
            "cas": cas, "new_cas": new_cas, "invalidate": invalidate, "clear": clear, "expire": expire,
            "opaque": opaque}))

    async def meta_arithmetic(
        self, key, delta=1, *, mode="incr", value=True, initial=None, vivify=None, touch=None, cas=None, new_cas=None,
        return_cas=False, ttl=False, opaque=None,
    ):
        """As `Client.meta_arithmetic`."""
        return await self._call(meta_arithmetic_request(self.client, key, delta, {
            "mode": mode, "value": value, "initial": initial, "vivify": vivify, "touch": touch, "cas": cas,
            "new_cas": new_cas, "return_cas": return_cas, "ttl": ttl, "opaque": opaque}))

    async def meta_noop(self):
        """As `Client.meta_noop`."""
        return await self._call(meta_noop_request(self.client))

    async def meta_debug(self, key):
        """As `Client.meta_debug`."""
        return await self._call(meta_debug_request(self.client, key))

    async def exists(self, key):
        """As `Client.exists`."""
        return await self._call(exists_request(self.client, key))

    async def ttl(self, key, default=None):
        """As `Client.ttl`."""
        return await self._call(remaining_request(self.client, b"ttl", key, default))

    async def last_access(self, key, default=None):
        """As `Client.last_access`."""
        return await self._call(remaining_request(self.client, b"last_access", key, default))

    async def invalidate(self, key, expire=30):
        """As `Client.invalidate`."""
        return bool(await self.meta_delete(key, invalidate=True, expire=expire))

    async def get_or_set(self, key, compute, expire=0, *, lease=30, wait=None, refresh=None, stale=True):
        """As `Client.get_or_set`. compute may be a coroutine function."""
        return await leases.drive_async(self, compute, leases.steps(key, expire, lease, wait, refresh, stale))

    async def prefault(self):
        """As `Client.prefault`, in another thread, for the connection of this client. A cancelled call stops mapping
        some 25 ms later."""
        cdef AsyncConnection c = self.reads_from()
        cdef uint64_t at = 0
        cdef uint64_t mapped = 0
        cdef bint more = True
        if c is None or not c.usable or not c.reader.is_alive():
            c = await self._room(0)
            # Only a request shows whether the connection's server still runs. Every server with RDMA knows mn; another
            # server may not know meta commands.
            await (self.meta_noop() if c.stream.remote else self.version())
            c = self.reads_from()
        memory = None if c is None else c.reader.memory
        while more and memory is not None:
            more, at, mapped = await self._in_thread(_prefault, memory, at, mapped)
        return mapped

    # --- the caller's memory ---

    async def buffer(self, size):
        """As `Client.buffer`. `set` sends a value in such memory without a copy."""
        return await self._in_thread(self.client.buffer, size)

    async def register(self, memory):
        """As `Client.register`."""
        return await self._in_thread(self.client.register, memory)

    async def get_into(self, key, buffer, offset=0, default=None):
        """As `Client.get_into`, but with a copy: the value comes into the client's own memory first. A call cancelled
        before the copy writes nothing. A value above 1 MB is copied in pieces, with turns of other tasks in between: a
        call cancelled meanwhile has written some pieces. A direct read writes at once."""
        if self.may_look():
            if self.gives_way():
                await self._turn()
            # Nothing can cancel this call between its first byte and its last.
            size = self.look_into(key, target_bytes(buffer, offset))
            if size is not MISS:
                return size
        (size,) = await self.get_many_into([(key, buffer, offset)])
        return default if size is None else size

    async def get_many_into(self, pairs):
        """As `Client.get_many_into`, with the same copy as `get_into`. Requests all values at once. Other tasks have
        their turn between pieces of the copy: a call cancelled meanwhile has written some pieces."""
        cdef list keys = []
        cdef list targets = []
        cdef list values = []
        cdef list requests = []
        cdef list results = []
        cdef Request r
        cdef Py_ssize_t i, begin
        cdef Py_ssize_t copied = 0
        for key, buffer, *offset in pairs:
            keys.append(key)
            targets.append(target_bytes(buffer, offset[0] if offset else 0))
            r = get_request(self.client, REQUEST_GET, b"get_into", key, None, None)
            # The value is as stored: no serde is applied.
            r.raw = True
            r.ignores = False
            requests.append(r)
        if self.may_look():
            values = []
            for key in keys:
                if self.gives_way():
                    await self._turn()
                values.append(self.look(self.reads_from(), key, None, False, True))
            requests = [r for r, value in zip(requests, values) if value is MISS]
        else:
            values = [MISS] * len(keys)
        answers = iter(await self._call_many(requests) if requests else ())
        problem = None
        for i in range(len(keys)):
            value = next(answers) if values[i] is MISS else values[i]
            if isinstance(value, BaseException):
                problem = problem or value
                continue
            results.append(None if value is None else len(value))
            if value is None:
                continue
            if len(value) > len(targets[i]):
                problem = problem or too_long(keys[i], len(value), len(targets[i]))
                continue
            for begin in range(0, len(value), PIECE):
                if copied >= PIECE:
                    copied = 0
                    await sleep(0)
                piece = memoryview(value)[begin:begin + PIECE]
                targets[i][begin:begin + len(piece)] = piece
                copied += len(piece)
        if problem is not None:
            raise problem
        return results

    # --- dumps: each on a connection of its own ---

    def metadump(self, classes="all"):
        """As `Client.metadump`, but returns an async generator, for `async for`. Its `aclose` ends the dump early."""
        return self._lines(self.client.metadump, classes)

    def mgdump(self, classes="all"):
        """As `Client.mgdump`, but returns an async generator, for `async for`. Its `aclose` ends the dump early."""
        return self._lines(self.client.mgdump, classes)

    def watch(self, *streams, timeout=None):
        """As `Client.watch`, but returns an async generator, for `async for`. Its `aclose` ends the watch."""
        return self._lines(functools.partial(self.client.watch, timeout=timeout), *streams)

    async def _lines(self, method, *arguments):
        # A thread waits for each line. After a cancellation the thread still waits, until shut_down.
        end = object()
        lines = await self._in_thread(method, *arguments)
        try:
            while True:
                line = await self._in_thread(next, lines, end)
                if line is end:
                    return
                yield line
        finally:
            lines.shut_down()
            asyncio.get_running_loop().run_in_executor(None, lines.close_after_reading)

    # --- administration: on connections of their own ---

    async def _in_thread(self, function, *arguments):
        # Runs the function in another thread, where a method of Client takes another connection: only requests already
        # answered are certain to be carried out before.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, function, *arguments)

    async def stats(self, *args):
        """As `Client.stats`."""
        cdef AsyncConnection c = self.reads_from()
        if c is not None and c.reader.report.total:
            # A request first reports the direct reads until now, since the statistics count them. An error here shows
            # again in the statistics' own request.
            with contextlib.suppress(MemcacheError, OSError):
                await self.meta_noop()
        return await self._in_thread(self.client.stats, *args)

    async def version(self):
        """As `Client.version`."""
        return await self._in_thread(self.client.version)

    async def flush_all(self, delay=0, noreply=None):
        """As `Client.flush_all`, but always waits for the server."""
        # Raises for a bad noreply.
        self.client.is_quiet(noreply)
        return await self._in_thread(self.client.flush_all, delay, False)

    async def cache_memlimit(self, memlimit):
        """As `Client.cache_memlimit`."""
        return await self._in_thread(self.client.cache_memlimit, memlimit)

    async def raw_command(self, command, end_tokens="\r\n"):
        """As `Client.raw_command`."""
        return await self._in_thread(self.client.raw_command, command, end_tokens)
