"""See _uninterrupted.pxd."""

import os
from _socket import socket as plain_socket


cdef class Turn:
    """Holds a lock for a `with` statement. A handler that raises leaves it free.

    limit: seconds to wait for it, or None; then TimeoutError.
    """

    def __init__(self, lock, limit):
        self.lock = lock
        self.limit = limit

    def __enter__(self):
        if not self.lock.acquire(timeout=-1 if self.limit is None else self.limit):
            raise TimeoutError("timed out")

    def __exit__(self, *_):
        self.lock.release()


cdef int take_descriptor(sock) except -1:
    # socket.socket's own method is written in Python.
    if isinstance(sock, plain_socket):
        return plain_socket.detach(sock)
    # gevent's or eventlet's.
    fd = os.dup(sock.fileno())
    sock.close()
    return fd
