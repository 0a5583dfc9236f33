"""A worker's completions on a device: one queue for all its connections, and which connection each of them is for.

The worker polls the queue. The number of the queue pair names the connection, and the completion is kept for it, behind
those that it has not taken yet. So a connection that has used up its share of a turn holds up no other, and what has
completed is served connection by connection, with one doorbell for each.

The queue has room for all that can complete. It grows with the connections; where the device's cannot grow any more,
the worker has another one. It is polled until it is empty before a queue pair is made: some drivers leave the
completions of a queue pair that was destroyed there, and give its number to the next.

A software device is asked whether there is something (soft_cq_pending): it is never armed, and makes no event. A device
of the system is armed before the worker sleeps, and at no other time. Any completion makes the event then, since
clients need not ask for it in their SENDs (as "solicited"); those of the worker itself complete silently (rdma/queue).

All of it belongs to the worker. A part of the C unit of rdma_conn, above rdma/thread. What the server calls to look for
completions is here, too: rdma_thread_poll, _pending, _arm, _event.
"""

cdef enum:
    TAKEN_AT_A_TIME = 1024       # completions, which their connections take in as many turns as they need

cdef struct rdma_cq:
    ibv_cq *ibv
    rdma_cq *next                # in rdma_thread.queues
    uint32_t entries             # completions that it has room for
    uint32_t promised            # of them to queue pairs
    unsigned int unacked         # events that have not been acknowledged

# Makes the first queue. False: out of resources; completions_close frees what there is.
cdef bint completions_open(rdma_thread *t) noexcept nogil
# Destroys the queues. No connection is left.
cdef void completions_close(rdma_thread *t) noexcept nogil

# A queue with room for `count` completions more of one queue pair, and room to keep them. NULL: out of resources.
cdef rdma_cq *completions_reserve(rdma_thread *t, uint32_t count) noexcept nogil
cdef void completions_release(rdma_thread *t, rdma_cq *queue, uint32_t count) noexcept nogil

# The connection's completions find it from here on.
cdef void completions_enter(rdma_conn *rc) noexcept nogil
# From here on they are dropped; so are those that it has not taken.
cdef void completions_leave(rdma_conn *rc) noexcept nogil

# Takes completions out of the queues, about `most`, and puts their connections into t.ready. t.drained says whether the
# queues are empty then.
cdef void completions_take(rdma_thread *t, unsigned int most) noexcept nogil
# Takes the connection's oldest completion, of which there is one. It is there until completions are polled again.
cdef const ibv_wc *completions_next(rdma_conn *rc) noexcept nogil
# Whether there is something to take. Only of software devices; others have to be polled.
cdef bint completions_pending(const rdma_thread *t) noexcept nogil
