"""Queue pairs: creation, states, work queues, completion of requests, errors."""

cdef enum:                           # soft_swqe.state
    SWQE_POSTED
    SWQE_SENT                        # a READ whose request is on its way
    SWQE_DONE

cdef struct soft_swqe:               # an entry of the send queue
    uint64_t wr_id
    uint64_t remote_addr
    uint32_t rkey                    # or the STag to invalidate, or to bind
    uint32_t length
    uint32_t received                # READ: octets placed. BIND_MW: the upper half of `length`
    uint32_t operand                 # BIND_MW: the region's lkey
    uint16_t num_sge                 # 0 with inline data. BIND_MW: the rights
    uint8_t opcode                   # ibv_wr_opcode
    uint8_t flags                    # ibv_send_flags; SIGNALED also for sq_sig_all
    uint8_t state

cdef struct soft_response:           # a READ of the peer to be answered
    uint64_t sink_to
    uint64_t source_to
    uint32_t sink_stag
    uint32_t source_stag
    uint32_t length

cdef struct soft_qp:
    ibv_qp ibv
    pthread_mutex_t lock             # guards ibv.state (read unlocked), and all fields without another note
    soft_context *context            # constant, as the next eight
    const soft_fabric *fabric
    soft_pd *pd
    soft_cq *send_cq
    soft_cq *recv_cq
    soft_srq *srq                    # NULL: the queue pair has its own receive queue
    soft_domain *domains[2]          # of send_cq and recv_cq; one entry when both have the same
    int ndomains
    bint sig_all
    void *fabric_state               # the fabric's own data; NULL before the first stream is attached
    soft_async async_events
    soft_qp *next                    # context list; guarded by context.lock
    soft_qp *prev
    soft_link links[2]               # for domains[]; domain.pxd says what guards them
    ibv_qp_attr attr
    ibv_qp_cap cap
    bint drain_notify                # the program asked for an event when SQD has drained the send queue
    bint bound_windows               # the queue pair has bound memory windows of type 2, at some time
    bint established                 # the first message in RTR has come, and its event was made

    stream_state stream
    bint crc                         # negotiated, as the next two
    uint16_t ird
    uint16_t ord

    soft_swqe *sq                    # ring of sq_mask + 1, which grows up to cap.max_send_wr
    ibv_sge *sq_sges                 # cap.max_send_sge for each
    uint8_t *sq_inline               # cap.max_inline_data octets for each
    uint32_t sq_mask
    uint32_t sq_head                 # oldest not completed
    uint32_t sq_tail
    uint32_t reads[MAX_READS]        # send queue indices of READs under way, ring
    uint32_t reads_done              # READ responses completed; tx.cursor.reads counts the requests

    soft_response *responses         # ring of responses_mask + 1, which is ird rounded up
    uint32_t responses_mask
    uint32_t responses_tail          # tx.cursor.next_response is the head

    soft_rwqe *rq                    # ring of rq_mask + 1; with an SRQ one entry, for the incoming message
    ibv_sge *rq_sges
    uint32_t rq_mask
    uint32_t rq_sge                  # elements of rq_sges for each
    uint32_t rq_head
    uint32_t rq_tail

    bint limited                     # `allowed` bounds the receives from the SRQ; constant with a stream
    uint64_t last_wr_id              # if limited: of the completion that reports ERR; constant, too
    uint32_t allowed                 # written by the program's thread; read by any
    uint32_t taken                   # receives taken from the SRQ

    tx_state tx
    rx_state rx

    soft_qp_counters *counters       # constant once there was a stream: &own_counters, or shared ones
    soft_qp_counters own_counters    # written with counter_add, read by any thread
    bint terminated                  # the peer has sent a Terminate, because of:
    int terminated_opcode            # ibv_wr_opcode, or -1: no request of this side
    int terminated_status            # ibv_wc_status

# The power of two with room for so many entries.
cdef uint32_t ring_size(uint32_t entries) noexcept nogil

# Whether the request is carried out at this end alone: LOCAL_INV and BIND_MW.
cdef bint swqe_is_local(const soft_swqe *swqe) noexcept nogil

# The next six need soft_qp.lock.

# Adds work requests to the send queue, for a fabric's post_send, which then sends. 0, or an errno value with *wr, the
# request at fault; the earlier requests are in the queue.
cdef int qp_enqueue_sends(soft_qp *qp, ibv_send_wr **wr) noexcept nogil
# Adds the completion of a send request to send_cq. If send_cq has no room, the queue pair moves to ERR.
cdef void qp_completed(soft_qp *qp, uint64_t wr_id, ibv_wc_opcode opcode, uint32_t length, int status) noexcept nogil
# Takes the finished requests at the head off the send queue, and completes the signaled requests among them. May make
# IBV_EVENT_SQ_DRAINED.
cdef void qp_retire(soft_qp *qp) noexcept nogil

# Closes the stream, flushes both queues and moves the queue pair to ERR. The send queue entry `culprit` completes with
# sq_status, the oldest receive with rq_status, unless these are IBV_WC_SUCCESS.
cdef void qp_error(soft_qp *qp, uint32_t culprit, int sq_status, int rq_status) noexcept nogil
# Moves the queue pair to ERR because the stream has broken, with no request to blame. Makes IBV_EVENT_QP_FATAL, unless
# the queue pair is in RESET or ERR already.
cdef void qp_lost(soft_qp *qp) noexcept nogil
# Sends a Terminate (as tx_terminate), if possible, and moves the queue pair to ERR. The oldest READ under way completes
# with sq_status, the oldest receive with rq_status, unless these are IBV_WC_SUCCESS.
cdef void qp_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received, int sq_status,
                       int rq_status) noexcept nogil

# Fills in an entry of a receive queue or SRQ from a work request. The caller holds the queue's lock.
cdef void rwqe_fill(soft_rwqe *rwqe, ibv_sge *sges, const ibv_recv_wr *wr) noexcept nogil

# Entries of the provider's table (libibverbs' ibv_* functions), and post_recv. qp.pyx also defines soft_query_counters,
# soft_share_counters, soft_qp_limit, soft_qp_allow, soft_qp_terminated, soft_qp_fault and others, declared in soft.pxd.
cdef int soft_post_recv(ibv_qp *qp, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil
cdef ibv_qp *soft_create_qp(ibv_pd *pd, ibv_qp_init_attr *init) noexcept nogil
cdef int soft_destroy_qp(ibv_qp *qp) noexcept nogil
cdef int soft_modify_qp(ibv_qp *qp, ibv_qp_attr *attr, int mask) noexcept nogil
cdef int soft_query_qp(ibv_qp *qp, ibv_qp_attr *attr, int mask, ibv_qp_init_attr *init) noexcept nogil
