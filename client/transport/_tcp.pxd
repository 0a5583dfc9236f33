"""The plain transport: a memcached connection over TCP or a UNIX socket."""

from posix.uio cimport iovec

from rmemcached.client.transport._spin cimport spinning
from rmemcached.client.transport._stream cimport Stream


# Whether the peer of a connected socket has ended the connection; unread input may still be there.
cdef bint hung_up(int fd) noexcept nogil


cdef class TcpStream(Stream):
    cdef int fd              # -1: closed
    cdef int pid             # of the process of the stream's creation
    cdef spinning spin

    # Sets the deadline of a wait, `until`, unless an interrupted wait has set it before.
    cdef void begin_wait(self) noexcept nogil
    # Calls begin_wait, and waits for these events of poll(). 1, or a negative errno.
    cdef int wait(self, short events) noexcept nogil
    # For fill and fill_body: sends the rest of the output, and waits for input. Returns the input's length; 0 at the
    # end of the connection; a negative errno.
    cdef ssize_t receive(self, iovec *iov, int count) noexcept nogil
