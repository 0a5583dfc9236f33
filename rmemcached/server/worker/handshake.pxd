# TLS handshakes: for each step the worker lends the connection to the pool (server/handshakes), and takes it out of the
# epoll set. The worker's thread, except for worker_handshake_done.
#
# A connection whose handshake is not done has CONNECTION_HANDSHAKE. Until the first byte comes it costs no more than a
# connection without TLS. idle_timeout counts from the accept to the end of the handshake.

# The socket has input, or room, for a step of the handshake.
cdef void handshake_ready(connection *cn) noexcept nogil
# Called after worker_handshake_done, in the worker's thread: waits for the peer, or begins to serve the connection.
cdef void handshake_returned(connection *cn) noexcept nogil
