from posix.uio cimport iovec

from rmemcached.client._stream cimport Stream


cdef class TcpStream(Stream):
    cdef int wait(self, short events) noexcept nogil
    cdef ssize_t receive(self, iovec *iov, int count) noexcept nogil
