"""The device: contexts, protection domains, and the answers to a program's queries."""

# In front of the structure, in the same piece of memory, lies the part of libibverbs' verbs_context before its context.
cdef struct soft_context:
    ibv_context ibv                  # async_fd is an eventfd, readable while asynchronous events are pending
    const soft_fabric *fabric
    void *fabric_state               # the fabric's own data, or NULL
    pthread_mutex_t async_lock       # guards the next four
    pthread_cond_t async_acked
    soft_async *first_async          # objects with pending events, oldest first
    soft_async *last_async
    bint async_signalled             # async_fd is readable
    mr_shard shards[MR_SHARDS]
    pthread_mutex_t lock             # guards the next two. While it is held no queue pair of the list is freed
    soft_qp *qps
    uint32_t next_qp_num
    uint32_t users                   # PDs, CQs and channels
    pthread_mutex_t thread_lock      # guards the list of domains, and the thread's descriptors
    soft_domain *domains             # of all channels, and of completion queues without a channel
    pthread_t thread                 # the progress thread, while thread_epoll is not -1
    int thread_epoll
    int thread_stop                  # eventfd
    bint thread_stopping             # atomic
    uint32_t thread_spin             # microseconds; set before the thread starts

cdef struct soft_pd:
    ibv_pd ibv
    uint32_t users                   # MRs, SRQs and QPs

# Entries of the provider's table: libibverbs' ibv_* functions.
cdef ibv_context *soft_open_device(ibv_device *device) noexcept nogil
cdef int soft_close_device(ibv_context *context) noexcept nogil
cdef int soft_query_device(ibv_context *context, ibv_device_attr *out) noexcept nogil
cdef int soft_query_port(ibv_context *context, uint8_t port_num, ibv_port_attr *out) noexcept nogil
cdef int soft_query_gid(ibv_context *context, uint8_t port_num, int index, ibv_gid *out) noexcept nogil
cdef int soft_query_pkey(ibv_context *context, uint8_t port_num, int index, uint16_t *out) noexcept nogil
cdef ibv_pd *soft_alloc_pd(ibv_context *context) noexcept nogil
cdef int soft_dealloc_pd(ibv_pd *pd) noexcept nogil
