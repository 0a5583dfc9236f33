"""Shared receive queues."""

cdef struct soft_rwqe:               # a receive
    uint64_t wr_id
    uint64_t length
    uint32_t num_sge

cdef struct soft_srq:
    ibv_srq ibv
    pthread_mutex_t lock             # guards all fields below but `users` and async_events
    soft_rwqe *ring                  # of mask + 1
    ibv_sge *sges                    # max_sge for each
    uint32_t mask
    uint32_t head
    uint32_t tail
    uint32_t max_wr
    uint32_t max_sge
    uint32_t limit                   # an event is made when fewer receives are left; 0: not armed
    uint32_t users                   # queue pairs
    bint newest_first
    soft_async async_events

# Moves the next receive into the only entry of the queue pair's own queue, for a message beginning to arrive
# (rdmap_rx.pyx, shm/message.pyx). False: the SRQ is empty, or the queue pair may not take more. soft_qp.lock is held.
cdef bint srq_take(soft_qp *qp) noexcept nogil

# Entries of the provider's table (libibverbs' ibv_* functions), and post_srq_recv. srq.pyx also defines
# soft_srq_newest_first, declared in soft.pxd.
cdef ibv_srq *soft_create_srq(ibv_pd *pd, ibv_srq_init_attr *init) noexcept nogil
cdef int soft_destroy_srq(ibv_srq *srq) noexcept nogil
cdef int soft_modify_srq(ibv_srq *srq, ibv_srq_attr *attr, int mask) noexcept nogil
cdef int soft_query_srq(ibv_srq *srq, ibv_srq_attr *attr) noexcept nogil
cdef int soft_post_srq_recv(ibv_srq *srq, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil
