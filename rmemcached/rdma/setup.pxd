"""Queue pairs on their way from the exchange to READY.

Those of the software devices are found by their token until they have their stream. All are in a list, oldest first.
All have the same time, so the oldest is the first to be late.

All of it belongs to the worker. A part of the C unit of rdma_conn, above rdma/thread and rdma/queue.
"""

# The queue pair, in RTS, waits for its stream and for READY. False: the system has no random octets for the token.
cdef bint setup_begin(rdma_conn *rc) noexcept nogil
# READY has come, or the connection ends. To repeat it changes nothing. rdma_thread_end_late, which is here too, ends
# connections whose READY does not come.
cdef void setup_end(rdma_conn *rc) noexcept nogil

# The command rdma_direct: lets a lane's queue pair READ, and says where a part of the memory is registered.
# conn_engine.direct.
cdef const char *setup_reads(conn *c, uint64_t place, char *reply, size_t reply_size) noexcept nogil
# Whether a lane's client has got the memory either way. conn_engine.given.
cdef bint setup_given(const conn *c) noexcept nogil
# The queue pair has ended: its client has the memory no more, if it had it.
cdef void setup_take_back(rdma_conn *rc) noexcept nogil
