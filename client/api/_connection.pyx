"""See _connection.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EBADMSG, ECONNRESET, EINTR, EMSGSIZE, ENOMEM, EPIPE, EPROTO, ETIMEDOUT
from libc.string cimport strerror

from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.transport._rdma cimport memory_of
from rmemcached.client.transport._results cimport new_result
from rmemcached.client.wire._classic cimport is_value_of
from rmemcached.client.wire._commands cimport answer, bytes_of_key, error_of, is_error, number_of, put_mark
from rmemcached.client.wire._reply cimport (
    REPLY_EN,
    REPLY_EX,
    REPLY_HD,
    REPLY_MN,
    REPLY_NF,
    REPLY_NS,
    REPLY_NUMBER,
    REPLY_VA,
    next_reply,
    read_reply,
)

from rmemcached.client.exceptions import (
    MemcacheError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from rmemcached.client.transport.sockets import name_failure, server_text

cdef enum:
    SYNC_INTERVAL = 1024     # commands without a reply after which the client looks for error lines
    BODY_MAX = 0x7FFFFFFF    # bytes; a reply with a longer value counts as broken
    SHOWN = 32               # bytes of a line in an exception


MISS = object()


cdef inline bytes whole_value(Connection c):
    # The value behind the line just read, if all of the value has come. None: the caller must read the value.
    cdef Stream s = c.stream
    cdef size_t come = s.rend - s.rpos
    cdef char *data = s.rbuf + s.rpos
    cdef size_t n = c.reply.length
    if s.classic or c.reply.in_memory or come < 2 or n > come - 2 or data[n] != c'\r' or data[n + 1] != c'\n':
        return None
    if s.remote:
        memory_of(s).saw_length(n)
    s.rpos += n + 2
    return PyBytes_FromStringAndSize(data, n)


cdef int take_step(Stream s, reply_line *reply, stream_step what) noexcept nogil:
    cdef int r
    if what == PUSH_AND_READ:
        r = s.push()
        return read_reply(s, reply) if r > 0 else r
    if what == READ_REPLY:
        return read_reply(s, reply)
    if what == READ_BODY:
        return s.read_body()
    if what == DRAIN:
        return s.drain()
    return s.fill()


cdef void close_quietly(sock) noexcept:
    try:
        sock.close()
    except Exception:
        pass


cdef class Connection:

    cdef void close(self) noexcept:
        cdef Stream s = self.stream
        if s is not None:
            self.stream = None
            if self.sock is not None and not s.needs_gil:
                close_quietly(self.sock)
            if not self.leaves_open(s):
                s.close()

    cdef bint leaves_open(self, Stream s) noexcept:
        cdef Pins pins = self.pins
        if pins is None:
            return False
        self.pins = None
        pins.leave()
        return pins.live != 0 and s.may_stay()

    cdef object broken(self, int code):
        cdef Stream s = self.stream
        cdef str text
        s.late |= code == -ETIMEDOUT
        if code == -ETIMEDOUT and s.timeout_ms >= 0:
            return TimeoutError(f"{server_text(self.server)}: {self.command()}: timed out: nothing has come for"
                                f" {s.timeout_ms / 1000.0:g} s")
        if code == -EMSGSIZE or code == -EBADMSG:
            line = s.line[:min(s.line_length, <size_t>SHOWN)] if code == -EBADMSG else b"answer too long"
            return self.named(MemcacheUnknownError(line))
        if code == -ENOMEM:
            return MemoryError()
        if code == -EPROTO and s.error is not None:
            return self.failed(s.error)
        self.ended = True
        if (code == -EPIPE or code == -ECONNRESET) and not s.remote and s.take_input() > 0 and s.has_line():
            # The server may have sent the reason before it closed the connection, without reading the request.
            s.read_line()
            if is_error(answer(s)):
                return self.named(error_of(answer(s), self.name))
        text = s.failure_text()
        if code == 0 or text:
            return self.named(MemcacheUnexpectedCloseError(text or "the server has ended the connection"))
        return OSError(-code, f"{strerror(-code).decode()} during {self.command()}", server_text(self.server))

    cdef object failed(self, object error):
        # An error without an errno is not the connection's: a signal handler or an event loop has raised it.
        if isinstance(error, OSError) and error.errno is not None:
            self.ended = True
            name_failure(error, self.server, self.command())
        return error

    cdef str command(self):
        return self.name.decode("ascii", "backslashreplace")

    cdef object named(self, object error):
        if isinstance(error, MemcacheError):
            error.server = server_text(self.server)
            error.command = self.command()
        return error

    cdef bint has_more(self) noexcept:
        # Error lines of commands without replies may come at any time: such input is no surplus.
        return self.stream.rpos != self.stream.rend and self.stream.noreplies == 0

    cdef object unasked(self):
        cdef Stream s = self.stream
        found = s.rbuf[s.rpos:min(s.rend, s.rpos + SHOWN)]
        return self.named(MemcacheUnknownError(f"the server has sent more than the answer: {found!r}"))

    cdef int interrupted(self, int code) except -1:
        if code != -EINTR:
            raise self.broken(code)
        PyErr_CheckSignals()
        if self.generation != fork_count():
            raise self.named(
                MemcacheUnexpectedCloseError("the process was forked meanwhile, and its parent has the answer"))
        return 0

    cdef int step(self, stream_step first, stream_step again) except -1:
        cdef Stream s = self.stream
        cdef int r
        if s.needs_gil:
            r = take_step(s, &self.reply, first)
        else:
            with nogil:
                r = take_step(s, &self.reply, first)
        while r <= 0:
            self.interrupted(r)
            if s.needs_gil:
                r = take_step(s, &self.reply, again)
            else:
                with nogil:
                    r = take_step(s, &self.reply, again)
        return 0

    cdef int exchange(self) except -1:
        self.stream.commit()
        return self.step(PUSH_AND_READ, READ_REPLY)

    cdef int ahead(self, Py_ssize_t count, Py_ssize_t batch) except -1:
        cdef Stream s = self.stream
        cdef LaneMemory memory = memory_of(s)
        cdef int r
        if memory is not None and (count % batch == 0 or memory.named >= AHEAD_BYTES):
            memory.named = 0
            s.commit()
            r = s.push()
            if r <= 0:
                self.interrupted(r)
        return 0

    cdef int next_line(self) except -1:
        cdef int r = next_reply(self.stream, &self.reply)
        if r > 0:
            return 0
        if r != -EAGAIN:
            self.interrupted(r)
        return self.step(READ_REPLY, READ_REPLY)

    cdef int read_answer(self, bint first) except -1:
        return self.exchange() if first else self.next_line()

    cdef int fill(self) except -1:
        return self.step(FILL, FILL)

    cdef int send(self) except -1:
        self.stream.commit()
        return self.step(DRAIN, DRAIN)

    cdef int unanswered(self, size_t commands) except -1:
        cdef Stream s = self.stream
        self.send()
        if s.remote and s.has_ended():
            raise self.broken(0)
        s.noreplies += commands
        if s.noreplies >= SYNC_INTERVAL and not s.unmarked:
            s.begin()
            self.synchronise()
        return 0

    cdef int synchronise(self) except -1:
        cdef Stream s = self.stream
        put_mark(s)
        s.noreplies = 0
        self.exchange()
        while self.reply.code != REPLY_MN:
            self.next_line()
        return 0

    cdef int values_sent(self) except -1:
        cdef Stream s = self.stream
        if s.iov_next < s.iov_count:
            # The server has refused a value before all of it was sent: sends the rest.
            self.send()
        return memory_of(s).unexpose() if s.remote else 0

    cdef int release_sink(self) except -1:
        return memory_of(self.stream).release_sink() if self.stream.remote else 0

    cdef LaneMemory filled(self):
        cdef LaneMemory memory = memory_of(self.stream)
        if memory is None or not memory.sink_named or not memory.filled(self.reply.length):
            raise self.broken(-EBADMSG)
        return memory

    cdef int check_value(self, object key, bint with_cas) except -1:
        cdef Stream s = self.stream
        if (with_cas and self.reply.cas_length == 0) or (s.classic and not is_value_of(s, bytes_of_key(key))):
            raise self.broken(-EBADMSG)
        return 0

    cdef bytes value(self):
        cdef size_t n = self.reply.length
        cdef bytes value
        if self.reply.in_memory:
            return self.filled().take(n)
        if n > BODY_MAX:
            raise self.broken(-EBADMSG)
        value = new_result(n)
        self.read_inline(PyBytes_AS_STRING(value), n)
        return value

    cdef object value_view(self):
        return self.filled().lend(self.reply.length) if self.reply.in_memory else memoryview(self.value())

    cdef Py_ssize_t value_into(self, char *to, size_t size) except -1:
        cdef size_t n = self.reply.length
        if self.reply.in_memory:
            self.filled().take_into(to, size, n)
        elif n > size:
            self.value()
        else:
            self.read_inline(to, n)
        return n

    cdef int read_inline(self, char *to, size_t length) except -1:
        cdef Stream s = self.stream
        cdef int r
        s.dst = to
        s.dst_left = length
        if s.remote:
            memory_of(s).saw_length(length)
        if s.rend - s.rpos >= length + 2 and not s.classic:
            r = s.read_body()
            if r > 0:
                return 0
            self.interrupted(r)
        return self.step(READ_BODY, READ_BODY)

    cdef int refused(self, list errors) except -1:
        return self.refused_by(answer(self.stream), errors)

    cdef int refused_by(self, bytes line, list errors) except -1:
        error = self.named(error_of(line, self.name))
        if isinstance(error, (MemcacheUnknownCommandError, MemcacheUnknownError)) or line.startswith(b"ERROR"):
            raise error
        if self.stream.doubtful:
            # The error may belong to an earlier command without a reply, and this command's answer may still come.
            raise error
        errors.append(error)
        return 0

    cdef object stored(self, list errors):
        if self.reply.code == REPLY_HD:
            return True
        if self.reply.code == REPLY_NS or self.reply.code == REPLY_EX:
            return False
        if self.reply.code != REPLY_NF:
            self.refused(errors)
        return None

    cdef object fetched(self, object key, fetch_form form, uint32_t *flags, list errors):
        cdef Stream s = self.stream
        cdef bytes cas
        if form == FETCH_VALUE and self.reply.code == REPLY_VA:
            value = whole_value(self)
            if value is not None:
                flags[0] = self.reply.flags
                return value
        if self.reply.code == REPLY_VA:
            self.check_value(key, form == FETCH_VALUE_AND_CAS)
            flags[0] = self.reply.flags
            if form == FETCH_VALUE:
                return self.value()
            if form == FETCH_VIEW:
                return self.value_view()
            cas = s.line[self.reply.cas_offset:self.reply.cas_offset + self.reply.cas_length]
            return self.value(), cas
        if self.reply.code != REPLY_EN:
            self.refused(errors)
        return MISS

    cdef object number(self, list errors):
        cdef object number
        if self.reply.code == REPLY_VA or self.reply.code == REPLY_NUMBER:
            line = answer(self.stream)
            number = number_of(line if self.reply.code == REPLY_NUMBER else self.value())
            if number is None:
                raise self.named(MemcacheUnknownError(line[:32]))
            return number
        if self.reply.code != REPLY_NF:
            self.refused(errors)
        return None
