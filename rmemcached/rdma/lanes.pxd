"""All lanes of a queue pair: their turns, their common waits and ends.

Called by the connection's worker. A part of the C unit of rdma_conn, above rdma/lane.
"""

# For rdma_conn_free: frees at most *most lanes, and subtracts their number from *most. The queue pair has been
# destroyed. True: all lanes and the table are freed.
cdef bint lanes_free(rdma_conn *rc, unsigned int *most) noexcept nogil
# Called at a connection's first service in a turn: its lanes have their share of commands again.
cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil
# Whether the lanes have used up their share of commands in this turn.
cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil
# Whether lanes have given way in an earlier turn, with commands left.
cdef bint lanes_runnable(const rdma_conn *rc) noexcept nogil
# Lets these lanes go on, until the share is used up: then the connection is served again in the next turn.
cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil
# Whether lanes wait to post something, or CLOSE messages wait.
cdef bint lanes_blocked(const rdma_conn *rc) noexcept nogil
# Posts for waiting lanes, as far as there is room. If the client has ended, the call drops the replies of a few lanes
# instead, and puts the connection into t.ready for the rest.
cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil
# The client has ended: from here on lanes drop their replies, and wait for the client no more.
cdef void lanes_client_ended(rdma_conn *rc) noexcept nogil
# The work of rdma_conn_end_idle: ends lanes silent for longer than `seconds`.
cdef unsigned int lanes_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil
