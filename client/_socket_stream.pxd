"""The plain transport on a socket object that is not the system's own: gevent's, eventlet's, a TLS socket.

Its own methods are called, with the GIL, so that other greenlets run while they wait.
"""

from rmemcached.client._stream cimport Stream


cdef class SocketStream(Stream):
    cdef readonly object sock    # None: closed
    cdef object limit            # seconds of each wait, or None
    cdef int pid

    cdef object view(self, char *data, size_t length, bint readonly)
    # Sends what is taken within so many seconds; 0: what is taken at once. Whether anything was.
    cdef bint send_some(self, object seconds) except -1
    # Receives within so many seconds: the number of bytes, 0 at the end, or -EAGAIN.
    cdef ssize_t receive_some(self, char *to, size_t size, object seconds) except? -1
    cdef ssize_t wait_for_input(self, char *to, size_t size) except? -1
    cdef int failed(self, object error) noexcept
