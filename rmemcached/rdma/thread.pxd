"""A worker's part of a device: its completion channel, its counters, the work requests about to be posted.

The worker owns its part; the other threads only read the counters, without a lock. A part of the C unit of rdma_conn,
below all the others: the part uses nothing of a connection but its links.
"""

cdef enum:
    STREAMLESS_BUCKETS = 256     # of rdma_thread.streamless
    TURN_QUANTA_ALL = 16         # completions and commands of a turn, all connections, as a multiple of reqs_per_event

cdef struct rdma_thread:
    rdma_device *dev
    conn_thread *worker
    uint32_t number              # of the worker
    drive_fn drive
    rdma_failed_fn failed
    const rdma_lane_hooks *lanes
    ibv_comp_channel *channel
    rdma_conn *ready             # connections with something to do, the longest waiting first
    rdma_conn *ready_last
    unsigned int nready
    unsigned int left_over       # connections in `ready` at the end of the last run
    uint32_t turn                # the number of the turn
    int64_t turn_left            # completions and commands of this turn; negative: there were more
    bint used_up                 # the last turn left something to do
    uint32_t work                # octets that connections may move in this turn
    bint was_busy                # connections moved octets in the last turn
    int64_t now                  # now_ns() when this turn's work came; 0: the worker does not poll through gaps
    int64_t served               # now_ns() when the last connection of this run was served
    int64_t limit                # nanoseconds of the longest gap to poll through
    uint32_t least_gap           # the shortest gap to poll through, of the connections served in this run
    # fields of rdma/completions
    rdma_cq *queues              # the newest first; several only where the device's queues are too short
    uint32_t promised            # completions of all queue pairs, for which the queues have room
    bint armed                   # the next completion in any of `queues` makes an event
    bint drained                 # the queues were empty after the last poll
    bint broken                  # a queue has failed, and with the queue all connections, which are in `ready`
    kept_completion *kept        # kept_size entries; all but the first kept_used are untouched memory
    uint32_t kept_size
    uint32_t kept_used
    uint32_t nkept               # entries that connections have not taken yet
    uint32_t first_free          # the first free entry; the kept_used - nkept free entries are linked
    rdma_conn **numbers          # connections by the numbers of their queue pairs: numbers_size buckets
    uint32_t numbers_size        # a power of two
    uint32_t nnumbers
    # fields of rdma/messages
    unsigned int message_users   # queue pairs that use the memory of rdma/messages
    message_blocks sends
    uint32_t *free_sends         # the nfree_sends free buffers of sends.count
    uint32_t nfree_sends
    ibv_srq *srq                 # NULL: no queue pair shares receives
    uint32_t shared_room         # receives for which srq has room
    uint32_t shared_credits      # credits of the clients whose queue pairs share receives
    message_blocks receives
    # fields of rdma/setup
    rdma_conn *setup_oldest      # connections without READY
    rdma_conn *setup_newest
    rdma_conn *streamless[STREAMLESS_BUCKETS]   # connections without READY and without a stream, by token
    # Work requests of the queue pair being served, posted together at the end of its service.
    unsigned int nchain
    ibv_send_wr chain[SEND_DEPTH]
    ibv_sge sges[SEND_DEPTH][BULK_SGES]
    rdma_counters counters
    soft_qp_counters soft        # the software provider's counts for all queue pairs of this part so far
    counter_entry counter_entry

# Appends a work request without elements to t.chain, for queue_ring_doorbell. The send queue has a free entry for it.
cdef ibv_send_wr *thread_chain(rdma_thread *t, uint64_t wr_id, unsigned int flags) noexcept nogil
# Appends an element, a piece of registered memory, to a work request; BULK_SGES elements at most.
cdef void add_element(ibv_send_wr *wr, void *addr, size_t length, uint32_t lkey) noexcept nogil

# Puts a connection at the end of t.ready: rdma_thread_run then serves the connection. A repeated call changes nothing.
cdef void thread_ready(rdma_conn *rc) noexcept nogil
# Takes a connection out of t.ready, before its service or its end. A repeated call changes nothing.
cdef void thread_unready(rdma_conn *rc) noexcept nogil
# Whether the connections have used up this turn: the rest of t.ready is served in the next turn.
cdef bint thread_turn_over(const rdma_thread *t) noexcept nogil
