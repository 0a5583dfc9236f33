# The path of a request over a socket: recv, drive_machine, sendmsg. The worker's thread.
#
# While output waits for room in the socket nothing is read from it, so that a slow reader costs its replies alone. A
# connection that has done reqs_per_event commands gives way to the others and goes on in the worker's next turn.

# The socket has something to read: reads it, and runs the machine over it.
cdef void connection_readable(connection *cn) noexcept nogil
# The socket has room again for what waits.
cdef void connection_writable(connection *cn) noexcept nogil
# Runs the machine over the input that is there, sends the replies, and arranges for what the machine wants next.
cdef void connection_run(connection *cn) noexcept nogil
# Sends what is queued. 1: all has left; 0: the socket is full, or the turn's share is used up; -1: the connection is
# broken.
cdef int connection_flush(connection *cn) noexcept nogil
# Waits for room in the socket, or for the next turn.
cdef void connection_block(connection *cn) noexcept nogil
# One more turn for each connection that gave way; those that give way again wait for the next.
cdef void run_runnable(worker *w) noexcept nogil
