# The epoll engine's functions for its connections, besides moving their bytes: the exchange for a queue pair, and
# lending a socket to a side thread (watch, dumps of all items). The worker's thread, except for worker_give_back.
#
# A lent connection is out of the epoll set, and its input waits. Only the side thread uses the socket, and the worker
# uses nothing but the structure, until worker_give_back returns the connection through the worker's queue.

# The engine of connections without a queue pair.
cdef conn_engine socket_engine
# The engine of lifelines. Their socket cannot be lent, because the queue pair can end at any moment.
cdef conn_engine lifeline_engine

# Called after WANT_AUTH: reads nothing until conn_engine.resume_auth. The unparsed input is in the connection's own
# buffer.
cdef void connection_wait_auth(connection *cn) noexcept nogil
# Called after WANT_LENT: takes the connection out of the epoll set, and marks it as lent.
cdef void connection_lent(connection *cn) noexcept nogil
# Called after worker_give_back, in the worker's thread: sends what the side thread left, and serves the connection
# again or ends it.
cdef void connection_returned(connection *cn) noexcept nogil
