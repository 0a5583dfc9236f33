# Contexts, protection domains, and the attributes of the device; see device.pxd.

cdef extern from *:
    """
    #define RMC_VERBS_AHEAD offsetof(struct verbs_context, context)
    """
    const size_t VERBS_AHEAD "RMC_VERBS_AHEAD"
    const char *VERSION "RMC_VERSION"

cdef enum:
    # No vendor's number. rxe has the same.
    VENDOR_ID = 0xffffff
    VENDOR_PART_ID = 42
    BOOT_ID = 36                     # octets of the kernel's text


cdef soft_context *context_alloc() noexcept nogil:
    cdef verbs_context *verbs = <verbs_context *> calloc(1, VERBS_AHEAD + sizeof(soft_context))
    if verbs == NULL:
        errno.errno = ENOMEM
        return NULL
    # A program gets EOPNOTSUPP for a function left NULL, or the header has a substitute.
    verbs.query_port = soft_query_port_ex
    verbs.query_device_ex = soft_query_device_ex
    verbs.sz = sizeof(verbs_context)
    verbs.context.abi_compat = <void *> <uintptr_t> -1
    return <soft_context *> &verbs.context


cdef void context_free(soft_context *context) noexcept nogil:
    free(<uint8_t *> context - VERBS_AHEAD)


cdef ibv_context *soft_open_device(ibv_device *device) noexcept nogil:
    cdef const soft_fabric *fabric = fabric_of(device)
    cdef soft_context *context
    cdef int i
    if fabric == NULL:
        errno.errno = ENODEV
        return NULL
    context = context_alloc()
    if context == NULL:
        return NULL
    if not async_open(context):
        context_free(context)
        return NULL
    context.fabric = fabric
    if fabric.open_context != NULL and not fabric.open_context(context):
        async_close(context)
        context_free(context)
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
    context_free(context)
    live_sub(LIVE_CONTEXT)
    return 0


cdef uint64_t soft_device_guid(const ibv_device *device) noexcept nogil:
    # FNV-1a. The first octet's bits: a single device's number, not assigned by IEEE.
    cdef uint8_t text[BOOT_ID + 64]
    cdef uint64_t guid = 0xcbf29ce484222325ULL
    cdef size_t length = 0
    cdef size_t i
    cdef int fd = open(b"/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    if fd >= 0:
        length = <size_t> max(read(fd, text, BOOT_ID), <ssize_t> 0)
        close(fd)
    memcpy(text + length, device.name, sizeof(device.name))
    for i in range(length + sizeof(device.name)):
        guid = (guid ^ text[i]) * 0x100000001b3ULL
    (<uint8_t *> &guid)[0] = ((<uint8_t *> &guid)[0] & 0xfe) | 2
    return guid


cdef int soft_query_device(ibv_context *context, ibv_device_attr *out) noexcept nogil:
    memset(out, 0, sizeof(out[0]))
    snprintf(out.fw_ver, sizeof(out.fw_ver), b"%s", VERSION)
    out.node_guid = soft_device_guid(context.device)
    out.sys_image_guid = out.node_guid
    out.vendor_id = VENDOR_ID
    out.vendor_part_id = VENDOR_PART_ID
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


cdef int soft_query_device_ex(ibv_context *context, const ibv_query_device_ex_input *extra, ibv_device_attr_ex *out,
                              size_t size) noexcept nogil:
    """Fills a structure of `size` octets."""
    cdef ibv_device_attr_ex attr
    if extra != NULL and extra.comp_mask:
        return EINVAL
    memset(&attr, 0, sizeof(attr))
    soft_query_device(context, &attr.orig_attr)
    attr.phys_port_cnt_ex = attr.orig_attr.phys_port_cnt
    memset(out, 0, size)
    memcpy(out, &attr, min(size, sizeof(attr)))
    return 0


cdef int soft_query_port_ex(ibv_context *context, uint8_t port_num, ibv_port_attr *out, size_t size) noexcept nogil:
    cdef ibv_port_attr attr
    cdef int error = soft_query_port(context, port_num, &attr)
    if error == 0:
        memset(out, 0, size)
        memcpy(out, &attr, min(size, sizeof(attr)))
    return error


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
