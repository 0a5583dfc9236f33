"""A queue pair: its message buffers, its posted work requests, the credits of both ends.

Posting never waits. The caller asks first for room (queue_may_send, _read, _write). Without room the caller waits for a
completion. Work requests are chained and posted together at queue_ring_doorbell: a turn costs a single doorbell.

Most SENDs complete silently: a send queue completes in order, so each completion confirms all earlier SENDs. Short
SENDs are copied at posting (inline), and their buffers are free again at once. On a software device a completion costs
no event, and each longer SEND is signalled: its buffer is free soon, and still in the cache.

Called by the connection's worker. A part of the C unit of rdma_conn, above rdma/completions and rdma/thread: the part
knows neither connections nor lanes.
"""

cdef enum:
    BULK_PIECE = 1024 * 1024     # octets of the largest READ or WRITE: in smaller pieces soft_iw takes longer
    # A further WRITE is posted while fewer octets of WRITEs are under way: later work requests wait for the WRITEs.
    WRITE_AHEAD = 960 * 1024
    READ_AHEAD = 4096 * 1024     # the limit for READs is higher: later work requests do not wait for READs
    COMPACT = 256                # octets of a message with a place apart in unpinned memory, see queue_post_receives

cdef enum wr_kind:
    WR_SEND = 0
    WR_READ
    WR_WRITE
    WR_PROBE                     # a WRITE of length 0, to learn whether the peer still answers

# The purpose of a posted work request of the send queue; wr_id is its index. SENDs use the indices below SEND_BUFFERS
# in turn.
cdef struct rdma_wr:
    wr_kind kind
    uint32_t length
    uint32_t sends               # all but WR_SEND: the number of earlier SENDs
    uint32_t buffer              # WR_SEND: of rdma/messages; NO_BUFFER when the buffer is free again
    rdma_lane *lane              # of a WR_READ, and of the last WR_WRITE of a lane (lane.last_write); else NULL
    item *item                   # the last WR_WRITE of an item: the reference to release; else NULL

cdef struct rdma_queue:
    rdma_thread *t
    rdma_cq *cq                  # the worker's, with room for all possible completions
    ibv_qp *qp
    bint entered                 # the queue pair uses the memory of rdma/messages
    bint shared                  # its receives are shared, and the next three fields are unused
    ibv_mr *mr                   # of buffer
    char *buffer                 # of limits.credits receives: `compact` octets of each, then limits.msgsize of each
    unsigned int compact         # COMPACT, or 0
    unsigned int send_msgsize    # bytes of the largest message for the peer
    unsigned int tx_credits      # SENDs that may be posted
    unsigned int rx_credits      # SENDs that the peer may still make
    unsigned int owed            # receives posted anew, and not yet announced to the peer
    unsigned int inline_data     # bytes of the longest SEND copied at posting
    uint32_t sends_posted        # SENDs in all
    uint32_t sends_done          # SENDs known to have completed
    uint32_t sends_told          # SENDs up to the last signalled work request
    unsigned int free_bulk       # entries of free_wr
    size_t read_bytes            # of the READs under way
    size_t write_bytes           # of the WRITEs under way
    uint32_t bulk_moved          # store time of the last completed READ or WRITE, or of the post of the first under way
    uint16_t free_wr[BULK_DEPTH]
    rdma_wr wrs[SEND_DEPTH]
    bint closing                 # the client has ended: nothing is sent any more, no credit is given back
    bint failed                  # the queue pair is of no use any more
    const char *failure          # the failed operation, for the error line; NULL: the peer went away
    ibv_wc_status failure_status

# conn_make calls it: makes the queue pair, in RESET, with a completion queue of the worker's, and the memory for its
# messages. peer_credits and peer_msgsize: announced by the client. False: out of resources; the caller calls queue_stop
# and queue_free.
cdef bint queue_create(rdma_queue *q, rdma_thread *t, unsigned int peer_credits,
                       unsigned int peer_msgsize) noexcept nogil
# Destroys the queue pair: no RDMA touches memory afterwards. Releases the items of WRITEs under way, and the buffers of
# SENDs. Called by rdma_conn_stop.
cdef void queue_stop(rdma_queue *q) noexcept nogil
# Gives back memory, receives and the room for completions, after queue_stop. No lane is left.
cdef void queue_free(rdma_queue *q) noexcept nogil

# Marks the queue pair as failed; report_failure tells the owner when the service of the connection ends. Only the first
# reason is kept, because flushes follow. operation: constant, for the error line, or NULL.
cdef void queue_fail(rdma_queue *q, const char *operation, ibv_wc_status status) noexcept nogil

# Posts the queue pair's own receives, in INIT; nothing to do if its receives are shared. False: the device refuses. A
# receive takes a message of any size, and most messages are short. A software device does not pin memory, and the first
# octets of all receives lie side by side: the rest of a receive takes physical memory only after a longer message.
cdef bint queue_post_receives(rdma_queue *q) noexcept nogil
# Posts a receive anew, when its message has been served: the peer gets the credit back, unless the queue is closing or
# has failed. A shared receive is posted in any case.
cdef void queue_give_back(rdma_queue *q, unsigned int index) noexcept nogil
# The message of `length` octets in the receive, in one piece, until the receive is posted anew.
cdef char *queue_message(rdma_queue *q, unsigned int index, size_t length) noexcept nogil
# Whether a further SEND can be posted, and has a buffer; credits do not count. If memory is lacking, the call fails the
# queue pair.
cdef bint queue_has_buffer(rdma_queue *q) noexcept nogil
# Whether a DATA or CLOSE message can be sent: needs a buffer, and two credits, since the last credit is for CREDIT.
cdef bint queue_may_send(rdma_queue *q) noexcept nogil
# Takes a send buffer, after queue_has_buffer or queue_may_send has returned True. The caller fills queue_payload, then
# calls queue_send.
cdef uint32_t queue_take_buffer(rdma_queue *q) noexcept nogil
# The place for the payload in a send buffer.
cdef char *queue_payload(rdma_queue *q, uint32_t buffer) noexcept nogil
# Chains the SEND of a message with `payload` bytes from the buffer, and announces the owed receives. used: bytes of the
# lane's input used by the server, for the client.
cdef void queue_send(rdma_queue *q, uint8_t kind, uint32_t lane, uint32_t used, uint32_t buffer,
                     size_t payload) noexcept nogil
# At the end of a connection's service: sends CREDIT if half of the receives have been posted anew and no reply has
# announced them.
cdef void queue_return_credits(rdma_queue *q) noexcept nogil
# Whether a READ may be posted: the send queue has an entry, and READ_AHEAD is not reached.
cdef bint queue_may_read(const rdma_queue *q) noexcept nogil
# Whether a WRITE may be posted: the send queue has an entry, and WRITE_AHEAD is not reached.
cdef bint queue_may_write(const rdma_queue *q) noexcept nogil
# Octets of the next WRITE; `left` octets are still to be written.
cdef size_t queue_write_length(const rdma_queue *q, size_t left) noexcept nogil
# Chains a READ into, or a WRITE out of, extents of item memory, after queue_may_read or queue_may_write. The caller
# sets lane and item of the returned work request. NULL: the memory is not registered, and the queue pair has failed.
cdef rdma_wr *queue_post_bulk(rdma_queue *q, wr_kind kind, const iovec *iov, int count, uint64_t remote,
                              uint32_t rkey) noexcept nogil
# For rdma_conn_probe: chains a WRITE of length 0; free_bulk is not 0. Without an acknowledgement of the peer the queue
# pair fails.
cdef void queue_probe(rdma_queue *q) noexcept nogil
# Posts the chained work requests, with one call. If the device refuses, the queue pair has failed.
cdef void queue_ring_doorbell(rdma_queue *q) noexcept nogil
# The work request with this index has completed or failed: frees its entry of the send queue, and the entries and
# buffers of all earlier SENDs. Returns the work request, which stays as it is until the next post.
cdef rdma_wr *queue_completed(rdma_queue *q, unsigned int index) noexcept nogil
# Releases the item of a completed or failed WRITE. Only the last WRITE of an item has the reference; for other work
# requests the call does nothing.
cdef void queue_release_item(rdma_queue *q, rdma_wr *entry) noexcept nogil
