"""See _async_connection.pxd."""

import os
import select
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EBADMSG, EINTR, EMSGSIZE, ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rmemcached.client.api._client cimport Client
from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._request cimport (
    REQUEST_ARITHMETIC,
    REQUEST_GET,
    REQUEST_GETS,
    REQUEST_META,
    REQUEST_STORE,
    Request,
    load_result,
    no_meta,
    put_meta,
    put_request,
    read_meta,
    take_answer,
)
from rmemcached.client.transport._direct cimport DirectMemory, new_reader, put_report
from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.transport._rdma cimport memory_of
from rmemcached.client.transport._results cimport new_result
from rmemcached.client.transport._stream cimport IDLE_MS, LINE_LIMIT, Stream
from rmemcached.client.wire._commands cimport answer, number_of, put_fetch, put_sink, put_store
from rmemcached.client.wire._reply cimport REPLY_VA, read_reply, reply_line
from rmemcached.direct cimport DIRECT_LINE
from rmemcached.sys.clock cimport coarse_ms, now_ns

from rmemcached.client.exceptions import MemcacheUnexpectedCloseError, MemcacheUnknownError
from rmemcached.client.transport.connection import open_stream

cdef enum:
    OUTPUT_MOST = 1 << 20    # bytes of requests not sent yet, beyond which calls wait
    VALUE_MOST = 0x7FFFFFFF  # bytes; a reply with a longer value counts as broken
    TURN_NS = 1000000        # ns of reception before other tasks of the loop have their turn,
    TURN_MOST = 1 << 20      # ... and bytes of values copied for requests
    EAGER_MOST = 1 << 20     # bytes of direct reads before other tasks have their turn,
    READ_COST = 4096         # ... and extra bytes for each read


cdef class Group:

    cdef int put(self, Py_ssize_t place, object result) except -1:
        self.results[place] = result
        self.left -= 1
        if self.left == 0 and not self.future.done():
            self.future.set_result(self.results)
        return 0


cdef bint is_writable(int descriptor) except -1:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return len(poller.poll(0)) != 0


cdef class AsyncConnection:

    def __init__(self, Client client, Connection connection, loop):
        cdef DirectMemory memory = connection.stream.direct_memory()
        if not connection.stream.join_loop():
            connection.close()
            raise RuntimeError("AsyncClient needs the system's sockets, and those of the standard library are patched")
        self.client = client
        self.loop = loop
        self.connection = connection
        self.stream = connection.stream
        self.memory = memory_of(self.stream)
        self.answers = deque()
        self.waiting = deque()
        self.readers = deque()
        self.exposed = []
        self.eager = EAGER_MOST
        if memory is not None:
            self.changing = {}
            self.reader = new_reader(memory)
        # Connections of a device share its descriptors. A loop takes one reader for a descriptor, so each connection
        # watches duplicates.
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
                or self.memory is not None and self.memory.copied > TURN_MOST or len(self.waiting) != 0)

    def room(self, size):
        """A future, done when `full` may be false. size: bytes of the waiting value."""
        future = self.loop.create_future()
        self.waiting.append((future, size))
        return future

    cdef int make_room(self) except -1:
        cdef Py_ssize_t free = ANSWERS_MOST - len(self.answers)
        cdef Py_ssize_t copies = TURN_MOST - (0 if self.memory is None else <Py_ssize_t>self.memory.copied)
        cdef Py_ssize_t size
        if len(self.exposed) >= EXPOSED_MOST:
            return 0
        while self.waiting and free > 0 and (
                self.connection is None or self.stream.wlen <= OUTPUT_MOST and copies >= 0):
            future, size = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1
                copies -= size
        return 0

    cdef int submit(self, Request r) except -1:
        cdef Stream s = self.stream
        if r.kind == REQUEST_META and s.classic:
            raise self.connection.named(no_meta())
        if not self.answers:
            # The report of direct reads may still wait to be sent: begin would drop the report.
            if s.buffers == NULL or self.all_sent():
                s.begin()
            self.progress = self.loop.time()
            self.connection.name = r.name
            if self.client.timeout is not None and self.timer is None:
                self.timer = self.loop.call_later(self.client.timeout, self._look_at_time)
        try:
            if self.reader is not None and self.reader.report.total:
                self.put_hits()
            if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
                put_fetch(s, r.encoded, r.with_flags, r.kind == REQUEST_GETS, r.expire)
                if s.remote and not self.sink_taken:
                    put_sink(s, False)
                    r.sinks = self.sink_taken = self.memory.sink_named
                s.put("\r\n", 2)
            elif r.kind == REQUEST_STORE:
                if put_store(s, r.mode, r.encoded, r.data, r.flags, r.expire, r.cas, False):
                    # The server may read the value's memory until `unexpose`: the list keeps the value until then.
                    self.exposed.append(r.data)
            elif r.kind == REQUEST_META:
                if put_meta(self.connection, r, not self.sink_taken):
                    self.exposed.append(r.data)
                if s.remote and not self.sink_taken:
                    r.sinks = self.sink_taken = self.memory.sink_named
            else:
                put_request(self.connection, r)
        except BaseException as error:
            # The stream may hold a part of the request.
            self.fail(error)
            raise
        self.answers.append(r)
        if self.reader is not None:
            self.count_change(r, 1)
        self.look_again()
        return 0

    # --- direct reads (docs/direct-reads.md) ---

    cdef int count_change(self, Request r, int by) except -1:
        cdef bytes key = r.encoded
        cdef object count
        if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
            # Of the gets only gat and gats, with `expire`, change the item.
            if r.expire is None:
                return 0
        elif r.kind == REQUEST_META:
            if r.key is None:
                return 0
            key = self.client.key_prefix + (r.key.encode() if isinstance(r.key, str) else r.key)
        count = self.changing.get(key, 0) + by
        if count:
            self.changing[key] = count
        else:
            del self.changing[key]
        return 0

    cdef bint may_read(self, bytes key):
        # A direct read must not overtake calls that wait for room, either.
        return (self.reader is not None and not self.waiting and not (self.changing and key in self.changing)
                and self.connection.generation == fork_count())

    cdef bytes read(self, bytes key, uint32_t *flags, uint64_t *cas):
        cdef bytes value
        if not self.may_read(key):
            return None
        value = self.reader.read(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), flags, cas)
        if value is not None:
            self.has_read(PyBytes_GET_SIZE(value))
        return value

    cdef Py_ssize_t read_into(self, bytes key, char *to, Py_ssize_t room) except -2:
        cdef Py_ssize_t length
        if not self.may_read(key):
            return -1
        length = self.reader.read_into(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), to, room)
        if length >= 0:
            self.has_read(min(length, room))
        return length

    cdef int has_read(self, Py_ssize_t length) except -1:
        self.eager -= READ_COST + length
        # Sends the report without waiting for a request, unless the server takes no input.
        if self.reader.told_later and self.stream.wlen <= OUTPUT_MOST:
            try:
                if self.stream.buffers == NULL:
                    self.stream.begin()
                self.put_hits()
            except BaseException as error:
                self.fail(error)
                raise
            self.look_again()
        return 0

    cdef bint gives_way(self, object call) except -1:
        if self.reader is None or self.eager > 0 and (not self.readers or self.readers[0] is call):
            return False
        if self.eager <= 0 and not self.renews:
            # `eager` is refilled once in a turn of the loop, for any number of waiting tasks.
            self.renews = True
            self.loop.call_soon(self._renew)
        return True

    def _renew(self):
        self.renews = False
        self.eager = EAGER_MOST

    cdef int put_hits(self) except -1:
        cdef char *to = self.stream.room(DIRECT_LINE)
        self.stream.wlen += put_report(self.reader, to)
        return 0

    cdef int tell_all(self) except -1:
        if (self.reader is not None and self.reader.report.total and self.connection is not None
                and self.connection.generation == fork_count()):
            if self.stream.buffers == NULL:
                self.stream.begin()
            self.put_hits()
            self.send_some()
        return 0

    def look_again(self):
        """Has the loop call `_step` in its next turn, without an event."""
        if not self.flushing and self.connection is not None:
            self.flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self):
        self.flushing = False
        if self.memory is not None:
            self.memory.copied = 0
        if self.connection is not None:
            self._step()

    def _writable(self):
        if self.connection is not None:
            self._step()

    def _readable(self):
        if self.connection is not None:
            self._step()

    def _step(self, sends=True):
        # Sends as much as possible, and takes the input.
        self.looked = coarse_ms()
        try:
            if sends:
                self.send_some()
            self.receive()
            if self.connection is not None and not self.answers:
                self.rest()
            if self.waiting:
                self.make_room()
        except Exception as error:
            self.fail(error)

    cdef bint all_sent(self):
        cdef Stream s = self.stream
        return s.iov_next == s.iov_count and s.wlen == s.wmark

    cdef int send_some(self) except -1:
        cdef Stream s = self.stream
        cdef size_t first, left
        cdef int r = -EINTR
        if s.buffers == NULL or s.wlen == 0:
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

    # --- answers: a serde may close the AsyncClient; self.connection is None then ---

    cdef int receive(self) except -1:
        cdef Connection c = self.connection
        cdef Stream s = self.stream
        cdef int64_t until = now_ns() + TURN_NS
        cdef int r = 1
        cdef bint come = False
        if s.buffers == NULL:
            s.begin()
        # The last call of `arm` may have taken input already.
        self.take_answers()
        while r != -EAGAIN and self.connection is not None:
            r = s.take_input()
            if s.wlen and s.remote and (r > 0 or r == -EAGAIN):
                # Credits may have come, with answers or alone: they allow more output.
                self.send_some()
            if r > 0:
                come = True
                self.take_answers()
            elif r == -EAGAIN and s.arm():
                come = True
                self.take_answers()
                r = 1
            elif r != -EAGAIN and r != -EINTR:
                raise c.broken(r)
            if r > 0 and now_ns() >= until:
                self.look_again()
                break
        if come:
            self.progress = self.loop.time()
        return 0

    cdef int take_answers(self) except -1:
        cdef Connection c = self.connection
        cdef Stream s = self.stream
        cdef Request r
        cdef list errors
        cdef int code
        while self.connection is not None:
            if self.body is not None:
                if not self.take_body():
                    return 0
                continue
            if not s.has_line():
                if s.rend - s.rpos > LINE_LIMIT:
                    raise c.broken(-EMSGSIZE)
                return 0
            code = read_reply(s, &c.reply)
            if code <= 0:
                raise c.broken(code)
            if not self.answers:
                raise c.broken(-EBADMSG)
            r = self.answers[0]
            if c.reply.code == REPLY_VA and self.begin_value(r):
                continue
            errors = []
            result = take_answer(c, r, errors)
            self.finish(r, errors[0] if errors else result)
        return 0

    cdef bint begin_value(self, Request r) except -1:
        # A value in the stream goes to a bytes object of its own, as it comes.
        cdef Connection c = self.connection
        cdef Stream s = self.stream
        cdef reply_line *reply = &c.reply
        cdef size_t length = reply.length
        if r.kind == REQUEST_META:
            if not r.sized:
                return False
        elif r.kind != REQUEST_GET and r.kind != REQUEST_GETS and r.kind != REQUEST_ARITHMETIC:
            return False
        if reply.in_memory and r.sinks:
            return False
        if reply.in_memory or length > VALUE_MOST:
            raise c.broken(-EBADMSG)
        if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
            c.check_value(r.encoded, r.kind == REQUEST_GETS)
        r.found_flags = reply.flags
        # Keep parts of the line: it is overwritten before the value is complete.
        if r.kind == REQUEST_META or r.kind == REQUEST_ARITHMETIC:
            r.answered = answer(s)
        if r.kind == REQUEST_GETS:
            r.cas = s.line[reply.cas_offset:reply.cas_offset + reply.cas_length]
        self.body = new_result(length)
        s.dst = PyBytes_AS_STRING(self.body)
        s.dst_left = length
        if s.remote:
            self.memory.saw_length(length)
        return True

    cdef bint take_body(self) except -1:
        # False: a part of the value has not come yet.
        cdef Connection c = self.connection
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
                raise c.broken(-EBADMSG)
            s.rpos += 2
        if s.classic:
            self.behind_value = not s.has_line()
            if self.behind_value:
                return False
            if s.read_end() <= 0:
                raise c.broken(-EBADMSG)
        value = self.body
        self.body = None
        r = self.answers[0]
        if r.kind == REQUEST_ARITHMETIC:
            result = number_of(value)
            if result is None:
                raise c.named(MemcacheUnknownError(r.answered[:32]))
        elif r.kind == REQUEST_META:
            result = read_meta(c, r, r.answered, value)
        else:
            r.found = True
            result = (value, r.cas) if r.kind == REQUEST_GETS else value
        self.finish(r, result)
        return True

    cdef int finish(self, Request r, object result) except -1:
        # The answer to the first of the requests is complete. Input behind the last request's answer is surplus.
        cdef Connection c = self.connection
        cdef bint more = len(self.answers) == 1 and self.stream.rpos != self.stream.rend
        if more and not isinstance(result, BaseException):
            raise c.unasked()
        self.answers.popleft()
        if self.changing:
            self.count_change(r, -1)
        if self.answers:
            c.name = (<Request>self.answers[0]).name
        self.resolve(r, result)
        if more and self.connection is not None:
            # The surplus input belongs to the refusal, or to no request.
            raise c.unasked()
        return 0

    cdef int resolve(self, Request r, object result) except -1:
        # result: the value of the answer, or an exception, also for a request without an answer (fail).
        cdef bint failed = isinstance(result, BaseException)
        if r.data is not None and self.stream.iov_next != self.stream.iov_count:
            # The server has refused the value before all of it was sent: the stream still needs the rest.
            self.exposed.append(r.data)
        if r.sinks:
            self.memory.release_sink()
            self.sink_taken = False
        if r.found and not failed and not r.raw and self.client.serde is not None and r.wanted():
            try:
                result = load_result(self.client, r, result)
            except BaseException as error:
                # Also catches exceptions that end the program or a task: otherwise the caller would wait for ever.
                result = error
                failed = True
        if failed and r.ignores and self.client.ignore_exc and isinstance(result, Exception):
            result = r.default
            failed = False
        if r.group is not None:
            (<Group>r.group).put(r.place, result)
        elif r.future is not None and not r.future.done():
            if failed:
                # A future refuses a StopIteration.
                r.future.set_exception(RuntimeError(repr(result)) if isinstance(result, StopIteration) else result)
            else:
                r.future.set_result(result)
        return 0

    # --- time, and the end ---

    cdef int rest(self) except -1:
        cdef Stream s = self.stream
        if s.buffers != NULL and self.all_sent():
            if self.memory is not None:
                self.memory.unexpose()
            s.end()
            self.exposed.clear()
        if s.arm():
            self.look_again()
        return 0

    def _look_at_time(self):
        """Fails the connection if the timeout has passed without progress; else looks again later."""
        self.timer = None
        if self.connection is not None and self.answers:
            # A busy loop may not have read the input yet. Nothing is sent into a full socket: output into its last free
            # bytes would look like progress of the server.
            self._step(not self.writing or is_writable(self.descriptors[0]))
        if self.connection is None or not self.answers:
            return
        left = self.progress + self.client.timeout - self.loop.time()
        if left > 0:
            self.timer = self.loop.call_later(left, self._look_at_time)
        else:
            self.fail(self.connection.broken(-ETIMEDOUT))

    def close(self, error=None):
        """Closes the connection. Waiting calls get the error."""
        try:
            self.tell_all()
        except Exception as failure:
            error = error or failure
        self.fail(error or MemcacheUnexpectedCloseError("the AsyncClient was closed"))

    cdef int fail(self, object error) except -1:
        cdef Connection c = self.connection
        cdef Request r
        if c is None:
            return 0
        self.error = error
        self.connection = None
        self.reader = None
        self.changing = None
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
        if self.connection is None or self.connection.generation != fork_count():
            return False
        # A loop that was busy, or did not run, has not seen that the server has ended the connection.
        if not self.answers and coarse_ms() - self.looked >= IDLE_MS and self.stream.has_gone():
            self.fail(self.connection.named(MemcacheUnexpectedCloseError("the server has ended the connection")))
        return self.connection is not None


cdef tuple open_connection(Client client, object logged):
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
