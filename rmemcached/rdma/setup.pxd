"""Queue pairs on their way from the exchange to READY.

A queue pair with a second connection has a token. Any worker may read the request on this connection. The first octets
of the token are the number of the queue pair's worker: the reader hands the socket to this worker, and the worker finds
the queue pair among its own by the token, until the stream has come. No worker looks at the objects of another worker.

A list has all queue pairs without READY, the oldest first. Their time limit is the same, so the oldest is the first to
be late.

Called by the worker. A part of the C unit of rdma_conn, above rdma/thread and rdma/queue.
"""

# conn_make calls it: enters a queue pair in RTS, to wait for its stream and for READY. False: the system
# has no random octets for a token.
cdef bint setup_begin(rdma_conn *rc) noexcept nogil
# Ends the wait: READY has come, or the connection ends. A repeated call changes nothing. rdma_thread_end_late, in this
# part too, ends connections without READY.
cdef void setup_end(rdma_conn *rc) noexcept nogil

# conn_engine.direct, for the command rdma_direct: allows the lane's queue pair to READ items, and returns the reply
# with address and rkey of the registered part of the memory at `place`; or an error line.
cdef const char *setup_reads(conn *c, uint64_t place, char *reply, size_t reply_size) noexcept nogil
# conn_engine.given: whether a lane's client has got the items' memory, for READs or as descriptors.
cdef bint setup_given(const conn *c) noexcept nogil
# Tells the store that the client no longer has the items' memory, if it had. The queue pair or its stream has ended.
cdef void setup_take_back(rdma_conn *rc) noexcept nogil
