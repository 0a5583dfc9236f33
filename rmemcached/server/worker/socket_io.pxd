# The path of a request over a socket: recv, drive_machine, sendmsg. The worker's thread.
#
# While output waits for room in the socket nothing is read from it, so that a slow reader costs its replies alone. A
# connection that has done reqs_per_event commands gives way to the others and goes on in the worker's next turn. Long
# replies that find the turn's bytes used up wait in a queue, and leave in its order, each as a whole if it can. So do
# requests of connections whose replies have been long: to make a reply long before it leaves is to touch it twice. Long
# payloads do, too: to take a small part of each of many in turn is to find none of them in the processor's cache.

# The socket has something to read: reads it, and runs the machine over it.
cdef void connection_readable(connection *cn) noexcept nogil
# Reads the sockets of these events before any of them is answered, where a short command may be all there is, and asks
# for the memory that the commands will look up: so they wait for it together.
cdef void read_ahead(worker *w, const epoll_event *events, int n) noexcept nogil
# Whether it has read that of the connection; then connection_run_ahead goes on with it.
cdef inline bint was_read_ahead(const connection *cn) noexcept nogil:
    return cn.rbuf == NULL and cn.c.rbytes != 0
cdef void connection_run_ahead(connection *cn) noexcept nogil
# The socket has room again for what waits.
cdef void connection_writable(connection *cn) noexcept nogil
# Runs the machine over the input that is there, sends the replies, and arranges for what the machine wants next.
cdef void connection_run(connection *cn) noexcept nogil
# Sends what waits, before anything else is done. Whether all has left and the machine may go on; if not, the connection
# has ended, or goes on by itself later.
cdef bint send_waiting(connection *cn) noexcept nogil
# Whether the connection, which is readable, has been put into that queue: it has a long payload under way, or is known
# for long replies.
cdef bint waits_turn(connection *cn) noexcept nogil
cdef inline bint has_runnable(const worker *w) noexcept nogil:
    return w.runnable.head != NULL or w.sending.head != NULL
# Sends and receives what the turn has bytes for, of the long replies and payloads that wait.
cdef void run_sending(worker *w) noexcept nogil
# One more turn for each connection that gave way; those that give way again wait for the next.
cdef void run_runnable(worker *w) noexcept nogil
