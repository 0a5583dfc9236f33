"""See _session.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADMSG, EINTR, EMSGSIZE, ENOMEM, ETIMEDOUT
from libc.string cimport strerror

from rmemcached.client._reply cimport REPLY_MN
from rmemcached.sys.debug cimport assert_that
from rmemcached.sys.linux cimport pthread_atfork

from rmemcached.client._exchange import SOFT_SHM
from rmemcached.client.connection import TRANSPORTS, open_stream
from rmemcached.client.exceptions import MemcacheUnexpectedCloseError, MemcacheUnknownError
from rmemcached.client.sockets import KeepaliveOpts, normalize_server

cdef enum:
    SYNC_INTERVAL = 1024     # commands without a reply after which the client looks for error lines
    BODY_MAX = 0x7FFFFFFF    # bytes; a reply that announces more is not believed
    SHOWN = 32               # bytes of a line that an exception shows

# How many forks separate this process from the one that imported the module.
cdef unsigned int fork_generation = 0


cdef void after_fork_in_child() noexcept nogil:
    global fork_generation
    fork_generation += 1


pthread_atfork(NULL, NULL, after_fork_in_child)


cdef class Session:

    cdef int configure(self, server, connect_timeout, timeout, no_delay, keepalive, transport, spin,
                       rdma_cm_port) except -1:
        self.server = normalize_server(server)
        for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive seconds or None, not {seconds!r}")
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.no_delay = no_delay
        if keepalive is not None and not isinstance(keepalive, KeepaliveOpts):
            for name in ("idle", "intvl", "cnt"):
                if not hasattr(keepalive, name):
                    raise ValueError("socket_keepalive must be a KeepaliveOpts object")
        self.socket_keepalive = keepalive
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
        if transport not in ("auto", SOFT_SHM, "tcp") and isinstance(self.server, str):
            raise ValueError(f"transport {transport!r} needs a host and port, not the UNIX socket {self.server!r}")
        self._wanted = transport
        if spin is not None and not spin >= 0:
            raise ValueError(f"spin must be microseconds from 0 up, not {spin!r}")
        self.spin = spin
        if rdma_cm_port is not None and not 1 <= rdma_cm_port <= 65535:
            raise ValueError(f"rdma_cm_port must be from 1 to 65535, not {rdma_cm_port!r}")
        if rdma_cm_port is not None and isinstance(self.server, str):
            raise ValueError(f"rdma_cm_port needs a host and port, not the UNIX socket {self.server!r}")
        self.rdma_cm_port = rdma_cm_port
        return 0

    # --- calls ---

    cdef bint foreign(self) noexcept:
        return self._generation != fork_generation

    cdef Stream enter(self, bint quiet):
        cdef Stream s
        if self._busy:
            raise RuntimeError("this Client is in use, by another thread or its own serde; it takes one call at a time")
        s = self._stream
        if s is None:
            self._busy = True
            try:
                self._stream, self._transport, self._logged = open_stream(self, self._wanted, self._logged)
            finally:
                self._busy = False
            self._generation = fork_generation
            s = self._stream
        elif self.foreign():
            raise RuntimeError(
                "this Client's connection belongs to the parent process: call close() first, or make a new Client"
            )
        s.begin()
        self._busy = True
        if s.noreplies and not quiet:
            # Error lines of commands that were sent without wanting an answer may precede the answer.
            s.put("mn\r\n", 4)
        return s

    cdef int leave(self, list errors) except -1:
        assert_that(self._busy)
        self._stream.end()
        self._busy = False
        if errors:
            raise errors[0]
        return 0

    cdef void drop(self) noexcept:
        cdef Stream s = self._stream
        self._stream = None
        self._transport = None
        self._busy = False
        if s is not None:
            s.close()

    # --- sending and receiving ---

    cdef object broken(self, Stream s, int code):
        cdef str text
        if code == -ETIMEDOUT:
            return TimeoutError("timed out")
        if code == -EMSGSIZE or code == -EBADMSG:
            line = s.line[:min(s.line_length, <size_t>SHOWN)] if code == -EBADMSG else b"line too long"
            return MemcacheUnknownError(line)
        if code == -ENOMEM:
            return MemoryError()
        text = s.failure_text()
        if code == 0 or text:
            return MemcacheUnexpectedCloseError(text or "the server has ended the connection")
        return OSError(-code, strerror(-code).decode())

    cdef int interrupted(self, Stream s, int code) except -1:
        if code != -EINTR:
            raise self.broken(s, code)
        return PyErr_CheckSignals()

    cdef int exchange(self, Stream s) except -1:
        cdef int r
        assert_that(self._busy)
        s.commit()
        with nogil:
            r = s.push()
            if r > 0:
                r = s.read_reply()
        while r <= 0:
            self.interrupted(s, r)
            with nogil:
                r = s.read_reply()
        return 0

    cdef int next(self, Stream s) except -1:
        cdef int r
        if s.has_line():
            r = s.read_reply()
        else:
            with nogil:
                r = s.read_reply()
        while r <= 0:
            self.interrupted(s, r)
            with nogil:
                r = s.read_reply()
        return 0

    cdef int read_answer(self, Stream s, bint first) except -1:
        return self.exchange(s) if first else self.next(s)

    cdef int send(self, Stream s) except -1:
        cdef int r
        s.commit()
        with nogil:
            r = s.drain()
        while r <= 0:
            self.interrupted(s, r)
            with nogil:
                r = s.drain()
        return 0

    cdef int unanswered(self, Stream s, size_t commands) except -1:
        self.send(s)
        s.noreplies += commands
        if s.noreplies >= SYNC_INTERVAL:
            s.begin()
            self.synchronise(s)
        return 0

    cdef int synchronise(self, Stream s) except -1:
        s.put("mn\r\n", 4)
        s.noreplies = 0
        self.exchange(s)
        while s.reply.code != REPLY_MN:
            self.next(s)
        return 0

    cdef int values_sent(self, Stream s) except -1:
        if s.iov_next < s.iov_count:
            # A value that is refused is answered before all of it was sent.
            self.send(s)
        return s.unexpose()

    cdef bytes value(self, Stream s):
        cdef size_t n = s.reply.length
        cdef bytes value
        if s.reply.in_memory and s.sink_named:
            return s.take_sink(n)
        if s.reply.in_memory or n > BODY_MAX:
            raise MemcacheUnknownError(s.line[:min(s.line_length, <size_t>SHOWN)])
        value = PyBytes_FromStringAndSize(NULL, n)
        self.read_inline(s, PyBytes_AS_STRING(value), n)
        return value

    cdef Py_ssize_t value_into(self, Stream s, char *to, size_t size) except -1:
        cdef size_t n = s.reply.length
        if s.reply.in_memory and s.sink_named:
            s.take_target(to, size, n)
        elif s.reply.in_memory or n > size:
            self.value(s)
        else:
            self.read_inline(s, to, n)
        return n

    cdef int read_inline(self, Stream s, char *to, size_t length) except -1:
        # A value that comes in the stream.
        cdef int r
        s.dst = to
        s.dst_left = length
        if s.remote:
            s.saw_length(length)
        if s.rend - s.rpos >= length + 2:
            r = s.read_body()
        else:
            with nogil:
                r = s.read_body()
        while r <= 0:
            self.interrupted(s, r)
            with nogil:
                r = s.read_body()
        return 0
