# The path of a request over a socket: recv, drive_machine, sendmsg. The worker's thread.
#
# While output waits for room in the socket, the worker reads no input from the socket: so a slow reader delays its own
# replies alone. After reqs_per_event commands a connection gives way, and goes on in the worker's next turn. Long
# replies wait in a queue when the turn's bytes are used up. They leave in the queue's order, each as a whole if
# possible. The requests of connections with long replies wait there as well, because a long reply made too early is
# touched twice. So do long payloads: taken in small parts by turns, none of many payloads would be in the processor's
# cache.

# The socket has input: reads it, and runs the machine over the input.
cdef void connection_readable(connection *cn) noexcept nogil
# Reads these events' sockets before answering any, where a short command may be the whole input. Prefetches the memory
# for the commands' lookups, so the cache misses overlap.
cdef void read_ahead(worker *w, const epoll_event *events, int n) noexcept nogil
# Runs the machine over the input that read_ahead has read.
cdef void connection_run_ahead(connection *cn) noexcept nogil
# The socket has room again for waiting output.
cdef void connection_writable(connection *cn) noexcept nogil
# Runs the machine over the input, sends the replies, and arranges for the machine's next want.
cdef void connection_run(connection *cn) noexcept nogil
# Sends waiting output, before anything else. True: all has left, and the machine may go on. False: the connection has
# ended, or goes on by itself later.
cdef bint send_waiting(connection *cn) noexcept nogil
# With the turn's bytes used up, puts a readable connection into the queue, if a long payload is under way or the last
# reply was long. False: the connection need not wait.
cdef bint queue_for_turn(connection *cn) noexcept nogil
cdef inline bint has_runnable(const worker *w) noexcept nogil:
    return w.runnable.head != NULL or w.sending.head != NULL or w.holding.head != NULL
# Sends and receives the long replies and payloads in the queue, as far as the turn's bytes go.
cdef void run_sending(worker *w) noexcept nogil
# The connection wants input: if its stream holds some, the connection is read in the next turn.
cdef void read_held(connection *cn) noexcept nogil
# Reads each connection whose stream held input at the end of the last turn.
cdef void run_holding(worker *w) noexcept nogil
# Runs each connection that gave way. A connection that gives way again waits for the next turn.
cdef void run_runnable(worker *w) noexcept nogil
