"""The baselines of the fabrics: two cache lines between processes, memcpy, and TCP alone.

Each function is one side of a measurement, and returns when this side is done. With `events` the functions sleep until
the socket is ready; otherwise they poll.
"""

from cpython.array cimport array, clone
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset, strerror

from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.sys.clock cimport cycles, now_ns
from rmemcached.sys.linux cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, poll, pollfd, posix_memalign, recv, sched_yield, send,
)

from array import array as new_array

from rmemcached.perftest.ends import seconds_per_cycle

cdef array template = new_array("Q")


cdef enum:
    LINE_SIZE = 64
    PATIENCE = 10                    # seconds without an answer before the peer is taken for dead
    YIELD_EVERY = 1024               # polls without success between calls of sched_yield


cdef list latencies(array stamps, double factor):
    """The seconds between consecutive stamps (cycles), each times factor."""
    cdef double cycle = seconds_per_cycle() * factor
    cdef uint64_t[::1] times = stamps
    cdef Py_ssize_t i
    return [<double> (times[i + 1] - times[i]) * cycle for i in range(len(stamps) - 1)]


cdef int wait_line(uint64_t *line, uint64_t value) noexcept nogil:
    cdef uint64_t polls = 0
    cdef int64_t deadline = 0
    while load_acquire(line) != value:
        polls += 1
        if polls % YIELD_EVERY == 0:
            sched_yield()
            if deadline == 0:
                deadline = now_ns() + PATIENCE * <int64_t> 1000000000
            elif now_ns() > deadline:
                return -1
    return 0


def line_ping(memory, uint64_t count, bint first):
    """A ping-pong through two cache lines of shared memory. Returns `count` half round trips, in seconds.

    Each side writes one line and polls the other side's line. Both sides pass the same zeroed memory and count, and one
    side sets `first`. Raises TimeoutError if the peer does not answer.
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
    """Bytes per second of each of `count` copies by memcpy, between two buffers used just before."""
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


cdef int wait_ready(int fd, short events, bint sleep, uint64_t *polls) noexcept nogil:
    """Called after EAGAIN: sleeps until the socket is ready, or only counts a poll. Returns 0, or -1 with errno."""
    cdef pollfd waiting
    if sleep:
        waiting.fd = fd
        waiting.events = events
        if poll(&waiting, 1, -1) < 0 and errno != EINTR:
            return -1
        return 0
    polls[0] += 1
    if polls[0] % YIELD_EVERY == 0:
        sched_yield()
    return 0


cdef int receive(int fd, uint8_t *out, size_t size, bint sleep) noexcept nogil:
    """Receives exactly `size` bytes. 0; -1 with errno; -2 if the stream has ended."""
    cdef uint64_t polls = 0
    cdef ssize_t n
    while size:
        n = recv(fd, out, size, MSG_DONTWAIT)
        if n > 0:
            out += n
            size -= <size_t> n
        elif n == 0:
            return -2
        elif errno != EAGAIN and errno != EINTR or wait_ready(fd, POLLIN, sleep, &polls) < 0:
            return -1
    return 0


cdef int transmit(int fd, const uint8_t *data, size_t size, bint sleep) noexcept nogil:
    cdef uint64_t polls = 0
    cdef ssize_t n
    while size:
        n = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n >= 0:
            data += n
            size -= <size_t> n
        elif errno != EAGAIN and errno != EINTR or wait_ready(fd, POLLOUT, sleep, &polls) < 0:
            return -1
    return 0


cdef object broken(int result):
    return ConnectionError(strerror(errno).decode() if result == -1 else "the other side closed the connection")


def tcp_ping(int fd, Py_ssize_t size, int count, bint first, bint events=False):
    """Sends `size` bytes to and fro over a connected stream socket. Returns `count` half round trips, in seconds.

    One side has `first` set. Raises ConnectionError.
    """
    cdef bytearray buffer = bytearray(size)
    cdef uint8_t *data = buffer
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
    """The side with `first` sends `count` messages of `size` bytes. The peer answers the last message with a byte.

    Returns bytes per second. Raises ConnectionError.
    """
    cdef bytearray buffer = bytearray(size)
    cdef uint8_t *data = buffer
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
