"""See _tcp.pxd."""

from libc.errno cimport EAGAIN, EINTR, ETIMEDOUT, errno
from libc.stdint cimport int64_t
from libc.string cimport memset
from posix.unistd cimport getpid

from rmemcached.client.transport._spin cimport spin_begin, spin_budget, spin_result, spin_yield
from rmemcached.client.transport._timeouts cimport milliseconds, poll_timeout
from rmemcached.client.transport._uninterrupted cimport take_descriptor
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, live_add, live_sub
from rmemcached.sys.linux cimport (
    F_GETFL,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    O_NONBLOCK,
    POLLIN,
    POLLOUT,
    POLLRDHUP,
    SHUT_RDWR,
    SO_RCVTIMEO,
    SOL_SOCKET,
    close_fd,
    fcntl,
    msghdr,
    poll,
    pollfd,
    recv,
    recvmsg,
    send,
    sendmsg,
    setsockopt,
    shutdown,
    timeval,
)


cdef enum:
    IOV_BATCH = 1024         # UIO_MAXIOV
    RECEIVE_MIN = 4096       # bytes of room for input at least
    AT_ONCE = 1 << 20        # bytes sent or received before other tasks of an event loop have their turn


cdef bint hung_up(int fd) noexcept nogil:
    # POLLHUP and POLLERR are always looked for. There may be input before the end.
    cdef pollfd waiting
    waiting.fd = fd
    waiting.events = POLLRDHUP
    return poll(&waiting, 1, 0) > 0


cdef class TcpStream(Stream):
    """The stream of a connected, blocking socket.socket. The stream takes the socket's descriptor over.

    timeout: seconds for each wait, or None. spin: nanoseconds.
    """

    def __cinit__(self):
        self.fd = -1
        self.pid = getpid()

    def __init__(self, sock, timeout, spin):
        cdef timeval limit
        self.timeout_ms = milliseconds(timeout, -1)
        self.fd = take_descriptor(sock)
        live_add(LIVE_CLIENT_CONN)
        memset(&limit, 0, sizeof(limit))
        if self.timeout_ms >= 0:
            limit.tv_sec = self.timeout_ms // 1000
            limit.tv_usec = self.timeout_ms % 1000 * 1000
        setsockopt(self.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit))
        spin_begin(&self.spin, spin)
        self.inline_limit = <size_t>-1

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        if self.fd >= 0:
            # Another process may hold a copy of the descriptor; the server is to see the end now.
            if getpid() == self.pid:
                shutdown(self.fd, SHUT_RDWR)
            close_fd(self.fd)
            self.fd = -1
            live_sub(LIVE_CLIENT_CONN)

    cdef int push(self) noexcept nogil:
        cdef msghdr message
        cdef size_t count
        cdef size_t sent = 0
        cdef ssize_t n
        while self.iov_next < self.iov_count and not (self.in_loop and sent >= AT_ONCE):
            count = self.iov_count - self.iov_next
            if count == 1:
                n = send(self.fd, self.iov[self.iov_next].iov_base, self.iov[self.iov_next].iov_len,
                         MSG_DONTWAIT | MSG_NOSIGNAL)
            else:
                memset(&message, 0, sizeof(message))
                message.msg_iov = self.iov + self.iov_next
                message.msg_iovlen = min(count, <size_t>IOV_BATCH)
                n = sendmsg(self.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n < 0:
                return 1 if errno == EAGAIN else -errno
            self.sent(n)
            sent += n
        return 1

    cdef void begin_wait(self) noexcept nogil:
        if self.until == 0 and self.timeout_ms >= 0:
            self.until = now_ns() + <int64_t>self.timeout_ms * 1000000

    cdef int wait(self, short events) noexcept nogil:
        cdef pollfd waiting
        cdef int n
        waiting.fd = self.fd
        waiting.events = events
        self.begin_wait()
        n = poll(&waiting, 1, poll_timeout(self.until, now_ns()) if self.until else -1)
        if n < 0:
            return -errno
        self.until = 0
        return 1 if n else -ETIMEDOUT

    cdef int drain(self) noexcept nogil:
        cdef ssize_t n
        cdef int r
        while True:
            r = self.push()
            if r <= 0 or self.iov_next == self.iov_count:
                return r
            # Replies are read meanwhile: a server whose replies nobody takes stops reading.
            r = self.reserve_input(RECEIVE_MIN)
            if r <= 0:
                return r
            n = recv(self.fd, self.rbuf + self.rend, self.rcap - self.rend, MSG_DONTWAIT)
            if n > 0:
                self.rend += n
                self.until = 0
            elif n == 0:
                return 0
            elif errno != EAGAIN:
                return -errno
            else:
                r = self.wait(POLLIN | POLLOUT)
                if r <= 0:
                    return r

    cdef ssize_t receive(self, iovec *iov, int count) noexcept nogil:
        cdef msghdr message
        cdef int64_t budget, now, until
        cdef ssize_t n
        cdef int r
        memset(&message, 0, sizeof(message))
        message.msg_iov = iov
        message.msg_iovlen = count
        while self.iov_next < self.iov_count:
            r = self.push()
            if r <= 0:
                return r
            if self.iov_next == self.iov_count:
                break
            n = recvmsg(self.fd, &message, MSG_DONTWAIT)
            if n >= 0:
                return n
            if errno != EAGAIN:
                return -errno
            r = self.wait(POLLIN | POLLOUT)
            if r <= 0:
                return r
        budget = spin_budget(&self.spin)
        if budget:
            now = now_ns()
            until = now + budget
            while True:
                n = recvmsg(self.fd, &message, MSG_DONTWAIT)
                if n >= 0:
                    spin_result(&self.spin, True)
                    return n
                if errno != EAGAIN:
                    return -errno
                if now >= until:
                    spin_result(&self.spin, False)
                    break
                # The server may need this core to answer.
                if not spin_yield(&self.spin, &now, 0):
                    break
        while True:
            # The time-out of recv begins anew with each call. If a part has passed already, poll waits for the rest.
            if self.until:
                r = self.wait(POLLIN)
                if r <= 0:
                    return r
            self.begin_wait()
            n = recv(self.fd, iov.iov_base, iov.iov_len, 0) if count == 1 else recvmsg(self.fd, &message, 0)
            if n >= 0:
                return n
            if errno != EAGAIN:
                return -errno
            if not fcntl(self.fd, F_GETFL) & O_NONBLOCK:
                return -ETIMEDOUT
            # The socket is non-blocking: the owner of a copy of the descriptor, as of Client.sock, may have set a
            # time-out.
            r = self.wait(POLLIN)
            if r <= 0:
                return r

    cdef bint has_gone(self) noexcept:
        return hung_up(self.fd)

    cdef int take_input(self) noexcept nogil:
        cdef iovec iov[2]
        cdef msghdr message
        cdef ssize_t n
        cdef int r = self.reserve_input(RECEIVE_MIN)
        if r <= 0:
            return r
        memset(&message, 0, sizeof(message))
        message.msg_iov = iov
        # A value goes directly to its place, if there is no input before it.
        if self.dst_left and self.rpos == self.rend:
            iov[0].iov_base = self.dst
            iov[0].iov_len = min(self.dst_left, <size_t>AT_ONCE)
            message.msg_iovlen = 1
        if self.dst_left <= AT_ONCE or message.msg_iovlen == 0:
            iov[message.msg_iovlen].iov_base = self.rbuf + self.rend
            iov[message.msg_iovlen].iov_len = self.rcap - self.rend
            message.msg_iovlen += 1
        n = recvmsg(self.fd, &message, MSG_DONTWAIT)
        if n <= 0:
            return -errno if n < 0 else 0
        if iov[0].iov_base == self.dst:
            r = <int>min(<size_t>n, self.dst_left)
            self.dst += r
            self.dst_left -= r
            n -= r
        self.rend += n
        return 1

    cdef list descriptors(self):
        return [self.fd]

    cdef bint tells_room(self) noexcept:
        return True

    cdef int fill(self) noexcept nogil:
        cdef iovec iov
        cdef ssize_t n
        cdef int r = self.reserve_input(RECEIVE_MIN)
        if r <= 0:
            return r
        iov.iov_base = self.rbuf + self.rend
        iov.iov_len = self.rcap - self.rend
        n = self.receive(&iov, 1)
        if n != -EINTR:
            self.until = 0
        if n <= 0:
            return <int>n
        self.rend += n
        return 1

    cdef int fill_body(self) noexcept nogil:
        # rbuf is empty; bytes behind the value arrive there.
        cdef iovec iov[2]
        cdef ssize_t n
        self.rpos = self.rend = 0
        iov[0].iov_base = self.dst
        iov[0].iov_len = self.dst_left
        iov[1].iov_base = self.rbuf
        iov[1].iov_len = self.rcap
        n = self.receive(iov, 2)
        if n != -EINTR:
            self.until = 0
        if n <= 0:
            return <int>n
        if <size_t>n > self.dst_left:
            self.rend = n - self.dst_left
            n = self.dst_left
        self.dst += n
        self.dst_left -= n
        return 1
