"""All lanes of a queue pair: their turns, their common waits and ends.

Called by the connection's worker. A part of the C unit of rdma_conn, above rdma/lane.
"""

# Frees at most *most lanes, and subtracts them from *most. The queue pair has been destroyed. True: all lanes are
# freed, and the table.
cdef bint lanes_free(rdma_conn *rc, unsigned int *most) noexcept nogil
# A turn of the connection begins: its lanes have their share of commands again.
cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil
# Whether the lanes have used up their share.
cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil
# Whether lanes have given way; lets these lanes go on.
cdef bint lanes_runnable(const rdma_conn *rc) noexcept nogil
cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil
# Whether lanes wait to post something; tries again to post. If the client has ended, drops the replies of a few lanes
# in each turn instead, and has the connection served again.
cdef bint lanes_blocked(const rdma_conn *rc) noexcept nogil
cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil
# The client has ended: from here on lanes drop their replies, and wait for the client no more.
cdef void lanes_client_ended(rdma_conn *rc) noexcept nogil
# Ends lanes silent for longer than `seconds`, see rdma_conn_end_idle.
cdef unsigned int lanes_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil
