"""A worker's part of a device: its completion channel, its counters, the work requests that it is about to post.

All of it belongs to the worker; other threads only read its counters, and wait for no lock to do so. A part of the C
unit of rdma_conn, below all other parts: it knows nothing of connections but lists of them.
"""

cdef enum:
    STREAMLESS_BUCKETS = 256
    TURN_QUANTA_ALL = 16         # completions and commands of all connections in a turn, in reqs_per_event

cdef struct rdma_thread:
    rdma_device *dev
    conn_thread *worker
    uint32_t number              # of the worker
    drive_fn drive
    rdma_failed_fn failed
    const rdma_lane_hooks *lanes
    ibv_comp_channel *channel
    rdma_conn *ready             # connections that have something to do, those that wait the longest first
    rdma_conn *ready_last
    unsigned int nready
    unsigned int left_over       # connections that the last run has left in there
    uint32_t turn                # a number of it
    int64_t turn_left            # completions and commands of this turn; negative: there were more
    bint used_up                 # the last turn left something to do
    uint32_t work                # octets that connections may move in this turn
    bint was_busy                # in the last one they moved some
    int64_t now                  # when this turn's work came; 0: nobody asks for gaps
    int64_t served               # when the last connection of this run was
    int64_t limit                # nanoseconds of the longest gap that is polled through
    uint32_t least_gap           # the shortest gap that is to be polled through, of connections served in this run
    # rdma/completions'
    rdma_cq *queues              # the newest first; more than one only where the device's are too short
    uint32_t promised            # completions that all queues have room for, to queue pairs
    bint armed                   # they make an event
    bint drained                 # they were empty when completions were last taken
    bint broken                  # one of them has failed, and with it all connections, which are in `ready`
    ibv_wc *kept                 # kept_size entries; completions are polled into the first kept_used, in their order
    uint32_t *following          # of each entry: the next of the same connection, or LAST, or TAKEN
    uint32_t kept_size
    uint32_t kept_used
    uint32_t nkept               # entries that connections have not taken yet
    rdma_conn **numbers          # connections by the numbers of their queue pairs: numbers_size buckets
    uint32_t numbers_size        # a power of two
    uint32_t nnumbers
    # rdma/messages'
    unsigned int message_users   # queue pairs
    message_blocks sends
    uint32_t *free_sends         # of sends.count: the nfree_sends that are free
    uint32_t nfree_sends
    ibv_srq *srq                 # NULL: no queue pair shares receives
    uint32_t shared_room         # receives that it has room for
    uint32_t shared_credits      # of the clients whose queue pairs share receives
    message_blocks receives
    # rdma/setup's
    rdma_conn *setup_oldest      # connections whose READY has not come
    rdma_conn *setup_newest
    rdma_conn *streamless[STREAMLESS_BUCKETS]   # those of them that have no stream yet, by token
    # Work requests of the queue pair being served, which leave together: between two queue pairs there are none.
    unsigned int nchain
    ibv_send_wr chain[SEND_DEPTH]
    ibv_sge sges[SEND_DEPTH][BULK_SGES]
    rdma_counters counters
    soft_qp_counters soft        # of the software provider: of all queue pairs that t.worker has had
    counter_entry counter_entry

# Appends a work request without elements to the chain, and an element to a work request. There is room: the caller has
# reserved an entry of the send queue.
cdef ibv_send_wr *thread_chain(rdma_thread *t, uint64_t wr_id, unsigned int flags) noexcept nogil
cdef void add_element(ibv_send_wr *wr, void *addr, size_t length, uint32_t lkey) noexcept nogil

# Puts a connection into t.ready, behind the others, and takes it out again. To repeat either changes nothing.
cdef void thread_ready(rdma_conn *rc) noexcept nogil
cdef void thread_unready(rdma_conn *rc) noexcept nogil
# Whether the connections have done what they may in this turn: those that are not served yet go on in the next.
cdef bint thread_turn_over(const rdma_thread *t) noexcept nogil
