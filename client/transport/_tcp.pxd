"""The plain transport: a memcached connection over TCP or a UNIX socket."""

from posix.uio cimport iovec

from rmemcached.client.transport._spin cimport spinning
from rmemcached.client.transport._stream cimport Stream


# Whether the peer of a socket has ended the connection.
cdef bint hung_up(int fd) noexcept nogil


cdef class TcpStream(Stream):
    cdef int fd              # -1: closed
    cdef int pid             # of the process of the stream's creation
    cdef spinning spin

    # Sets the wait's deadline, unless an interrupted wait has set the deadline before.
    cdef void begin_wait(self) noexcept nogil
    # begin_wait, and poll() for these events.
    cdef int wait(self, short events) noexcept nogil
    cdef ssize_t receive(self, iovec *iov, int count) noexcept nogil
