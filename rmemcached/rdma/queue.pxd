"""A queue pair: its message buffers, what is posted on it, the credits of both ends.

Posting never waits. The caller asks first whether there is room (queue_may_send, _read, _write). If not, it keeps what
it has until a completion makes room. Work requests are chained and leave together at queue_ring_doorbell, so that all
that a turn has to send costs one doorbell.

SENDs complete silently, but for one now and then: a send queue completes in order, so that whatever completes tells of
all SENDs before it. Short ones are copied when they are posted (inline), and their buffers are free again at once. On
a software device a completion costs no event, so that the buffer of a longer SEND is better soon free, and hot.

All of it belongs to the connection's worker. A part of the C unit of rdma_conn, above rdma/completions and rdma/thread:
it knows neither the connection nor what lanes do.
"""

cdef enum:
    BULK_PIECE = 1024 * 1024     # octets of the largest READ or WRITE: in smaller ones soft_iw takes longer
    # While fewer octets of WRITEs are under way, one more is posted: what comes behind them in the send queue waits for
    # them.
    WRITE_AHEAD = 960 * 1024
    READ_AHEAD = 4096 * 1024     # the same of READs, for which nothing waits that comes behind them
    COMPACT = 256                # octets of a message that software devices receive in a place of their own

cdef enum wr_kind:
    WR_SEND = 0
    WR_READ
    WR_WRITE
    WR_PROBE                     # a WRITE of length 0

# What a posted send work request is for; wr_id is its index. SENDs use those below SEND_BUFFERS in turn.
cdef struct rdma_wr:
    wr_kind kind
    uint32_t length
    uint32_t sends               # all but WR_SEND: SENDs that were posted before it
    uint32_t buffer              # WR_SEND: of rdma/messages; NO_BUFFER once it is free again
    rdma_lane *lane              # WR_READ; WR_WRITE: the lane whose last_write it is
    item *item                   # WR_WRITE: the reference to release; NULL on all but the last of an item

cdef struct rdma_queue:
    rdma_thread *t
    rdma_cq *cq                  # the worker's, with room for all that can complete
    ibv_qp *qp
    bint entered                 # it has memory of rdma/messages
    bint shared                  # it shares receives; the next three are for queue pairs with receives of their own
    ibv_mr *mr                   # of buffer
    char *buffer                 # the first `compact` octets of each receive message, limits.credits receive messages
    unsigned int compact         # COMPACT, or 0
    unsigned int send_msgsize    # bytes of the largest message the peer takes
    unsigned int tx_credits      # SENDs that may be posted
    unsigned int rx_credits      # SENDs that the peer may still make
    unsigned int owed            # receives posted anew and not yet announced
    unsigned int inline_data     # bytes of a SEND that is copied when it is posted
    uint32_t sends_posted        # SENDs in all,
    uint32_t sends_done          # ... that are known to have completed
    uint32_t sends_told          # ... up to the last whose completion will be told
    unsigned int free_bulk       # entries of free_wr
    size_t read_bytes            # of the READs under way
    size_t write_bytes           # of the WRITEs
    uint32_t bulk_moved          # store time when one of them last completed, or the first under way was posted
    uint16_t free_wr[BULK_DEPTH]
    rdma_wr wrs[SEND_DEPTH]
    bint closing                 # the client has ended: nothing is sent any more, no credit is given back
    bint failed                  # it is of no use any more
    const char *failure          # which operation, for the error line; NULL: the peer went away
    ibv_wc_status failure_status

# Makes the queue pair, in RESET, which completes into a queue of the worker's, and the memory for its messages.
# peer_credits and peer_msgsize: what the client has announced. False: out of resources; queue_stop and queue_free then
# free what there is.
cdef bint queue_create(rdma_queue *q, rdma_thread *t, unsigned int peer_credits,
                       unsigned int peer_msgsize) noexcept nogil
# Destroys the queue pair: no RDMA touches memory afterwards, and items that were being written are released.
cdef void queue_stop(rdma_queue *q) noexcept nogil
# Frees the rest. No lane is left.
cdef void queue_free(rdma_queue *q) noexcept nogil

# Marks the queue pair as failed. Only the first reason is kept, because flushes follow it.
cdef void queue_fail(rdma_queue *q, const char *operation, ibv_wc_status status) noexcept nogil

# Posts the receives of its own, in INIT. A receive takes a message of any size, and most are short. On a software
# device, which does not pin memory, the first octets of all receives lie side by side: what is behind them is memory
# only where a longer message has come.
cdef bint queue_post_receives(rdma_queue *q) noexcept nogil
# Posts a receive anew: the peer gets the credit back, unless the queue is closing or has failed.
cdef void queue_give_back(rdma_queue *q, unsigned int index) noexcept nogil
# The message of so many octets in the receive, in one piece, until the receive is posted anew.
cdef char *queue_message(rdma_queue *q, unsigned int index, size_t length) noexcept nogil
# Whether one more SEND can be posted; and a buffer is there for it. Out of memory: the queue pair has failed.
cdef bint queue_has_buffer(rdma_queue *q) noexcept nogil
# Whether a DATA message can be sent: a buffer, and a credit besides the last, which is for CREDIT.
cdef bint queue_may_send(rdma_queue *q) noexcept nogil
# Takes a send buffer, of which there is one. The caller fills queue_payload, then calls queue_send.
cdef uint32_t queue_take_buffer(rdma_queue *q) noexcept nogil
cdef char *queue_payload(rdma_queue *q, uint32_t buffer) noexcept nogil
# used: bytes of the lane's payload, told to the client.
cdef void queue_send(rdma_queue *q, uint8_t kind, uint32_t lane, uint32_t used, uint32_t buffer,
                     size_t payload) noexcept nogil
# Sends CREDIT if half of the receives have been posted anew and no reply has announced them.
cdef void queue_return_credits(rdma_queue *q) noexcept nogil
# Whether there is room for a READ, or for a WRITE.
cdef bint queue_may_read(const rdma_queue *q) noexcept nogil
cdef bint queue_may_write(const rdma_queue *q) noexcept nogil
# Octets of the next WRITE, of so many that are left.
cdef size_t queue_write_length(const rdma_queue *q, size_t left) noexcept nogil
# Chains one READ into, or WRITE out of, extents of item memory, for which there is room. Returns the work request,
# which the caller completes (lane, item). NULL: the queue pair has failed.
cdef rdma_wr *queue_post_bulk(rdma_queue *q, wr_kind kind, const iovec *iov, int count, uint64_t remote,
                              uint32_t rkey) noexcept nogil
# Chains a WRITE of length 0; free_bulk is not 0. A peer that does not acknowledge it is gone, and the queue pair fails.
cdef void queue_probe(rdma_queue *q) noexcept nogil
# Posts what has been chained.
cdef void queue_ring_doorbell(rdma_queue *q) noexcept nogil
# The work request with this index has completed, and all SENDs before it: there is room for others.
cdef rdma_wr *queue_completed(rdma_queue *q, unsigned int index) noexcept nogil
# If it was the last WRITE of an item, releases the reference that it held.
cdef void queue_release_item(rdma_queue *q, rdma_wr *entry) noexcept nogil
