# A socket whose first bytes ask to be the transport stream of a queue pair (docs/rdma-protocol.md, section 3): its
# request is collected, and the worker whose queue pair the request names gets the socket. The worker's thread.

# Whether an unread socket begins like such a request. The input stays in the socket.
cdef bint wants_stream(connection *cn) noexcept nogil
# Whether the input of a CONNECTION_FRESH or CONNECTION_STREAM connection may be such a request. Clears
# CONNECTION_FRESH.
cdef bint check_for_stream(connection *cn) noexcept nogil
# Hands the socket over if the request is whole. Input with the same first letters, but of a command, goes to the
# machine.
cdef void stream_readable(connection *cn) noexcept nogil
