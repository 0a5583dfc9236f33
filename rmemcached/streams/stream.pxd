"""A connection's stream: a table of functions for the socket's bytes, as they are or encrypted.

The owner of a connection (its worker, or a side thread with the connection on loan) calls the functions through the
table, and nobody else uses the socket meanwhile. Results are those of the system calls: -1 with errno for an error, 0
for the end of the input. EAGAIN: the owner waits for epoll or poll. The socket is non-blocking.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from posix.uio cimport iovec

cdef struct stream_calls         # complete below

cdef struct stream:
    const stream_calls *calls
    int fd                       # -1: ended
    # The stream has taken more input from the socket than it has given: epoll does not see this input, so the owner
    # reads again without an event.
    uint8_t held                 # bool
    uint8_t blocked              # bool: the last receive waits for room in the socket; the owner reads again then
    uint8_t renewed              # renewals of keys in the last receive, each worth many system calls
    # The owner's wishes, bool.
    uint8_t held_only            # a receive gives held input alone, and leaves the socket as it is
    uint8_t keeps                # a send takes an encrypted piece also if the socket is full, and then sets `owes`
    uint8_t owes                 # bool: a further send, also of nothing, sends the rest of such a piece
    void *state                  # of the table

# A constant table for each kind of stream.
cdef struct stream_calls:
    ssize_t (*receive)(stream *s, void *buffer, size_t room) noexcept nogil
    ssize_t (*receive_into)(stream *s, const iovec *iov, int count) noexcept nogil
    # Returns the number of bytes that have left. After a part, or EAGAIN, the next call begins with the rest.
    ssize_t (*send)(stream *s, const iovec *iov, int count) noexcept nogil
    # Tells the peer of the end, without waiting, and closes the socket.
    void (*end)(stream *s) noexcept nogil
    # The structure has moved to `s`. For stream_move.
    void (*moved)(stream *s) noexcept nogil

# The socket's bytes as they are.
cdef stream_calls plain_stream

cdef inline ssize_t stream_send(stream *s, const void *data, size_t length) noexcept nogil:
    cdef iovec piece
    piece.iov_base = <void *>data
    piece.iov_len = length
    return s.calls.send(s, &piece, 1)

# Moves a stream to another structure, for another owner. The first structure keeps only the number of the descriptor.
cdef inline void stream_move(stream *to, stream *old) noexcept nogil:
    to[0] = old[0]
    old.state = NULL
    to.calls.moved(to)
