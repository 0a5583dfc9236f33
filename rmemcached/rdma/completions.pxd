"""A worker's completions on a device: a queue for all its connections, and a list of completions for each connection.

The worker polls the queue in batches, and keeps the needed part of each completion. The number of the queue pair names
the connection, and a link leads from each completion to the connection's next completion. So a connection without a
share left in this turn holds up nobody, and the worker serves completions connection by connection, with a single
doorbell for each.

The queue has room for all possible completions, and grows with the connections. Where the device's queue cannot grow
any more, the worker makes another queue. The worker polls the queue until it is empty before making a queue pair: some
drivers leave the completions of a destroyed queue pair there, and give its number to the next queue pair.

A software device reports pending completions (soft_cq_pending): its queue is never armed, and makes no event. The queue
of a device of the system is armed before the worker sleeps, and at no other time. Then any completion makes the event,
since clients need not mark their SENDs as "solicited"; SENDs of the worker itself complete silently (rdma/queue).

Called by the worker. A part of the C unit of rdma_conn, above rdma/thread. The functions by which the server looks for
completions are in this part, too: rdma_thread_poll, _pending, _arm, _event.
"""

cdef enum:
    TAKEN_AT_A_TIME = 1024       # completions polled in a turn; their connections may need several turns for them
    KEPT_BYTES = 16              # of a kept_completion

cdef struct rdma_cq:
    ibv_cq *ibv
    rdma_cq *next                # in rdma_thread.queues
    uint32_t entries             # completions for which the queue has room
    uint32_t promised            # completions of its queue pairs, at most
    unsigned int unacked         # events not yet acknowledged

cdef struct kept_completion:     # the needed part of an ibv_wc: kept small, as clients decide how many completions wait
    uint32_t wr_id               # the numbers of rdma/queue and rdma/messages fit: they have 31 bits
    uint32_t byte_len
    ibv_wc_status status
    uint32_t following           # the connection's next entry, if this is not its newest; or the next free entry

# Makes the first queue. False: out of resources; the caller calls completions_close.
cdef bint completions_open(rdma_thread *t) noexcept nogil
# Destroys the queues. No connection is left.
cdef void completions_close(rdma_thread *t) noexcept nogil

# For queue_create: finds or makes a queue with room for `count` completions of a further queue pair, and makes room in
# t.kept. NULL: out of resources, or t.broken.
cdef rdma_cq *completions_reserve(rdma_thread *t, uint32_t count) noexcept nogil
# For queue_free: gives this room back, after the queue pair's end. An empty further queue is destroyed.
cdef void completions_release(rdma_thread *t, rdma_cq *queue, uint32_t count) noexcept nogil

# Called once the connection has its queue pair: from here on completions find the connection.
cdef void completions_enter(rdma_conn *rc) noexcept nogil
# Called after the queue pair's end: drops the connection's completions, and posts their shared receives anew. Later
# completions of the queue pair are dropped when polled.
cdef void completions_leave(rdma_conn *rc) noexcept nogil

# Polls about `most` completions, and puts their connections into t.ready. Sets t.drained to whether the queues
# were empty afterwards. If a poll fails: sets t.broken, and puts all connections into t.ready.
cdef void completions_take(rdma_thread *t, unsigned int most) noexcept nogil
# Takes the connection's oldest completion (rc.nkept is not 0). The pointer is valid until the next poll.
cdef const kept_completion *completions_next(rdma_conn *rc) noexcept nogil
# Whether a software device has completions. Devices of the system have to be polled.
cdef bint completions_pending(const rdma_thread *t) noexcept nogil
