"""The transport on a socket object other than the standard library's: gevent's, eventlet's, a TLS socket.

The stream calls the socket's own methods: send, recv_into, settimeout, gettimeout, shutdown and close. They may let
other greenlets run while they wait, so the thread holds the GIL all the time. They may raise anything: `error` keeps
the exception for Connection.broken.
"""

from libc.stdint cimport int64_t

from rmemcached.client.transport._stream cimport Stream


cdef class SocketStream(Stream):
    cdef readonly object sock  # None: closed
    cdef object limit        # seconds of each wait, or None
    cdef object slice        # seconds of a wait in a direction, until the stream looks at the opposite direction
    cdef int pid             # of the process that made the stream
    cdef bint waits          # push waits until a small request is sent as a whole
    cdef bint flowing        # a request is being sent in parts
    cdef bint reads          # during such a send: the last progress was input, not output

    # The next part of the output, as bytes or a memoryview.
    cdef object piece(self)
    # A single send or recv_into with this time limit. Returns the number of bytes. -1: there was no room, or no input,
    # for so long.
    cdef Py_ssize_t send_some(self, object seconds) except -2
    cdef Py_ssize_t receive_some(self, char *to, size_t room, object seconds) except -2
    # Sends as much as possible without waiting. Returns whether anything was sent.
    cdef bint send_ready(self) except -1
    # Sends in parts until all is sent, and returns ALL_SENT; or until input comes, and returns its length, or 0 at the
    # end of the connection. -1: nothing was sent or received for the time limit.
    cdef Py_ssize_t send_or_receive(self, char *to, size_t room) except -2
    # Sends the rest of the output, and waits for input. Returns the same as send_or_receive, but never ALL_SENT.
    cdef Py_ssize_t receive(self, char *to, size_t room) except -2
    # `receive`, but raises nothing: returns a negative errno in place of -1 or an exception.
    cdef Py_ssize_t receive_quietly(self, char *to, size_t room) noexcept
    # `push` and `drain`, but with exceptions in place of negative errnos other than those of Stream.
    cdef int push_now(self) except -2
    cdef int drain_now(self) except -2
    # now_ns() at the end of a wait that begins now; 0: no limit.
    cdef int64_t deadline(self) noexcept
    # Returns -EPIPE or -ECONNRESET for an exception of these errnos, else -EPROTO, and keeps the exception in `error`.
    cdef int keep(self, error) noexcept
