"""See _uninterrupted.pxd."""

import os
from _socket import socket as plain_socket

from rmemcached.sys.linux cimport close_fd


cdef class Turn:
    """Holds a lock for a `with` statement. An exception of a signal handler leaves the lock free.

    limit: seconds of the wait for the lock, or None; then TimeoutError.
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
    cdef int fd
    # socket.socket's own detach is written in Python, where a signal handler could interrupt it.
    if isinstance(sock, plain_socket):
        return plain_socket.detach(sock)
    # A socket of gevent or eventlet: its loop may know the descriptor by its number, so the stream gets a duplicate.
    fd = os.dup(sock.fileno())
    try:
        sock.close()
    except BaseException:
        close_fd(fd)
        raise
    return fd
