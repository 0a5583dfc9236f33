# A connection from its accept to its end: the worker's list, the epoll set, the read buffer. The worker's thread
# calls these functions, and in the end worker_destroy, in the main thread.
#
# A connection reads into the worker's buffer. It has a buffer of its own only while a command is incomplete. So an idle
# connection costs its structure alone, and a connection waiting for the rest of a short command little more.

# Adds a socket or a descriptor of rdma_cm to the worker. NULL: out of memory, fd is still the caller's.
cdef connection *connection_open(worker *w, int fd, protocol prot, const log_peer *peer, unsigned int flags,
                                 tls_mode tls) noexcept nogil
# Releases everything the connection holds; a second call is harmless. The structure lives until the end of the turn,
# because its events may be pending. close_fd: False if the descriptor has another owner now.
cdef void connection_end(connection *cn, bint close_fd) noexcept nogil
# The peer has ended the connection. The worker still serves the input sent before.
cdef void connection_gone(connection *cn) noexcept nogil
# Log the beginning and the end of c, which is cn's own conn, or a lane of cn's queue pair.
cdef void log_open(const connection *cn, const conn *c) noexcept nogil
cdef void log_end(const connection *cn, const conn *c, close_reasons reason) noexcept nogil
# Ends lanes of ended queue pairs, as many as w.lanes_left allows (UINT32_MAX: all).
cdef void end_lanes(worker *w) noexcept nogil
# Frees the structures of connections that have ended with all their lanes.
cdef void free_dead(worker *w) noexcept nogil
# Makes epoll report these events: EPOLLOUT while output waits for room, else EPOLLIN. For worker/socket_io.
cdef void connection_interest(connection *cn, uint32_t events) noexcept nogil
# Called before the worker uses its buffer for others: moves unparsed bytes from there into the connection's own buffer.
# False: out of memory.
cdef bint keep_input(connection *cn) noexcept nogil
# Called before a read: makes space behind the unparsed bytes. Short input moves to the beginning of the worker's
# buffer. Longer input stays in the connection's own buffer, which grows. False: out of memory, or the command is too
# long.
cdef bint make_room(connection *cn) noexcept nogil
