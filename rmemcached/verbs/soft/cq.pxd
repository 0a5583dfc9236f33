"""Completion queues. soft.pxd declares soft_cq_pending."""

cdef enum:                           # soft_cq.armed
    ARMED_NOT
    ARMED_SOLICITED
    ARMED_ANY

cdef struct soft_cq:
    ibv_cq ibv
    soft_domain *domain              # the channel's, or &own
    soft_domain own
    pthread_mutex_t lock             # guards the next six; not taken by a thread that is alone in the domain
    ibv_wc *ring
    uint32_t size                    # power of two; ibv.cqe has the same value
    uint32_t head
    uint32_t count                   # read unlocked
    int armed
    bint overrun                     # a completion was lost for want of room; read unlocked
    uint32_t users                   # send and receive queues
    uint32_t polls                   # since a poll last made progress; a hint, atomic
    soft_cq *next_event              # guarded by domain.events, as the next three
    uint32_t events_pending          # made and not yet delivered
    uint32_t events_delivered
    uint32_t events_acked
    soft_async async_events

# Stores a completion, and makes an event if the queue is armed for the completion. False: there is no room. The
# completion is lost then, the queue unusable, and IBV_EVENT_CQ_ERR reports this. The caller may hold soft_qp.lock.
cdef bint cq_add(soft_cq *cq, const ibv_wc *wc, bint solicited) noexcept nogil

# Drops the completions of a queue pair that is destroyed or reset.
cdef void cq_purge(soft_cq *cq, uint32_t qp_num) noexcept nogil

# The next three are for poll_cq, also a fabric's own.
# Whether this poll has to make progress before it takes completions. Counts the poll.
cdef bint cq_wants_progress(soft_cq *cq, int num_entries) noexcept nogil
# Whether cq_take would return 0. Needs no lock.
cdef bint cq_is_empty(const soft_cq *cq) noexcept nogil
# Takes completions, and returns their number. -EOVERFLOW: there are none, and some were lost for want of room.
cdef int cq_take(soft_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

# poll_cq for fabrics without a poll_cq of their own; and req_notify_cq for all.
cdef int soft_poll_cq(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil
cdef int soft_req_notify_cq(ibv_cq *cq, int solicited_only) noexcept nogil

# Entries of the provider's table: libibverbs' ibv_* functions.
cdef ibv_cq *soft_create_cq(ibv_context *context, int cqe, void *cq_context, ibv_comp_channel *channel,
                            int comp_vector) noexcept nogil
cdef int soft_destroy_cq(ibv_cq *cq) noexcept nogil
cdef int soft_resize_cq(ibv_cq *cq, int cqe) noexcept nogil
cdef int soft_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **cq_context) noexcept nogil
cdef void soft_ack_cq_events(ibv_cq *cq, unsigned int nevents) noexcept nogil
