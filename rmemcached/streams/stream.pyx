"""The stream of a plain socket: each function is a system call."""

from libc.string cimport memset

from rmemcached.sys.linux cimport MSG_NOSIGNAL, close, msghdr, readv, recv, send, sendmsg


cdef ssize_t plain_receive(stream *s, void *buffer, size_t room) noexcept nogil:
    """stream_calls.receive"""
    return recv(s.fd, buffer, room, 0)


cdef ssize_t plain_receive_into(stream *s, const iovec *iov, int count) noexcept nogil:
    """stream_calls.receive_into"""
    if count == 1:
        return recv(s.fd, iov[0].iov_base, iov[0].iov_len, 0)
    return readv(s.fd, iov, count)


cdef ssize_t plain_send(stream *s, const iovec *iov, int count) noexcept nogil:
    """stream_calls.send"""
    cdef msghdr msg
    if count == 1:
        return send(s.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL)
    memset(&msg, 0, sizeof(msg))
    msg.msg_iov = <iovec *>iov
    msg.msg_iovlen = <size_t>count
    return sendmsg(s.fd, &msg, MSG_NOSIGNAL)


cdef void plain_end(stream *s) noexcept nogil:
    """stream_calls.end"""
    close(s.fd)
    s.fd = -1


cdef void plain_moved(stream *s) noexcept nogil:
    """stream_calls.moved"""
    pass


plain_stream = stream_calls(
    receive=plain_receive, receive_into=plain_receive_into, send=plain_send, end=plain_end, moved=plain_moved)
