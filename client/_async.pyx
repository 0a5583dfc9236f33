"""See _async.pxd."""

import asyncio
import copy
import copyreg
import os
import warnings
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EBADMSG, EINTR, EMSGSIZE, ETIMEDOUT
from libc.string cimport memcpy

from rmemcached.client._commands cimport put_fetch, put_store
from rmemcached.client._forks cimport fork_count
from rmemcached.client._modes cimport STORE_ADD, STORE_APPEND, STORE_CAS, STORE_PREPEND, STORE_REPLACE, STORE_SET
from rmemcached.client._reply cimport REPLY_VA
from rmemcached.client._request cimport (
    REQUEST_ARITHMETIC,
    REQUEST_GET,
    REQUEST_GETS,
    REQUEST_STORE,
    arithmetic_request,
    delete_request,
    get_request,
    put_request,
    store_request,
    take_answer,
    touch_request,
)
from rmemcached.client._stream cimport LINE_LIMIT

from rmemcached.client.connection import open_stream
from rmemcached.client.exceptions import MemcacheUnexpectedCloseError

cdef enum:
    ANSWERS_MOST = 1024      # requests under way, and
    EXPOSED_MOST = 64        # values in memory that the server reads, which are all given back when it has answered all
    OUTPUT_MOST = 1 << 20    # bytes of requests that are not sent yet, beyond which calls wait
    VALUE_MOST = 0x7FFFFFFF  # bytes; a reply that announces more is not believed
    TURNS_MOST = 64          # reads before other tasks of the loop have their turn


cdef class Group:

    cdef int put(self, Py_ssize_t place, object result) except -1:
        self.results[place] = result
        self.left -= 1
        if self.left == 0 and not self.future.done():
            self.future.set_result(self.results)
        return 0


cdef class AsyncConnection:

    def __init__(self, Client client, Connection connection, loop):
        if connection.stream.needs_gil:
            connection.close()
            raise RuntimeError("AsyncClient needs the system's sockets, and those of the standard library are patched")
        self.client = client
        self.loop = loop
        self.connection = connection
        self.stream = connection.stream
        self.answers = deque()
        self.waiting = deque()
        self.exposed = []
        # Those of a device are of all its connections: a loop takes each of these for one.
        self.descriptors = []
        try:
            for descriptor in self.stream.descriptors():
                self.descriptors.append(os.dup(descriptor))
                loop.add_reader(self.descriptors[len(self.descriptors) - 1], self._readable)
            self.rest()
        except BaseException as error:
            self.fail(error)
            raise

    # --- requests ---

    cdef bint full(self):
        return (len(self.answers) >= ANSWERS_MOST or self.stream.wlen > OUTPUT_MOST or len(self.exposed) >= EXPOSED_MOST
                or len(self.waiting) != 0)

    def room(self):
        """A future that is done when `full` may be false."""
        future = self.loop.create_future()
        self.waiting.append(future)
        return future

    cdef int make_room(self) except -1:
        # Whoever waits is woken, as many as there is room for, and asks again.
        cdef Py_ssize_t free = ANSWERS_MOST - len(self.answers)
        if len(self.exposed) >= EXPOSED_MOST:
            return 0
        while self.waiting and free > 0 and (self.connection is None or self.stream.wlen <= OUTPUT_MOST):
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1
        return 0

    cdef int submit(self, Request r) except -1:
        cdef Stream s = self.stream
        if not self.answers:
            if s.iov_next == s.iov_count:
                s.begin()
            self.progress = self.loop.time()
            if self.client.timeout is not None and self.timer is None:
                self.timer = self.loop.call_later(self.client.timeout, self._look_at_time)
        try:
            if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
                put_fetch(s, r.encoded, r.with_flags, r.kind == REQUEST_GETS, r.expire)
                if s.remote and not self.sink_taken:
                    s.put_sink()
                    r.sinks = self.sink_taken = s.sink_named
                s.put("\r\n", 2)
            elif r.kind == REQUEST_STORE:
                if put_store(s, r.mode, r.encoded, r.data, r.flags, r.expire, r.cas, False):
                    # Its memory is registered, and so must not become anything else's, until `unexpose`.
                    self.exposed.append(r.data)
            else:
                put_request(self.connection, r)
        except BaseException as error:
            # Half of it may be there.
            self.fail(error)
            raise
        self.answers.append(r)
        self.look_again()
        return 0

    def look_again(self):
        """Does soon what an event would."""
        if not self.flushing and self.connection is not None:
            self.flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self):
        self.flushing = False
        if self.connection is not None:
            self._step()

    def _writable(self):
        if self.connection is not None:
            self._step()

    def _readable(self):
        if self.connection is not None:
            self._step()

    def _step(self):
        # Sends what can be sent and takes what has come.
        try:
            self.send_some()
            self.receive()
            if not self.answers:
                self.rest()
            if self.waiting:
                self.make_room()
        except Exception as error:
            self.fail(error)

    cdef int send_some(self) except -1:
        cdef Stream s = self.stream
        cdef size_t first, left
        cdef int r = -EINTR
        if s.wlen == 0:
            return 0
        s.commit()
        first = s.iov_next
        left = s.iov[first].iov_len
        while r == -EINTR:
            r = s.push()
        if r <= 0:
            raise self.connection.broken(r)
        if s.iov_next != first or s.iov[first].iov_len != left:
            self.progress = self.loop.time()
        if s.iov_next == s.iov_count:
            s.wlen = s.wmark = 0
            s.iov_next = s.iov_count = 0
        if s.tells_room() and self.writing != (s.iov_count != 0):
            self.writing = not self.writing
            if self.writing:
                self.loop.add_writer(self.descriptors[0], self._writable)
            else:
                self.loop.remove_writer(self.descriptors[0])
        return 0

    # --- answers ---

    cdef int receive(self) except -1:
        cdef Stream s = self.stream
        cdef int turns = 0
        cdef int r = 1
        cdef bint come = False
        if s.buffers == NULL:
            s.begin()
        # Arming may have found something.
        self.take_answers()
        while r != -EAGAIN:
            r = s.take_input()
            if s.wlen and s.remote and (r > 0 or r == -EAGAIN):
                # Credits may have come, with answers or alone.
                self.send_some()
            if r > 0:
                come = True
                self.take_answers()
                turns += 1
            elif r == -EAGAIN and s.arm():
                come = True
                self.take_answers()
                turns += 1
                r = 1
            elif r != -EAGAIN and r != -EINTR:
                raise self.connection.broken(r)
            if turns == TURNS_MOST:
                self.look_again()
                break
        if come:
            self.progress = self.loop.time()
        return 0

    cdef int take_answers(self) except -1:
        cdef Stream s = self.stream
        cdef Request r
        cdef list errors
        cdef int code
        while True:
            if self.body is not None:
                if not self.take_body():
                    return 0
                continue
            if not s.has_line():
                if s.rend - s.rpos > LINE_LIMIT:
                    raise self.connection.broken(-EMSGSIZE)
                return 0
            code = s.read_reply()
            if code <= 0:
                raise self.connection.broken(code)
            if not self.answers:
                raise self.connection.broken(-EBADMSG)
            r = self.answers[0]
            self.connection.name = r.name
            if s.reply.code == REPLY_VA and self.begin_value(r):
                continue
            errors = []
            result = take_answer(self.client, self.connection, r, errors)
            self.answers.popleft()
            self.resolve(r, errors[0] if errors else result)

    cdef bint begin_value(self, Request r) except -1:
        # A value in the stream goes to a bytes object of its own, as it comes.
        cdef Stream s = self.stream
        cdef size_t length = s.reply.length
        if r.kind != REQUEST_GET and r.kind != REQUEST_GETS and r.kind != REQUEST_ARITHMETIC:
            return False
        if s.reply.in_memory and r.sinks:
            return False
        if s.reply.in_memory or length > VALUE_MOST:
            raise self.connection.broken(-EBADMSG)
        r.found_flags = s.reply.flags
        if r.kind == REQUEST_GETS:
            r.cas = s.line[s.reply.cas_offset:s.reply.cas_offset + s.reply.cas_length]
        self.body = PyBytes_FromStringAndSize(NULL, length)
        s.dst = PyBytes_AS_STRING(self.body)
        s.dst_left = length
        if s.remote:
            s.saw_length(length)
        return True

    cdef bint take_body(self) except -1:
        # False: not all of it has come.
        cdef Stream s = self.stream
        cdef Request r
        cdef size_t n = min(s.rend - s.rpos, s.dst_left)
        if n:
            memcpy(s.dst, s.rbuf + s.rpos, n)
            s.dst += n
            s.dst_left -= n
            s.rpos += n
        if s.dst_left or (s.rend - s.rpos < 2 and not self.behind_value):
            return False
        if not self.behind_value:
            if s.rbuf[s.rpos] != c'\r' or s.rbuf[s.rpos + 1] != c'\n':
                raise self.connection.broken(-EBADMSG)
            s.rpos += 2
        if s.classic:
            self.behind_value = not s.has_line()
            if self.behind_value:
                return False
            if s.read_end() <= 0:
                raise self.connection.broken(-EBADMSG)
        value = self.body
        r = self.answers[0]
        if r.kind == REQUEST_ARITHMETIC and not value.strip().isdigit():
            raise self.connection.broken(-EBADMSG)
        self.body = None
        self.answers.popleft()
        if r.kind == REQUEST_ARITHMETIC:
            self.resolve(r, int(value))
        else:
            r.found = True
            self.resolve(r, (value, r.cas) if r.kind == REQUEST_GETS else value)
        return True

    cdef int resolve(self, Request r, object result) except -1:
        # The answer to a request has come: its result, or an exception.
        cdef bint failed = isinstance(result, BaseException)
        if r.data is not None and self.stream.iov_next != self.stream.iov_count:
            # A value may be refused before all of it was sent.
            self.exposed.append(r.data)
        if r.sinks:
            self.stream.release_sink()
            self.sink_taken = False
        if r.found and not failed and self.client.serde is not None and r.wanted():
            try:
                if r.kind == REQUEST_GETS:
                    result = self.client._load(r.key, result[0], r.found_flags), result[1]
                else:
                    result = self.client._load(r.key, result, r.found_flags)
            except Exception as error:
                result = error
                failed = True
        if failed and r.ignores and self.client.ignore_exc:
            result = r.default
            failed = False
        if r.group is not None:
            (<Group>r.group).put(r.place, result)
        elif r.future is not None and not r.future.done():
            if failed:
                # A future takes no StopIteration.
                r.future.set_exception(RuntimeError(repr(result)) if isinstance(result, StopIteration) else result)
            else:
                r.future.set_result(result)
        return 0

    # --- time, and the end ---

    cdef int rest(self) except -1:
        # No request is under way.
        cdef Stream s = self.stream
        if s.buffers != NULL and s.iov_next == s.iov_count:
            s.unexpose()
            s.end()
            self.exposed.clear()
        if s.arm():
            self.look_again()
        return 0

    def _look_at_time(self):
        self.timer = None
        if self.connection is not None and self.answers:
            # What has come meanwhile may be unread, where the loop was busy with other things.
            self._step()
        if self.connection is None or not self.answers:
            return
        left = self.progress + self.client.timeout - self.loop.time()
        if left > 0:
            self.timer = self.loop.call_later(left, self._look_at_time)
        else:
            self.fail(self.connection.broken(-ETIMEDOUT))

    def close(self, error=None):
        """Closes it. Calls that wait for answers get the error."""
        self.fail(error or MemcacheUnexpectedCloseError("the AsyncClient was closed"))

    cdef int fail(self, object error) except -1:
        cdef Connection c = self.connection
        cdef Request r
        if c is None:
            return 0
        self.error = error
        self.connection = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if not self.loop.is_closed() and c.generation == fork_count():
            for descriptor in self.descriptors:
                self.loop.remove_reader(descriptor)
            if self.writing:
                self.loop.remove_writer(self.descriptors[0])
        while self.descriptors:
            os.close(self.descriptors.pop())
        self.body = None
        c.close()
        self.exposed.clear()
        while self.answers:
            r = self.answers.popleft()
            r.sinks = False
            if not self.loop.is_closed():
                self.resolve(r, error)
        if not self.loop.is_closed():
            self.make_room()
        return 0

    @property
    def usable(self):
        """Whether requests can be submitted, in this process."""
        return self.connection is not None and self.connection.generation == fork_count()


def open_connection(Client client, logged):
    """(connection, the transport that the log has) for a client; in a thread that may wait."""
    cdef Connection c = Connection.__new__(Connection)
    cdef Stream s
    c.server = client.server
    c.generation = fork_count()
    c.name = b"connecting"
    s, c.transport, logged = open_stream(client, client._wanted, logged, True)
    c.stream = s
    if client.credentials is not None and s.must_authenticate():
        client.authenticate(c)
    return c, logged


def _forget(task):
    # Nobody may have waited for it to the end.
    if not task.cancelled():
        task.exception()


cdef class AsyncClient:
    """A client of one memcached or rmemcached server for asyncio: `Client`'s methods, awaitable.

    >>> async with AsyncClient(("127.0.0.1", 11211)) as client:
    ...     await client.set("key", b"value")
    ...     await client.get("key")

    Args: those of `Client`. There is one connection. Any number of tasks may use it at the same time: their requests
    are sent without waiting for each other's answers, those of one turn of the loop together. Beyond some thousand
    requests under way a call waits until there is room.

    A call can be cancelled at any time, by asyncio.timeout for one: its request may have been carried out or not, its
    answer is dropped, and other calls go on. timeout: seconds without anything from the server while answers are
    awaited; then all calls under way get TimeoutError and the connection is closed. The next call makes a new one.
    With ``noreply`` a call returns when its request has been queued, and its errors are dropped.

    It belongs to the event loop that uses it: another one gets a connection of its own once the first has none. Works
    on asyncio's loops and on uvloop. Not thread-safe. After a fork the child makes its own connection. Methods raise
    what those of `Client` raise.
    """

    cdef Client client
    cdef AsyncConnection connection
    cdef object connecting       # a task
    cdef object logged
    cdef dict __dict__
    cdef object __weakref__

    def __init__(self, *arguments, **options):
        """Takes the arguments of `Client`, and raises what it raises. Does not connect."""
        self.client = Client(*arguments, **options)
        if self.client.socket_module is not None or self.client.tls_context is not None:
            raise ValueError(
                "socket_module and tls_context are Client's: an AsyncClient waits by its event loop, without TLS")

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), (self.client, vars(self))

    def __setstate__(self, state):
        client, attributes = state
        # A shallow copy's is the original's.
        self.client = copy.copy(client)
        vars(self).update(attributes)

    def __repr__(self):
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.client.server!r} transport={self.transport}>"

    def __del__(self):
        if self.connection is not None and self.connection.usable:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
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

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.close()

    async def close(self):
        """Closes the connection, if there is one. Calls that wait for answers get MemcacheUnexpectedCloseError.

        Any number of times. The next command makes a new connection.
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
        connection, self.logged = await loop.run_in_executor(None, open_connection, self.client, self.logged)
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

    async def _room(self):
        # A connection that takes one more request.
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
                    # It has ended before this call could use it: the next one would end so, too.
                    raise (<AsyncConnection>c).error
            elif (<AsyncConnection>c).full():
                try:
                    await c.room()
                except asyncio.CancelledError:
                    # Its place may be another call's.
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
            c = await self._room()
        r.future = loop.create_future()
        c.submit(r)
        return await r.future

    async def _send(self, Request r):
        # Nobody waits for its answer, nor keeps the value as it is until it has been sent.
        if r.data is not None and type(r.data) is not bytes:
            r.data = bytes(r.data)
        cdef AsyncConnection c = await self._room()
        c.submit(r)
        return True

    async def _call_many(self, list requests):
        # Their results, or exceptions.
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
                c = await self._room()
            r.group = group
            r.place = place
            place += 1
            c.submit(r)
        return await group.future

    # --- retrieval ---

    async def get(self, key, default=None):
        """As `Client.get`."""
        return await self._call(get_request(self.client, REQUEST_GET, b"get", key, default, None))

    async def gets(self, key, default=None, cas_default=None):
        """As `Client.gets`."""
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

    async def _get_many(self, kind, name, keys):
        cdef list requests = [get_request(self.client, kind, name, key, None, None) for key in keys]
        cdef dict found = {}
        cdef Request r
        if not requests:
            return found
        results = await self._call_many(requests)
        for i in range(len(requests)):
            r = requests[i]
            if isinstance(results[i], BaseException):
                raise results[i]
            if r.found:
                found[r.key] = results[i]
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
            store_request(self.client, STORE_CAS, b"cas", key, value, expire, flags, cas), bool(noreply))

    async def set_many(self, values, expire=0, noreply=None, flags=None):
        """As `Client.set_many`."""
        cdef list names = list(values)
        cdef list requests = [
            store_request(self.client, STORE_SET, b"set", key, values[key], expire, flags, None) for key in names]
        cdef list failed = []
        if self.client.is_quiet(noreply):
            for r in requests:
                await self._send(r)
            return failed
        results = await self._call_many(requests) if requests else []
        for i in range(len(names)):
            if isinstance(results[i], BaseException):
                raise results[i]
            if not results[i]:
                failed.append(names[i])
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
        result = await self._store(arithmetic_request(self.client, b"incr", key, value), bool(noreply))
        return None if noreply else result

    async def decr(self, key, value, noreply=False):
        """As `Client.decr`."""
        result = await self._store(arithmetic_request(self.client, b"decr", key, value), bool(noreply))
        return None if noreply else result

    async def touch(self, key, expire=0, noreply=None):
        """As `Client.touch`."""
        return await self._store(touch_request(self.client, key, expire), noreply)

    get_multi = get_many
    set_multi = set_many
    delete_multi = delete_many

    # --- administration: on connections of their own ---

    async def _in_thread(self, function, *arguments):
        # What was sent before is carried out before, as far as this client waits for it.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, function, *arguments)

    async def stats(self, *args):
        """As `Client.stats`."""
        return await self._in_thread(self.client.stats, *args)

    async def version(self):
        """As `Client.version`."""
        return await self._in_thread(self.client.version)

    async def flush_all(self, delay=0, noreply=None):
        """As `Client.flush_all`. It waits for the server in any case."""
        return await self._in_thread(self.client.flush_all, delay, False)

    async def cache_memlimit(self, memlimit):
        """As `Client.cache_memlimit`."""
        return await self._in_thread(self.client.cache_memlimit, memlimit)

    async def raw_command(self, command, end_tokens="\r\n"):
        """As `Client.raw_command`."""
        return await self._in_thread(self.client.raw_command, command, end_tokens)
