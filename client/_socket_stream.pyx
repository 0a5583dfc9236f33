"""See _socket_stream.pxd."""

import time

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from libc.errno cimport EAGAIN, EPROTO, ETIMEDOUT
from posix.unistd cimport getpid

from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, live_add, live_sub
from rmemcached.sys.linux cimport SHUT_RDWR

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *mem, Py_ssize_t size, int flags)

cdef enum:
    RECEIVE_MIN = 4096       # bytes of room for which input is asked at least
    SEND_MOST = 65536        # bytes that are sent at a time

# Seconds for which a send may wait while input may come as well: one of the two is waited for at a time.
cdef object SLICE = 0.01
# What a TLS socket without data raises, by name: the module ssl takes long to import.
cdef tuple WOULD_BLOCK = ("SSLWantReadError", "SSLWantWriteError")


cdef bint would_block(object error):
    return isinstance(error, (BlockingIOError, TimeoutError)) or type(error).__name__ in WOULD_BLOCK


cdef class SocketStream(Stream):
    """The stream of a connected socket object, which belongs to it afterwards.

    timeout: seconds for each wait, or None.
    """

    def __cinit__(self):
        self.pid = getpid()

    def __init__(self, sock, timeout):
        self.sock = sock
        self.limit = timeout
        self.timeout_ms = -1 if timeout is None else int(timeout * 1000)
        self.needs_gil = True
        self.inline_limit = <size_t>-1
        live_add(LIVE_CLIENT_CONN)

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        cdef object sock = self.sock
        if sock is None:
            return
        self.sock = None
        live_sub(LIVE_CLIENT_CONN)
        try:
            # Another process may hold a copy of the descriptor; the server is to see the end now.
            if getpid() == self.pid:
                sock.shutdown(<int>SHUT_RDWR)
        except Exception:
            pass
        try:
            sock.close()
        except Exception:
            pass

    cdef int failed(self, object error) noexcept:
        # A method of the socket has raised; its exception is raised in place of what the number says.
        if isinstance(error, TimeoutError):
            return -ETIMEDOUT
        if isinstance(error, OSError) and error.errno:
            return -<int>error.errno
        self.error = error
        return -EPROTO

    cdef object view(self, char *data, size_t length, bint readonly):
        return PyMemoryView_FromMemory(data, length, PyBUF_READ if readonly else PyBUF_WRITE)

    # --- sending ---

    cdef bint send_some(self, object seconds) except -1:
        cdef size_t length = min(<size_t>self.iov[self.iov_next].iov_len, <size_t>SEND_MOST)
        self.sock.settimeout(seconds)
        try:
            self.sent(self.sock.send(self.view(<char *>self.iov[self.iov_next].iov_base, length, True)))
        except Exception as error:
            if not would_block(error):
                raise
            return False
        return True

    cdef int push(self) noexcept nogil:
        with gil:
            try:
                while self.iov_next < self.iov_count and self.send_some(0):
                    pass
                return 1
            except BaseException as error:
                return self.failed(error)

    # --- receiving ---

    cdef ssize_t receive_some(self, char *to, size_t size, object seconds) except? -1:
        self.sock.settimeout(seconds)
        try:
            return self.sock.recv_into(self.view(to, size, False))
        except Exception as error:
            if not would_block(error):
                raise
            return -EAGAIN

    cdef ssize_t wait_for_input(self, char *to, size_t size) except? -1:
        # As receive_some; sends meanwhile. -ETIMEDOUT when nothing has come or gone for the limit.
        cdef object since = time.monotonic()
        cdef ssize_t n
        while self.iov_next < self.iov_count:
            n = self.receive_some(to, size, 0)
            if n != -EAGAIN:
                return n
            if self.send_some(SLICE):
                since = time.monotonic()
            elif self.limit is not None and time.monotonic() - since > self.limit:
                return -ETIMEDOUT
        n = self.receive_some(to, size, self.limit)
        return -ETIMEDOUT if n == -EAGAIN else n

    cdef int drain(self) noexcept nogil:
        cdef ssize_t n
        with gil:
            try:
                since = time.monotonic()
                while self.iov_next < self.iov_count:
                    if self.send_some(SLICE):
                        since = time.monotonic()
                        continue
                    # A server whose replies nobody takes stops reading.
                    if self.reserve_input(RECEIVE_MIN) <= 0:
                        raise MemoryError
                    n = self.receive_some(self.rbuf + self.rend, self.rcap - self.rend, 0)
                    if n > 0:
                        self.rend += n
                        since = time.monotonic()
                    elif n == 0:
                        return 0
                    elif self.limit is not None and time.monotonic() - since > self.limit:
                        return -ETIMEDOUT
                return 1
            except BaseException as error:
                return self.failed(error)

    cdef int fill(self) noexcept nogil:
        cdef ssize_t n
        with gil:
            try:
                if self.reserve_input(RECEIVE_MIN) <= 0:
                    raise MemoryError
                n = self.wait_for_input(self.rbuf + self.rend, self.rcap - self.rend)
                if n <= 0:
                    return <int>n
                self.rend += n
                return 1
            except BaseException as error:
                return self.failed(error)

    cdef int fill_body(self) noexcept nogil:
        cdef ssize_t n
        with gil:
            try:
                n = self.wait_for_input(self.dst, self.dst_left)
                if n <= 0:
                    return <int>n
                self.dst += n
                self.dst_left -= n
                return 1
            except BaseException as error:
                return self.failed(error)

    cdef int take_input(self) noexcept nogil:
        cdef ssize_t n
        with gil:
            try:
                if self.reserve_input(RECEIVE_MIN) <= 0:
                    raise MemoryError
                n = self.receive_some(self.rbuf + self.rend, self.rcap - self.rend, 0)
                if n <= 0:
                    return <int>n
                self.rend += n
                return 1
            except BaseException as error:
                return self.failed(error)

    cdef object socket_object(self):
        return self.sock
