"""What the fabrics are compared with: two cache lines between processes, memcpy, and TCP without anything above it.

Each function is one side of a measurement, and returns when its part is done. The ways of waiting are those of the
loops in loops.pxi: with `events` a side sleeps until there is something, else it tries again and again.
"""

from cpython.array cimport array, clone
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset, strerror

from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.perftest.cycles cimport cycles, nanoseconds

from array import array as new_array

from rmemcached.perftest.ends import seconds_per_cycle

cdef array template = new_array("Q")


cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size) noexcept

cdef extern from "<poll.h>" nogil:
    short POLLIN
    short POLLOUT
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout) noexcept

cdef extern from "<sched.h>" nogil:
    int sched_yield() noexcept

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    ssize_t recv(int fd, void *buf, size_t length, int flags) noexcept
    ssize_t send(int fd, const void *buf, size_t length, int flags) noexcept

cdef enum:
    LINE_SIZE = 64
    PATIENCE = 10                    # seconds without an answer, then the peer is taken for dead
    LOOKS = 1024                     # in vain, then others may have the core


cdef list latencies(array stamps, double factor):
    cdef double cycle = seconds_per_cycle() * factor
    cdef uint64_t[::1] times = stamps
    cdef Py_ssize_t i
    return [<double> (times[i + 1] - times[i]) * cycle for i in range(len(stamps) - 1)]


cdef int wait_line(uint64_t *line, uint64_t value) noexcept nogil:
    cdef uint64_t looks = 0
    cdef uint64_t deadline = 0
    while load_acquire(line) != value:
        looks += 1
        if looks % LOOKS == 0:
            sched_yield()
            if deadline == 0:
                deadline = nanoseconds() + PATIENCE * <uint64_t> 1000000000
            elif nanoseconds() > deadline:
                return -1
    return 0


def line_ping(memory, uint64_t count, bint first):
    """Two cache lines of shared, zeroed memory: each side writes one and looks at the other. Half round trips, seconds.

    Both sides call it with the same count. TimeoutError: the other side does not answer.
    """
    cdef uint8_t[::1] view = memory
    cdef uint64_t *ours = <uint64_t *> &view[0 if first else 4 * LINE_SIZE]
    cdef uint64_t *theirs = <uint64_t *> &view[4 * LINE_SIZE if first else 0]
    cdef array stamps = clone(template, <Py_ssize_t> count + 1, zero=True)
    cdef uint64_t *at = <uint64_t *> stamps.data.as_ulongs
    cdef uint64_t start = ours[0]
    cdef uint64_t i
    cdef int result = 0
    with nogil:
        for i in range(count):
            at[i] = cycles()
            if first:
                store_release(ours, start + i + 1)
            result = wait_line(theirs, start + i + 1)
            if result < 0:
                break
            if not first:
                store_release(ours, start + i + 1)
        at[count] = cycles()
    if result < 0:
        raise TimeoutError("the other side does not write its cache line")
    return latencies(stamps, 0.5)


def copy_rate(size_t size, int count):
    """Bytes a second of each of `count` copies by memcpy between two buffers, which were used just before."""
    cdef void *source = NULL
    cdef void *target = NULL
    cdef array stamps = clone(template, count + 1, zero=True)
    cdef uint64_t *at = <uint64_t *> stamps.data.as_ulongs
    cdef int i, _
    if posix_memalign(&source, 4096, size) or posix_memalign(&target, 4096, size):
        free(source)
        raise MemoryError
    with nogil:
        memset(source, 1, size)
        memset(target, 2, size)
        for _ in range(4):
            memcpy(target, source, size)
        for i in range(count):
            at[i] = cycles()
            memcpy(target, source, size)
        at[count] = cycles()
    free(source)
    free(target)
    return [size / seconds for seconds in latencies(stamps, 1)]


cdef int attend(int fd, short events, bint sleep, uint64_t *looks) noexcept nogil:
    """After EAGAIN."""
    cdef pollfd waiting
    if sleep:
        waiting.fd = fd
        waiting.events = events
        if poll(&waiting, 1, -1) < 0 and errno != EINTR:
            return -1
        return 0
    looks[0] += 1
    if looks[0] % LOOKS == 0:
        sched_yield()
    return 0


cdef int receive(int fd, uint8_t *out, size_t size, bint sleep) noexcept nogil:
    """Exactly `size` octets. 0; -1 with errno; -2: the stream has ended."""
    cdef uint64_t looks = 0
    cdef ssize_t n
    while size:
        n = recv(fd, out, size, MSG_DONTWAIT)
        if n > 0:
            out += n
            size -= <size_t> n
        elif n == 0:
            return -2
        elif errno != EAGAIN and errno != EINTR or attend(fd, POLLIN, sleep, &looks) < 0:
            return -1
    return 0


cdef int transmit(int fd, const uint8_t *data, size_t size, bint sleep) noexcept nogil:
    cdef uint64_t looks = 0
    cdef ssize_t n
    while size:
        n = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n >= 0:
            data += n
            size -= <size_t> n
        elif errno != EAGAIN and errno != EINTR or attend(fd, POLLOUT, sleep, &looks) < 0:
            return -1
    return 0


cdef object broken(int result):
    return ConnectionError(strerror(errno).decode() if result == -1 else "the other side closed the connection")


def tcp_ping(int fd, Py_ssize_t size, int count, bint first, bint events=False):
    """A ping-pong of `size` octets over a connected stream socket: half round trips, in seconds."""
    cdef bytearray octets = bytearray(size)
    cdef uint8_t *data = octets
    cdef array stamps = clone(template, count + 1, zero=True)
    cdef uint64_t *at = <uint64_t *> stamps.data.as_ulongs
    cdef int result = 0
    cdef int i
    with nogil:
        for i in range(count):
            at[i] = cycles()
            if first:
                result = transmit(fd, data, size, events)
            if result == 0:
                result = receive(fd, data, size, events)
            if result == 0 and not first:
                result = transmit(fd, data, size, events)
            if result < 0:
                break
        at[count] = cycles()
    if result < 0:
        raise broken(result)
    return latencies(stamps, 0.5)


def tcp_stream(int fd, Py_ssize_t size, int count, bint first, bint events=False):
    """`count` messages of `size` octets from the first side to the other, which answers the last: octets a second."""
    cdef bytearray octets = bytearray(size)
    cdef uint8_t *data = octets
    cdef uint64_t begin = 0
    cdef uint64_t end = 0
    cdef int result = 0
    cdef int _
    with nogil:
        begin = cycles()
        for _ in range(count):
            result = transmit(fd, data, size, events) if first else receive(fd, data, size, events)
            if result < 0:
                break
        if result == 0:
            result = receive(fd, data, 1, events) if first else transmit(fd, data, 1, events)
        end = cycles()
    if result < 0:
        raise broken(result)
    return size * count / (<double> (end - begin) * seconds_per_cycle())
