"""Memory of a worker for messages on a device: buffers of SENDs, and the shared receives of its queue pairs.

Both grow in blocks, with the number of queue pairs or of SENDs under way, and are freed with the worker's last queue
pair. The buffer used last is used first, so few of many buffers are resident, and the cache has them.

On the software devices, queue pairs take their receives from one shared receive queue. The queue has a receive for each
credit of their clients, so a message always finds a receive. A queue pair takes no more of them than its client has
credits (soft_qp_limit): a client that sends more ends its own queue pair, and takes nothing from others. On devices of
the system, where nobody but the peer counts credits, each queue pair has receives of its own (rdma/queue). So has a
queue pair without room in the shared queue.

Called by the worker. A part of the C unit of rdma_conn, above rdma/thread.
"""

cdef enum:
    RECV_WR = 1 << 30            # in wr_id: a receive, and its index
    NO_RECEIVE = RECV_WR - 1     # in place of an index: no receive, but the end of a queue pair with shared receives
    NO_BUFFER = 0xffffffff       # in place of a buffer: none

cdef struct message_block:       # BLOCK_MESSAGES buffers of limits.msgsize octets
    char *memory
    ibv_mr *mr

cdef struct message_blocks:
    message_block *blocks
    uint32_t count               # of buffers

# queue_create calls it before a queue pair uses the memory: counts a user.
cdef void messages_enter(rdma_thread *t) noexcept nogil
# queue_free calls it when a queue pair has given everything back. The last user frees the blocks and the shared queue.
cdef void messages_leave(rdma_thread *t) noexcept nogil

# Reserves shared receives for `credits` more credits, and adds missing receives to the shared receive queue, which the
# first call makes. Returns the queue; NULL: out of resources. For queue_create, on software devices only.
cdef ibv_srq *receives_reserve(rdma_thread *t, uint32_t credits) noexcept nogil
# Gives the credits of a reservation back. The receives stay for further queue pairs.
cdef void receives_release(rdma_thread *t, uint32_t credits) noexcept nogil
# Posts the shared receive with this index: a new receive, or a receive whose message is not needed any more. False: out
# of resources.
cdef bint receives_post(rdma_thread *t, uint32_t index) noexcept nogil
# The message in a shared receive.
cdef char *receives_message(rdma_thread *t, uint32_t index) noexcept nogil

# Whether a buffer for a SEND is free. Adds a block of buffers if none is free. False: out of memory.
cdef bint sends_available(rdma_thread *t) noexcept nogil
# Takes a free buffer, and returns its number, after sends_available has returned True.
cdef uint32_t sends_take(rdma_thread *t) noexcept nogil
# Gives a buffer back.
cdef void sends_give(rdma_thread *t, uint32_t buffer) noexcept nogil
# The memory of a buffer, and its lkey.
cdef char *sends_buffer(rdma_thread *t, uint32_t buffer) noexcept nogil
cdef uint32_t sends_key(rdma_thread *t, uint32_t buffer) noexcept nogil
