"""What the same would cost if nobody did anything: a bare echo server and its client, and a call that only copies.

A connection of the echo server begins with three numbers, of four bytes each in the machine's order, and a reply: the
bytes of a request, the bytes of the reply, how many requests may come together. The server answers one byte, and from
then on each request by that reply. It looks at no byte of a request.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.linux cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLLIN,
    MSG_NOSIGNAL,
    accept4,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    nanosleep,
    recv,
    send,
    timespec,
)

cdef enum:
    EVENTS = 1024
    INPUT = 65536
    REPLIES_MOST = 64 << 20  # bytes that one connection keeps

cdef struct header:
    uint32_t request
    uint32_t reply
    uint32_t together

cdef struct echo:
    int fd
    header sizes
    size_t received          # of the requests that have no reply yet
    char *replies            # the reply, `together` times


cdef int receive_all(int fd, char *into, size_t length) noexcept nogil:
    cdef ssize_t n
    while length:
        n = recv(fd, into, length, 0)
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            return -1
        into += n
        length -= n
    return 0


cdef int send_all(int fd, const char *data, size_t length) noexcept nogil:
    cdef ssize_t n
    while length:
        n = send(fd, data, length, MSG_NOSIGNAL)
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            return -1
        data += n
        length -= n
    return 0


cdef void drop(echo *e) noexcept nogil:
    close(e.fd)
    free(e.replies)
    free(e)


cdef void welcome(int epoll, int fd) noexcept nogil:
    # Reads what a connection begins with, and watches it.
    cdef epoll_event event
    cdef uint32_t i
    cdef echo *e = <echo *>calloc(1, sizeof(echo))
    if e == NULL:
        close(fd)
        return
    e.fd = fd
    if (
        receive_all(fd, <char *>&e.sizes, sizeof(header)) != 0
        or e.sizes.request == 0
        or <size_t>e.sizes.reply * e.sizes.together > REPLIES_MOST
    ):
        drop(e)
        return
    e.replies = <char *>malloc(<size_t>e.sizes.reply * e.sizes.together + 1)
    if e.replies == NULL or receive_all(fd, e.replies, e.sizes.reply) != 0:
        drop(e)
        return
    for i in range(1, e.sizes.together):
        memcpy(e.replies + <size_t>i * e.sizes.reply, e.replies, e.sizes.reply)
    event.events = EPOLLIN
    event.data.ptr = e
    if epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0 or send_all(fd, "1", 1) != 0:
        drop(e)


cdef void answer(echo *e, char *scratch) noexcept nogil:
    cdef ssize_t n = recv(e.fd, scratch, INPUT, 0)
    cdef size_t due
    if n < 0 and errno == EINTR:
        return
    if n <= 0:
        drop(e)
        return
    e.received += n
    due = e.received // e.sizes.request
    if due == 0:
        return
    e.received -= due * e.sizes.request
    if due > e.sizes.together or send_all(e.fd, e.replies, due * e.sizes.reply) != 0:
        drop(e)


def serve(int listener):
    """Serves a listening socket until the process is ended. Raises OSError, MemoryError."""
    cdef epoll_event event
    cdef epoll_event[EVENTS] ready
    cdef int i, n, fd
    cdef char *scratch = <char *>PyMem_Malloc(INPUT)
    cdef int epoll = epoll_create1(EPOLL_CLOEXEC)
    if scratch == NULL:
        raise MemoryError
    try:
        event.events = EPOLLIN
        event.data.ptr = NULL
        if epoll < 0 or epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0:
            raise OSError(errno, "epoll")
        with nogil:
            while True:
                n = epoll_wait(epoll, ready, EVENTS, -1)
                for i in range(n):
                    if ready[i].data.ptr != NULL:
                        answer(<echo *>ready[i].data.ptr, scratch)
                        continue
                    fd = accept4(listener, NULL, NULL, 0)
                    if fd >= 0:
                        welcome(epoll, fd)
    finally:
        PyMem_Free(scratch)


def ask(int fd, size_t request, bytes reply not None, seconds, least, pause=0.0):
    """Sends requests of so many bytes, one at a time, and compares each reply.

    For `seconds`, and at least `least` times, with `pause` seconds of sleep before each. The socket blocks. Returns
    what each took, in nanoseconds. Raises ConnectionError, ValueError for a wrong reply, MemoryError.
    """
    cdef size_t length = len(reply)
    cdef const char *expected = reply
    cdef char *sent = <char *>calloc(1, request + 1)
    cdef char *got = <char *>malloc(length + 1)
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef timespec sleeping = ns_timespec(<int64_t>(pause * 1e9))
    cdef bint sleeps = pause > 0
    cdef int64_t begin, took
    cdef size_t left = least
    cdef int failed
    taken = []
    try:
        if sent == NULL or got == NULL:
            raise MemoryError
        while left or now_ns() < until:
            with nogil:
                if sleeps:
                    nanosleep(&sleeping, NULL)
                begin = now_ns()
                failed = send_all(fd, sent, request)
                if failed == 0:
                    failed = receive_all(fd, got, length)
                took = now_ns() - begin
            if failed:
                raise ConnectionError("the echo server closed the connection")
            if memcmp(got, expected, length) != 0:
                raise ValueError("the echo server sent a wrong reply")
            taken.append(took)
            left -= left != 0
        return taken
    finally:
        free(sent)
        free(got)


cdef class Copier:
    """Looks like a client, and copies the value once: what a call from Python and its result cost.

    Attributes: none. Raises ValueError for a value that is longer than `size` bytes.
    """

    cdef bytearray kept
    cdef Py_ssize_t length

    def __init__(self, size):
        self.kept = bytearray(size + 1)
        self.length = 0

    def set(self, key, bytes value not None):
        """Keeps a copy of the value."""
        cdef Py_ssize_t length = len(value)
        if length >= len(self.kept):
            raise ValueError("the value is too long")
        memcpy(<char *>self.kept, <const char *>value, length)
        self.length = length
        return True

    def get(self, key):
        """A copy of the value."""
        return PyBytes_FromStringAndSize(<char *>self.kept, self.length)
