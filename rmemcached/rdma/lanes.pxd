"""All lanes of a queue pair: their turns, and what ends or holds up many of them.

All of it belongs to the connection's worker. A part of the C unit of rdma_conn, above rdma/lane.
"""

# Frees so many of them at most, and takes them off. The queue pair has been destroyed. True: none is left, and nothing
# else of them.
cdef bint lanes_free(rdma_conn *rc, unsigned int *most) noexcept nogil
# A turn of the connection begins: its lanes have their share of commands again.
cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil
# Whether they have used it up.
cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil
# Whether lanes have given way, and lets them go on.
cdef bint lanes_runnable(const rdma_conn *rc) noexcept nogil
cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil
# Whether something could not be posted, and tries it again. If the client has ended, replies are dropped instead, of so
# many lanes in a turn that nobody else notices; the connection is served again then.
cdef bint lanes_blocked(const rdma_conn *rc) noexcept nogil
cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil
# The queue is closing: replies are dropped from here on, so that no lane waits for its client to take any.
cdef void lanes_client_ended(rdma_conn *rc) noexcept nogil
# Ends lanes of which nothing has been heard for longer than `seconds`, see rdma_conn_end_idle.
cdef unsigned int lanes_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil
