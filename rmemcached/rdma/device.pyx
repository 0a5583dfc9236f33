# A device that comes and goes: its asynchronous events, and the end of what was on it.


cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil:
    return &dev.port


cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil:
    return dev.port.context.async_fd


cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil:
    if not verbs_port_lost(&dev.port, &dev.async_events, why, size):
        return False
    counter_add(&dev.losses, 1)
    return True


cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil:
    return rc.t


cdef inline void add_array(uint64_t *total, const uint64_t *more, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        counter_add(&total[i], relaxed_load(&more[i]))


cdef void rdma_device_bequeath(rdma_device *dev, rdma_device *heir) noexcept nogil:
    pthread_mutex_lock(&heir.lock)
    add_array(<uint64_t *>&heir.retired, <const uint64_t *>&dev.retired, sizeof(rdma_counters) // sizeof(uint64_t))
    pthread_mutex_unlock(&heir.lock)
    fetch_add(&heir.async_events, relaxed_load(&dev.async_events))
    fetch_add(&heir.losses, relaxed_load(&dev.losses))
