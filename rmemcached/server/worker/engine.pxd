# What the epoll engine can do for its connections beside moving their bytes: the exchange for a queue pair, and lending
# a socket to a side thread (watch, dumps of all items). The worker's thread, but for worker_give_back.
#
# A lent connection is out of the epoll set, and what input there is waits. From then on the side thread alone uses the
# socket, and the worker nothing but the structure, until worker_give_back returns it through the worker's queue.

# Of connections that have their socket for themselves.
cdef conn_engine socket_engine
# Of lifelines. Their queue pair can end at any moment, which is no time for the socket to be lent.
cdef conn_engine lifeline_engine

# The machine has lent the connection (WANT_LENT).
cdef void connection_lent(connection *cn) noexcept nogil
# A side thread gave it back.
cdef void connection_returned(connection *cn) noexcept nogil
