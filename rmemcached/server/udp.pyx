"""UDP: every datagram is a connection of its own, with its whole input at the start.

Each reply is a message; its datagrams are numbered from 0. So the keys of a multiget, and several commands in a
datagram, get several messages with the same request id, as in memcached 1.6. For quiet binary commands memcached also
sends headers without content; here nothing is sent. A request not whole within its datagram is dropped, and so is the
input behind a command that ends the connection.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add
from rmemcached.drive_machine cimport drive_machine
from rmemcached.sys.debug cimport LIVE_UDP_SOCKET, assert_owner, live_add, live_sub
from rmemcached.sys.linux cimport (
    EAGAIN, EINTR, EPOLLEXCLUSIVE, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, close, epoll_ctl, epoll_event,
    errno, msghdr, recvfrom, sendmsg, sockaddr,
)
from rmemcached.protocol.protocol_binary cimport PROTOCOL_BINARY_REQ
from rmemcached.protocol.conn cimport (
    WANT_FLUSH, WANT_YIELD, ascii_prot, binary_prot, conn, conn_engine, conn_gather, conn_init, conn_release, conn_sent,
    conn_want, mc_resp,
)

cdef enum:
    DATA_SIZE = UDP_MAX_PAYLOAD_SIZE - UDP_HEADER_SIZE
    MAX_DATAGRAMS = 65535    # most datagrams of a message, by its header
    DATAGRAMS_PER_TURN = 100     # datagrams sent before everybody else has a turn
    IOV_SIZE = 16

cdef enum udp_flushed:
    UDP_SENT                     # all replies have left
    UDP_WAITS                    # the socket is full, or the turn over
    UDP_NO_PEER                  # the peer cannot be answered


cdef const char *udp_exchange(conn *c, const char *line, size_t length, char *reply,
                              size_t reply_size) noexcept nogil:
    """conn_engine.exchange"""
    return b"CLIENT_ERROR rdma: a datagram cannot have a queue pair\r\n"


cdef conn_engine udp_engine = conn_engine(
    exchange=udp_exchange, watch=NULL, dump=NULL, pin=NULL, unpin=NULL, direct=NULL, given=NULL, resume_auth=NULL,
    resume_reply=NULL, remote=False, datagrams=True)


cdef udp_socket *udp_open(conn_thread *thread, int epfd, int fd) noexcept nogil:
    cdef udp_socket *u = <udp_socket *>calloc(1, sizeof(udp_socket))
    if u == NULL:
        return NULL
    u.thread = thread
    u.fd = fd
    u.epfd = epfd
    # Between datagrams the connection is as after its release.
    conn_init(&u.c, thread, &udp_engine)
    conn_release(&u.c)
    if not udp_register(u, EPOLLIN | EPOLLEXCLUSIVE):
        free(u)
        return NULL
    live_add(LIVE_UDP_SOCKET)
    return u


cdef void udp_close(udp_socket *u) noexcept nogil:
    conn_release(&u.c)
    close(u.fd)
    free(u)
    live_sub(LIVE_UDP_SOCKET)


cdef bint udp_register(udp_socket *u, uint32_t events) noexcept nogil:
    cdef epoll_event ev
    ev.events = events
    ev.data.u64 = <uint64_t><uintptr_t>u | UDP_TAG
    return epoll_ctl(u.epfd, EPOLL_CTL_ADD, u.fd, &ev) == 0


cdef void udp_block(udp_socket *u, bint blocked) noexcept nogil:
    """Waits for room to send, or for datagrams again. An exclusive registration cannot be modified, only replaced."""
    if u.blocked != blocked:
        u.blocked = blocked
        epoll_ctl(u.epfd, EPOLL_CTL_DEL, u.fd, NULL)
        udp_register(u, EPOLLOUT if blocked else EPOLLIN | EPOLLEXCLUSIVE)


cdef void put_be16(uint8_t *p, uint16_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>(value & 255)


cdef udp_flushed udp_flush(udp_socket *u) noexcept nogil:
    """Sends replies."""
    cdef iovec iov[IOV_SIZE]
    cdef uint8_t header[UDP_HEADER_SIZE]
    cdef msghdr msg
    cdef mc_resp *resp
    cdef size_t length, total
    cdef ssize_t n
    cdef int i, count
    while u.c.resp_head != NULL:
        if u.left == 0:
            return UDP_WAITS
        u.left -= 1
        resp = u.c.resp_head
        if u.total == 0:
            total = (<size_t>resp.tosend + DATA_SIZE - 1) // DATA_SIZE
            u.total = <uint16_t>(total if total < MAX_DATAGRAMS else MAX_DATAGRAMS)
        put_be16(header, u.request_id)
        put_be16(header + 2, u.sequence)
        put_be16(header + 4, u.total)
        put_be16(header + 6, 0)
        iov[0].iov_base = header
        iov[0].iov_len = UDP_HEADER_SIZE
        count = 1 + conn_gather(&u.c, iov + 1, IOV_SIZE - 1, resp.tosend if resp.tosend < DATA_SIZE else DATA_SIZE)
        length = 0
        for i in range(1, count):
            length += iov[i].iov_len
        memset(&msg, 0, sizeof(msg))
        msg.msg_name = &u.peer
        msg.msg_namelen = u.peer_length
        msg.msg_iov = iov
        msg.msg_iovlen = count
        n = sendmsg(u.fd, &msg, 0)
        if n < 0:
            if errno == EINTR:
                continue
            return UDP_WAITS if errno == EAGAIN else UDP_NO_PEER
        counter_add(&u.thread.stats.bytes_written, <uint64_t>n)
        if length == resp.tosend:
            u.sequence = u.total = 0
        else:
            u.sequence += 1
        conn_sent(&u.c, length)
    return UDP_SENT


cdef bint udp_run(udp_socket *u) noexcept nogil:
    """Answers the datagram as far as replies can leave in this turn. False: there is more to do when the socket is
    writable."""
    cdef conn_want want
    cdef udp_flushed result
    while True:
        want = drive_machine(&u.c)
        result = udp_flush(u)
        if result == UDP_WAITS or (result == UDP_SENT and want == WANT_YIELD):
            udp_block(u, True)
            return False
        if result == UDP_NO_PEER or want != WANT_FLUSH:
            conn_release(&u.c)
            return True


cdef bint udp_take(udp_socket *u, size_t length) noexcept nogil:
    """Takes a datagram of `length` bytes in rbuf. False: no request; nothing is answered."""
    cdef uint8_t *frame = <uint8_t *>&u.rbuf[0]
    cdef conn *c = &u.c
    if length <= UDP_HEADER_SIZE:
        return False
    counter_add(&u.thread.stats.bytes_read, length)
    if frame[4] != 0 or frame[5] != 1:
        # The datagram is a part of a longer request, or its header is malformed.
        return False
    conn_init(c, u.thread, &udp_engine)
    c.sfd = u.fd
    c.protocol = binary_prot if frame[UDP_HEADER_SIZE] == PROTOCOL_BINARY_REQ else ascii_prot
    c.rcurr = &u.rbuf[UDP_HEADER_SIZE]
    c.rbytes = length - UDP_HEADER_SIZE
    u.request_id = <uint16_t>(frame[0] << 8 | frame[1])
    u.sequence = u.total = 0
    return True


cdef void udp_ready(udp_socket *u) noexcept nogil:
    cdef unsigned int left = u.thread.reqs_per_event
    cdef ssize_t n
    assert_owner(u.thread.owner)
    u.left = DATAGRAMS_PER_TURN
    if u.blocked:
        udp_block(u, False)
        if not udp_run(u):
            return
    while left and u.left:
        left -= 1
        u.peer_length = sizeof(u.peer)
        n = recvfrom(u.fd, u.rbuf, UDP_READ_BUFFER_SIZE, 0, <sockaddr *>&u.peer, &u.peer_length)
        if n < 0:
            if errno == EAGAIN:
                return
        elif udp_take(u, <size_t>n) and not udp_run(u):
            return
