# A device that comes and goes: its asynchronous events, and the end of what was on it.


cdef void set_nonblocking(int fd) noexcept nogil:
    fcntl(fd, F_SETFL, <int>(fcntl(fd, F_GETFL) | O_NONBLOCK))


cdef rdma_device *rdma_device_open(const verbs_port *port, rdma_transport transport, const rdma_limits *limits,
                                   const rdma_place *place, drive_fn drive, rdma_failed_fn failed,
                                   const char **error) noexcept nogil:
    """Takes over the port's context, also when it fails (NULL, with a constant line in *error)."""
    cdef rdma_device *dev = <rdma_device *>calloc(1, sizeof(rdma_device))
    if dev == NULL:
        error[0] = b"out of memory"
        port.provider.close_device(port.context)
        return NULL
    dev.port = port[0]
    dev.provider = port.provider
    dev.transport = transport
    if place != NULL:
        dev.place = place[0]
    set_nonblocking(port.context.async_fd)
    dev.limits = limits[0]
    dev.limits.ird = min(dev.limits.ird, <unsigned int>port.max_dest_rd_atomic)
    dev.limits.ord = min(dev.limits.ord, <unsigned int>port.max_rd_atomic)
    dev.drive = drive
    dev.failed = failed
    pthread_mutex_init(&dev.lock, NULL)
    if dev.limits.ord == 0 or port.max_qp_wr < SEND_DEPTH or port.max_cqe < SEND_DEPTH:
        error[0] = b"the RDMA device has no RDMA READ, or its queues are too short"
    else:
        dev.limits.credits = min(dev.limits.credits, <unsigned int>port.max_qp_wr,
                                 <unsigned int>port.max_cqe - SEND_DEPTH)
        dev.pd = port.provider.alloc_pd(port.context)
        error[0] = b"the RDMA device refused a protection domain"
    if dev.pd == NULL:
        rdma_device_close(dev)
        return NULL
    dev.read_sges = <unsigned int>max(1, min(port.max_sge_rd, <int>BULK_SGES))
    dev.write_sges = <unsigned int>max(1, min(port.max_sge, <int>BULK_SGES))
    return dev


cdef void rdma_device_close(rdma_device *dev) noexcept nogil:
    """Frees the device. All its threads and connections have been destroyed."""
    cdef int i
    for i in range(MAX_EXTENTS):
        if dev.extents[i] != NULL:
            dev.provider.dereg_mr(dev.extents[i])
    if dev.pd != NULL:
        dev.provider.dealloc_pd(dev.pd)
    dev.provider.close_device(dev.port.context)
    pthread_mutex_destroy(&dev.lock)
    free(dev)


cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil:
    cdef size_t index
    cdef ibv_mr *mr
    pthread_mutex_lock(&dev.lock)
    if dev.arena == NULL:
        dev.arena = <char *>addr
    index = <size_t>(<char *>addr - dev.arena) // ARENA_EXTENT
    mr = NULL
    if index < MAX_EXTENTS:
        mr = dev.provider.reg_mr(dev.pd, addr, length, IBV_ACCESS_LOCAL_WRITE)
    if mr != NULL:
        dev.extents[index] = mr
        fetch_add(&dev.extent_registrations, 1)
    pthread_mutex_unlock(&dev.lock)
    return 0 if mr != NULL else -1


cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil:
    cdef void *memory = NULL
    cdef ibv_mr *mr
    cdef int error = posix_memalign(&memory, 4096, length)
    if error:
        return error
    mr = dev.provider.reg_mr(dev.pd, memory, length, IBV_ACCESS_LOCAL_WRITE)
    if mr == NULL:
        error = errno
    else:
        dev.provider.dereg_mr(mr)
    free(memory)
    return error


cdef inline ibv_mr *extent_of(rdma_device *dev, void *addr) noexcept nogil:
    cdef size_t index = <size_t>(<char *>addr - dev.arena) // ARENA_EXTENT
    return dev.extents[index] if index < MAX_EXTENTS else NULL


cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil:
    return &dev.port


cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil:
    return dev.port.context.async_fd


cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil:
    if not verbs_port_lost(&dev.port, &dev.async_events, why, size):
        return False
    counter_add(&dev.losses, 1)
    return True


cdef inline void add_array(uint64_t *total, const uint64_t *more, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        counter_add(&total[i], relaxed_load(&more[i]))


cdef void add_counters(soft_qp_counters *total, const soft_qp_counters *more) noexcept nogil:
    cdef size_t i
    for i in range(sizeof(soft_qp_counters) // sizeof(uint64_t)):
        (<uint64_t *>total)[i] += (<const uint64_t *>more)[i]


cdef void rdma_device_bequeath(rdma_device *dev, rdma_device *heir) noexcept nogil:
    pthread_mutex_lock(&heir.lock)
    add_array(<uint64_t *>&heir.retired, <const uint64_t *>&dev.retired, sizeof(rdma_counters) // sizeof(uint64_t))
    pthread_mutex_unlock(&heir.lock)
    fetch_add(&heir.async_events, relaxed_load(&dev.async_events))
    fetch_add(&heir.losses, relaxed_load(&dev.losses))
