from posix.uio cimport iovec

from rmemcached.client._stream cimport Stream
from rmemcached.client._sys cimport ssize_t


cdef class TcpStream(Stream):
    cdef int wait(self, short events) noexcept nogil
    cdef ssize_t receive(self, iovec *iov, int count) noexcept nogil
