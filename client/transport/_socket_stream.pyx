"""See _socket_stream.pxd."""

from _socket import socket as plain_socket

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, ECONNRESET, EPIPE, EPROTO, ETIMEDOUT
from libc.stdint cimport int64_t
from libc.string cimport memcpy
from posix.uio cimport iovec
from posix.unistd cimport getpid

from rmemcached.client.transport._tcp cimport hung_up
from rmemcached.client.transport._timeouts cimport milliseconds
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, live_add, live_sub
from rmemcached.sys.linux cimport SHUT_RDWR

cdef enum:
    RECEIVE_MIN = 4096       # bytes of room for input at least
    SMALL = 16384            # bytes of a request sent as a whole, whatever the server does meanwhile
    PIECE = 65536            # bytes up to which parts of the output are joined
    ALL_SENT = -3

cdef object NOTHING = 0.0
cdef object SLICE = 0.01     # seconds


cdef bint is_wait(object error, object seconds, int64_t begin):
    """Whether this error of a socket's method means that there was nothing to do for so many seconds since `begin`.

    A signal handler may raise TimeoutError as well, for the caller.
    """
    if isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
        return True
    if type(error) is not TimeoutError or not str(error).endswith("timed out") or seconds is None:
        return False
    # Event loops look at the clock once per turn: their timers may be early.
    return now_ns() - begin >= <int64_t>(seconds * 5e8)


cdef class SocketStream(Stream):
    """The stream of a connected socket object. The socket belongs to the stream afterwards.

    timeout: seconds for each wait, or None.
    """

    def __init__(self, sock, timeout):
        self.pid = getpid()
        self.timeout_ms = milliseconds(timeout, -1)
        self.limit = None if timeout is None else float(timeout)
        self.slice = SLICE if timeout is None or timeout > SLICE else self.limit
        self.needs_gil = True
        self.waits = True
        # Sockets of other classes, such as gevent's, belong to the event loop of a thread.
        self.of_thread = not isinstance(getattr(sock, "inner", sock), plain_socket)
        self.inline_limit = <size_t>-1
        self.sock = sock
        live_add(LIVE_CLIENT_CONN)

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        sock = self.sock
        if sock is None:
            return
        self.sock = None
        live_sub(LIVE_CLIENT_CONN)
        try:
            # Another process may hold a copy of the descriptor; the server is to see the end now.
            if getpid() == self.pid:
                sock.shutdown(SHUT_RDWR)
        except Exception:
            # The server has closed the connection already.
            pass
        try:
            sock.close()
        except Exception:
            pass

    cdef object socket_object(self):
        return self.sock

    cdef int keep(self, error) noexcept:
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return -EPIPE if error.errno == EPIPE else -ECONNRESET
        self.error = error
        return -EPROTO

    # --- with the GIL, and with exceptions ---

    cdef int64_t deadline(self) noexcept:
        return now_ns() + <int64_t>self.timeout_ms * 1000000 if self.timeout_ms >= 0 else 0

    cdef object piece(self):
        cdef iovec *v = self.iov + self.iov_next
        cdef size_t last = self.iov_next
        cdef size_t total = 0
        cdef size_t n
        cdef bytes joined
        cdef char *to
        if v.iov_len >= PIECE or self.iov_next + 1 == self.iov_count:
            return PyMemoryView_FromMemory(<char *>v.iov_base, v.iov_len, PyBUF_READ)
        # After a send that found no room, TLS must be given the same bytes again: they depend only on the rest of the
        # output.
        while last < self.iov_count and total < PIECE:
            total += min(self.iov[last].iov_len, PIECE - total)
            last += 1
        joined = PyBytes_FromStringAndSize(NULL, total)
        to = PyBytes_AS_STRING(joined)
        while total:
            n = min(v.iov_len, total)
            memcpy(to, v.iov_base, n)
            to += n
            total -= n
            v += 1
        return joined

    cdef Py_ssize_t send_some(self, object seconds) except -2:
        cdef object piece = self.piece()
        cdef int64_t begin = now_ns()
        cdef Py_ssize_t n
        try:
            if self.sock.gettimeout() != seconds:
                self.sock.settimeout(seconds)
            n = self.sock.send(piece)
        except OSError as error:
            if is_wait(error, seconds, begin):
                return -1
            raise
        finally:
            if isinstance(piece, memoryview):
                # A traceback may keep the view for longer than the memory.
                piece.release()
        if n <= 0:
            # gevent's TLS sockets return such a number when there is no room.
            return -1
        self.sent(n)
        return n

    cdef Py_ssize_t receive_some(self, char *to, size_t room, object seconds) except -2:
        cdef object view = PyMemoryView_FromMemory(to, room, PyBUF_WRITE)
        cdef int64_t begin = now_ns()
        try:
            if self.sock.gettimeout() != seconds:
                self.sock.settimeout(seconds)
            return self.sock.recv_into(view)
        except OSError as error:
            if is_wait(error, seconds, begin):
                return -1
            raise
        finally:
            view.release()

    cdef bint send_ready(self) except -1:
        cdef bint some = False
        while self.iov_next < self.iov_count and self.send_some(NOTHING) > 0:
            some = True
        return some

    cdef Py_ssize_t send_or_receive(self, char *to, size_t room) except -2:
        # A server stops reading while nobody takes its answers. No kind of wait for both directions works on all kinds
        # of sockets: the stream waits in the direction of the last progress, and looks at the opposite direction now
        # and then.
        cdef int64_t until = self.deadline()
        cdef Py_ssize_t n
        while self.iov_next < self.iov_count:
            if self.send_ready():
                self.reads = False
                until = self.deadline()
                continue
            n = self.receive_some(to, room, NOTHING)
            if n >= 0:
                self.reads = True
                return n
            if until and now_ns() >= until:
                return -1
            if self.reads:
                n = self.receive_some(to, room, self.slice)
                if n >= 0:
                    return n
            elif self.send_some(self.slice) > 0:
                until = self.deadline()
            self.reads = False
        self.flowing = False
        self.reads = False
        return ALL_SENT

    cdef Py_ssize_t receive(self, char *to, size_t room) except -2:
        cdef Py_ssize_t n = self.send_or_receive(to, room)
        return self.receive_some(to, room, self.limit) if n == ALL_SENT else n

    cdef int push_now(self) except -2:
        cdef size_t left = 0
        cdef size_t i
        if not self.waits:
            self.send_ready()
            return 1
        if not self.flowing:
            for i in range(self.iov_next, self.iov_count):
                left += self.iov[i].iov_len
                if left > SMALL:
                    self.flowing = True
                    break
        if self.flowing:
            self.send_ready()
            self.flowing = self.iov_next < self.iov_count
            return 1
        while self.iov_next < self.iov_count:
            if self.send_some(self.limit) < 0:
                return -ETIMEDOUT
        return 1

    cdef int drain_now(self) except -2:
        cdef Py_ssize_t n
        cdef int r = self.push_now()
        while r > 0 and self.iov_next < self.iov_count:
            r = self.reserve_input(RECEIVE_MIN)
            if r <= 0:
                break
            n = self.send_or_receive(self.rbuf + self.rend, self.rcap - self.rend)
            if n > 0:
                self.rend += n
            elif n != ALL_SENT:
                r = 0 if n == 0 else -ETIMEDOUT
        return r

    cdef Py_ssize_t receive_quietly(self, char *to, size_t room) noexcept:
        cdef Py_ssize_t n
        try:
            n = self.receive(to, room)
        except BaseException as error:
            return self.keep(error)
        return n if n >= 0 else -ETIMEDOUT

    # --- the methods of Stream ---

    cdef int push(self) noexcept nogil:
        with gil:
            try:
                return self.push_now()
            except BaseException as error:
                return self.keep(error)

    cdef int drain(self) noexcept nogil:
        with gil:
            try:
                return self.drain_now()
            except BaseException as error:
                return self.keep(error)

    cdef int fill(self) noexcept nogil:
        cdef Py_ssize_t n
        cdef int r = self.reserve_input(RECEIVE_MIN)
        if r <= 0:
            return r
        with gil:
            n = self.receive_quietly(self.rbuf + self.rend, self.rcap - self.rend)
        if n <= 0:
            return <int>n
        self.rend += n
        return 1

    cdef int fill_body(self) noexcept nogil:
        cdef Py_ssize_t n
        if self.dst_left < RECEIVE_MIN:
            # Bytes behind the value come along.
            return self.fill()
        with gil:
            n = self.receive_quietly(self.dst, self.dst_left)
        if n <= 0:
            return <int>n
        self.dst += n
        self.dst_left -= n
        return 1

    cdef bint has_gone(self) noexcept:
        try:
            return hung_up(self.sock.fileno())
        except Exception:
            # Another module's sockets may have no descriptor: their end shows when they are used.
            return False

    cdef int take_input(self) noexcept nogil:
        cdef Py_ssize_t n
        cdef int r = self.reserve_input(RECEIVE_MIN)
        if r <= 0:
            return r
        with gil:
            try:
                n = self.receive_some(self.rbuf + self.rend, self.rcap - self.rend, NOTHING)
            except BaseException as error:
                return self.keep(error)
        if n <= 0:
            return 0 if n == 0 else -EAGAIN
        self.rend += n
        return 1

    # --- for event loops ---

    cdef bint join_loop(self) noexcept:
        # Greenlets' sockets have a loop of their own, and join no other.
        self.waits = self.of_thread
        return not self.waits and Stream.join_loop(self)

    cdef list descriptors(self):
        return [self.sock.fileno()]

    cdef bint tells_room(self) noexcept:
        return True
