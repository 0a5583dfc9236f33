# A worker's part of a device.


cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker) noexcept nogil:
    cdef rdma_thread *t = <rdma_thread *>calloc(1, sizeof(rdma_thread))
    if t == NULL:
        return NULL
    t.dev = dev
    t.worker = worker
    t.channel = dev.provider.create_comp_channel(dev.port.context)
    if t.channel == NULL:
        free(t)
        return NULL
    set_nonblocking(t.channel.fd)
    pthread_mutex_lock(&dev.lock)
    t.next = dev.threads
    dev.threads = t
    pthread_mutex_unlock(&dev.lock)
    return t


cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil:
    """Frees the thread's part. Its connections have been destroyed."""
    cdef rdma_thread **link
    pthread_mutex_lock(&t.dev.lock)
    link = &t.dev.threads
    while link[0] != t:
        link = &link[0].next
    link[0] = t.next
    add_array(<uint64_t *>&t.dev.retired, <const uint64_t *>&t.counters, sizeof(rdma_counters) // sizeof(uint64_t))
    pthread_mutex_unlock(&t.dev.lock)
    t.dev.provider.destroy_comp_channel(t.channel)
    free(t)


cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil:
    return t.channel.fd


cdef bint rdma_thread_poll(rdma_thread *t, bint readable) noexcept nogil:
    return (t.dev.transport == TRANSPORT_SOFT_SHM and t.counters.queue_pairs != 0
            and soft_channel_poll(t.channel, readable))


cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil:
    return t.dev.transport == TRANSPORT_SOFT_SHM and t.counters.queue_pairs != 0 and soft_channel_arm(t.channel)


cdef void rc_yield(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.t
    if not rc.yielding:
        rc.yielding = True
        rc.yield_prev = NULL
        rc.yield_next = t.yielded
        if t.yielded != NULL:
            t.yielded.yield_prev = rc
        t.yielded = rc


cdef void rc_unyield(rdma_conn *rc) noexcept nogil:
    if rc.yielding:
        rc.yielding = False
        if rc.yield_prev != NULL:
            rc.yield_prev.yield_next = rc.yield_next
        else:
            rc.t.yielded = rc.yield_next
        if rc.yield_next != NULL:
            rc.yield_next.yield_prev = rc.yield_prev
