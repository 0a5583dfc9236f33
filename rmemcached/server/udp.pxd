"""The UDP port: requests and replies as datagrams behind a frame header (memcached: doc/protocol.txt, UDP protocol).

A udp_socket belongs to one worker. The workers' sockets are duplicates of the same descriptor, so any worker takes the
next datagram. There are no locks.
"""

from libc.stdint cimport uint16_t

from rmemcached.sys.linux cimport sockaddr_storage, socklen_t
from rmemcached.protocol.conn cimport conn, conn_thread

cdef enum:
    UDP_HEADER_SIZE = 8          # request id, sequence number, datagrams in the message, reserved; 16 bits each
    UDP_MAX_PAYLOAD_SIZE = 1400  # of a datagram sent, header included
    UDP_TAG = 1                  # marks a udp_socket among the worker's events
    UDP_READ_BUFFER_SIZE = 65536   # more than the longest datagram

cdef struct udp_socket:
    conn c                   # first: the engine's functions get a conn *
    conn_thread *thread
    udp_socket *next         # the worker's list
    int fd
    int epfd
    bint blocked             # output waits for the socket, or for the next turn; nothing is read meanwhile
    unsigned int left        # datagrams still allowed in this turn
    uint16_t request_id      # of the datagram being answered
    uint16_t sequence        # of the next datagram of the message at the head of the output
    uint16_t total           # datagrams of this message; 0: none has been sent
    sockaddr_storage peer    # the sender of the datagram being answered
    socklen_t peer_length
    char rbuf[UDP_READ_BUFFER_SIZE]

# Registers fd with epfd; the event's data.u64 is the socket's address | UDP_TAG. NULL (errno): fd stays the caller's.
# Called in the main thread, before the worker's start.
cdef udp_socket *udp_open(conn_thread *thread, int epfd, int fd) noexcept nogil
# Drops the datagram being answered, and closes fd. Called in the main thread, after the worker's join.
cdef void udp_close(udp_socket *u) noexcept nogil
# Epoll has reported the socket: reads and answers datagrams. The worker's thread.
cdef void udp_ready(udp_socket *u) noexcept nogil
