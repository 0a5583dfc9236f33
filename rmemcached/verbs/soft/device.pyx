# Contexts, protection domains, and the attributes of the device; see device.pxd.


cdef ibv_context *soft_open_device(ibv_device *device) noexcept nogil:
    cdef const soft_fabric *fabric = fabric_of(device)
    cdef soft_context *context
    cdef int i
    if fabric == NULL:
        errno.errno = ENODEV
        return NULL
    context = <soft_context *> calloc(1, sizeof(soft_context))
    if context == NULL:
        errno.errno = ENOMEM
        return NULL
    if not async_open(context):
        free(context)
        return NULL
    context.fabric = fabric
    if fabric.open_context != NULL and not fabric.open_context(context):
        async_close(context)
        free(context)
        return NULL
    if getrandom(&context.next_qp_num, sizeof(context.next_qp_num), 0) < 0:
        context.next_qp_num = 0
    pthread_mutex_init(&context.lock, NULL)
    thread_open(context)
    for i in range(MR_SHARDS):
        pthread_rwlock_init(&context.shards[i].lock, NULL)
    context.ibv.device = device
    context.ibv.cmd_fd = -1
    context.ibv.num_comp_vectors = 1
    context.ibv.ops.alloc_mw = soft_alloc_mw
    context.ibv.ops.bind_mw = soft_bind_mw
    context.ibv.ops.dealloc_mw = soft_dealloc_mw
    context.ibv.ops.poll_cq = fabric.poll_cq
    context.ibv.ops.req_notify_cq = soft_req_notify_cq
    context.ibv.ops.post_send = fabric.post_send
    context.ibv.ops.post_recv = soft_post_recv
    context.ibv.ops.post_srq_recv = soft_post_srq_recv
    live_add(LIVE_CONTEXT)
    return &context.ibv


cdef int soft_close_device(ibv_context *ibcontext) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    cdef int i
    if load_acquire(&context.users):
        return EBUSY
    soft_stop_progress(ibcontext)
    pthread_mutex_destroy(&context.thread_lock)
    for i in range(MR_SHARDS):
        pthread_rwlock_destroy(&context.shards[i].lock)
        free(context.shards[i].buckets)
    if context.fabric.close_context != NULL:
        context.fabric.close_context(context)
    async_close(context)
    pthread_mutex_destroy(&context.lock)
    free(context)
    live_sub(LIVE_CONTEXT)
    return 0


cdef int soft_query_device(ibv_context *context, ibv_device_attr *out) noexcept nogil:
    memset(out, 0, sizeof(out[0]))
    out.max_mr_size = <uint64_t> -1
    out.page_size_cap = PAGE_SIZE
    out.max_qp = 0xfffffd
    out.max_qp_wr = MAX_QP_WR
    out.max_sge = MAX_SGE
    out.max_sge_rd = MAX_SGE
    out.max_cq = 1 << 20
    out.max_cqe = MAX_CQE
    out.max_mr = 1 << 30
    out.max_mw = 1 << 23
    out.max_pd = 1 << 30
    out.max_qp_rd_atom = MAX_READS
    out.max_qp_init_rd_atom = MAX_READS
    out.max_res_rd_atom = <int> (0x7fffffff)
    out.atomic_cap = IBV_ATOMIC_NONE
    out.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SRQ_RESIZE
    out.device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B
    out.max_srq = 1 << 20
    out.max_srq_wr = MAX_SRQ_WR
    out.max_srq_sge = MAX_SGE
    out.max_pkeys = 1
    out.phys_port_cnt = 1
    return 0


cdef int soft_query_port(ibv_context *context, uint8_t port_num, ibv_port_attr *out) noexcept nogil:
    if port_num != 1:
        return EINVAL
    memset(out, 0, sizeof(out[0]))
    out.state = IBV_PORT_ACTIVE
    out.max_mtu = IBV_MTU_4096
    out.active_mtu = IBV_MTU_4096
    out.gid_tbl_len = 1
    out.pkey_tbl_len = 1
    out.max_msg_sz = MAX_MESSAGE
    out.max_vl_num = 1
    out.active_width = 1
    out.active_speed = 1
    out.phys_state = 5
    out.link_layer = IBV_LINK_LAYER_ETHERNET
    return 0


cdef int soft_query_gid(ibv_context *context, uint8_t port_num, int index, ibv_gid *out) noexcept nogil:
    """The one GID is the IPv4-mapped loopback address. The device has no address of its own; its streams do."""
    if port_num != 1 or index != 0:
        errno.errno = EINVAL
        return -1
    memset(out, 0, sizeof(out[0]))
    out.raw[10] = 0xff
    out.raw[11] = 0xff
    out.raw[12] = 127
    out.raw[15] = 1
    return 0


cdef int soft_query_pkey(ibv_context *context, uint8_t port_num, int index, uint16_t *out) noexcept nogil:
    if port_num != 1 or index != 0:
        errno.errno = EINVAL
        return -1
    out[0] = 0xffff
    return 0


cdef ibv_pd *soft_alloc_pd(ibv_context *context) noexcept nogil:
    cdef soft_pd *pd = <soft_pd *> calloc(1, sizeof(soft_pd))
    if pd == NULL:
        errno.errno = ENOMEM
        return NULL
    pd.ibv.context = context
    fetch_add(&(<soft_context *> context).users, 1)
    live_add(LIVE_PD)
    return &pd.ibv


cdef int soft_dealloc_pd(ibv_pd *ibpd) noexcept nogil:
    cdef soft_pd *pd = <soft_pd *> ibpd
    if load_acquire(&pd.users):
        return EBUSY
    fetch_sub(&(<soft_context *> ibpd.context).users, 1)
    free(pd)
    live_sub(LIVE_PD)
    return 0
