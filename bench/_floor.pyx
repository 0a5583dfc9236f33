"""The floors (docs/benchmarks.md): an echo server and its clients, two cache lines, and calls that copy. They move as
many bytes as a cache and its client, and do nothing else.

A client of the echo server first sends three numbers, of four bytes each in the machine's order, and a reply: the bytes
of a request, the bytes of the reply, and how many requests may come together. The server answers with a byte, and from
then on answers each request by the reply. The server looks at no byte of a request.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from rmemcached.sys.atomics cimport cpu_relax, load_acquire, store_release
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
    sched_yield,
    send,
    timespec,
)

cdef enum:
    EVENTS = 1024
    INPUT = 65536
    REPLIES_MOST = 64 << 20  # bytes of replies kept for a connection
    YIELD_EVERY = 1024       # polls of a cache line without success between calls of sched_yield
    PATIENCE = 10            # seconds without an answer before the peer is taken for dead
    ASKING = 0               # offsets of the two lines and the value in the shared memory
    ANSWERING = 256
    VALUES = 4096

cdef struct header:
    uint32_t request
    uint32_t reply
    uint32_t together

cdef struct echo:
    int fd
    header sizes
    size_t received          # bytes of the requests still without a reply
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
    # Reads the start of a connection, and watches the connection.
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

    For `seconds`, and at least `least` times, with `pause` seconds of sleep before each. The socket blocks. Returns the
    time of each request in nanoseconds. Raises ConnectionError, ValueError for a wrong reply, MemoryError.
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
    """Looks like a client, and copies the value once: the cost of a call from Python and its result.

    Attributes: none. Raises ValueError for a value longer than `size` bytes.
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


cdef class Asker:
    """Looks like a client, and asks the echo server: sends as many bytes, and takes the value out of the reply.

    fd: a blocking socket. Its connection answers `request` bytes by `reply` bytes: the value has `length` bytes at
    `head`, and further values follow at steps of `stride` bytes. Raises ConnectionError when the server has gone,
    MemoryError. Not thread-safe, but the client waits without the GIL.
    """

    cdef int fd
    cdef size_t request
    cdef size_t reply
    cdef Py_ssize_t head
    cdef Py_ssize_t length
    cdef Py_ssize_t stride
    cdef char *sent
    cdef char *got

    def __cinit__(self, int fd, size_t request, size_t reply, Py_ssize_t head, Py_ssize_t length, Py_ssize_t stride):
        if head < 0 or length < 0 or head + length > <Py_ssize_t>reply:
            raise ValueError("the value is not within the reply")
        self.fd = fd
        self.request = request
        self.reply = reply
        self.head = head
        self.length = length
        self.stride = stride
        self.sent = <char *>calloc(1, request + 1)
        self.got = <char *>malloc(reply + 1)
        if self.sent == NULL or self.got == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.sent)
        free(self.got)

    cdef int exchange(self) except -1:
        cdef int failed
        with nogil:
            failed = send_all(self.fd, self.sent, self.request)
            if failed == 0:
                failed = receive_all(self.fd, self.got, self.reply)
        if failed:
            raise ConnectionError("the echo server closed the connection")
        return 0

    def get(self, key):
        """The value."""
        self.exchange()
        return PyBytes_FromStringAndSize(self.got + self.head, self.length)

    def set(self, key, value):
        """Sends as many bytes as a set has, not the value."""
        self.exchange()
        return True

    def get_many(self, keys):
        """{key: value}. Raises ValueError for more keys than the reply has."""
        cdef Py_ssize_t at = self.head
        found = {}
        self.exchange()
        for key in keys:
            if at + self.length > <Py_ssize_t>self.reply:
                raise ValueError("more keys than were agreed")
            found[key] = PyBytes_FromStringAndSize(self.got + at, self.length)
            at += self.stride
        return found

    def set_many(self, values):
        """Sends as many bytes as all the sets have."""
        self.exchange()
        return []


cdef int wait_line(uint64_t *line, uint64_t *seen, uint64_t old, bint yields) noexcept nogil:
    # Waits until the line differs from `old`, and puts its number into `seen`. Returns 0, or -1 after PATIENCE.
    cdef uint64_t polls = 0
    cdef int64_t deadline = 0
    seen[0] = load_acquire(line)
    while seen[0] == old:
        polls += 1
        if yields or polls % YIELD_EVERY == 0:
            sched_yield()
        else:
            cpu_relax()
        if polls % YIELD_EVERY == 0:
            if deadline == 0:
                deadline = now_ns() + PATIENCE * <int64_t>1000000000
            elif now_ns() > deadline:
                return -1
        seen[0] = load_acquire(line)
    return 0


def answer_lines(unsigned char[::1] memory not None, bint yields):
    """Answers through two cache lines of zeroed shared memory, until `Lines.close`, or 10 seconds without a request.

    The function polls; `yields`: it gives up the core after each look, for a client on the same core.
    """
    cdef uint64_t *asking = <uint64_t *>&memory[ASKING]
    cdef uint64_t *answering = <uint64_t *>&memory[ANSWERING]
    cdef uint64_t seen = 0
    with nogil:
        while wait_line(asking, &seen, seen, yields) == 0 and seen != <uint64_t>-1:
            store_release(answering, seen)


cdef class Lines:
    """Looks like a client over shared memory: asks `answer_lines`, and copies the value once.

    memory: VALUES_AT bytes and the longest value. Raises TimeoutError when nobody answers. Not thread-safe.
    """

    VALUES_AT = VALUES

    cdef unsigned char[::1] memory
    cdef Py_ssize_t length
    cdef bint yields
    cdef uint64_t number

    def __init__(self, unsigned char[::1] memory not None, bytes value not None, bint yields):
        self.memory = memory
        self.yields = yields
        self.number = 0
        self.keep(value)

    cdef int keep(self, bytes value) except -1:
        if VALUES + len(value) > self.memory.shape[0] or not value:
            raise ValueError("the value is empty or too long")
        self.length = len(value)
        memcpy(&self.memory[VALUES], <const char *>value, self.length)
        return 0

    cdef int ring(self) noexcept nogil:
        cdef uint64_t seen = 0
        self.number += 1
        store_release(<uint64_t *>&self.memory[ASKING], self.number)
        return wait_line(<uint64_t *>&self.memory[ANSWERING], &seen, self.number - 1, self.yields)

    cdef int ask(self) except -1:
        if self.ring() != 0:
            raise TimeoutError("nobody answers in the other cache line")
        return 0

    def get(self, key):
        """A copy of the value."""
        self.ask()
        return PyBytes_FromStringAndSize(<char *>&self.memory[VALUES], self.length)

    def set(self, key, bytes value not None):
        """Keeps a copy of the value."""
        self.keep(value)
        self.ask()
        return True

    def get_many(self, keys):
        """{key: a copy of the value}"""
        self.ask()
        return {key: PyBytes_FromStringAndSize(<char *>&self.memory[VALUES], self.length) for key in keys}

    def set_many(self, values):
        """Copies each value of the dict."""
        for value in values.values():
            self.keep(value)
        self.ask()
        return []

    def batches(self, unsigned int depth, double seconds):
        """Asks once for each `depth` copies of the value, for so many seconds. Returns (copies, seconds)."""
        cdef int64_t begin = now_ns()
        cdef int64_t until = begin + <int64_t>(seconds * 1e9)
        cdef uint64_t copies = 0
        cdef unsigned int i
        cdef int failed = 0
        cdef char *into = <char *>malloc(self.length * <size_t>depth)
        if into == NULL:
            raise MemoryError
        with nogil:
            while failed == 0 and (copies == 0 or now_ns() < until):
                failed = self.ring()
                for i in range(depth):
                    memcpy(into + <size_t>i * self.length, &self.memory[VALUES], self.length)
                copies += depth
        free(into)
        if failed:
            raise TimeoutError("nobody answers in the other cache line")
        return copies, (now_ns() - begin) / 1e9

    def close(self):
        """Ends `answer_lines`."""
        store_release(<uint64_t *>&self.memory[ASKING], <uint64_t>-1)


def copy(const unsigned char[::1] source not None, unsigned char[::1] target not None, double seconds):
    """Copies by memcpy without the GIL, again and again for so long: bytes a second. Raises ValueError."""
    cdef size_t length = source.shape[0]
    cdef int64_t begin = now_ns()
    cdef int64_t until = begin + <int64_t>(seconds * 1e9)
    cdef double done = 0
    if length == 0 or target.shape[0] < <Py_ssize_t>length:
        raise ValueError("the target is too short, or there is nothing to copy")
    with nogil:
        while done == 0 or now_ns() < until:
            memcpy(&target[0], &source[0], length)
            done += length
    return done / (now_ns() - begin) * 1e9


def same(const unsigned char[::1] one not None, const unsigned char[::1] other not None):
    """Whether both have the same bytes. Compares without the GIL, for which the other threads of a benchmark wait."""
    cdef size_t length = one.shape[0]
    cdef bint found = True
    if other.shape[0] != <Py_ssize_t>length:
        return False
    if length:
        with nogil:
            found = memcmp(&one[0], &other[0], length) == 0
    return found
