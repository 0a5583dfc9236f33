"""Opens and closes devices, registers item memory, counts queue pairs (see device.pxd)."""

from libc.errno cimport EIO, ERANGE
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport strerror

from rmemcached.sys.atomics cimport (
    counter_add, fetch_add, fetch_sub, load_acquire, relaxed_load, store_release, store_release_pointer,
)
from rmemcached.sys.debug cimport LIVE_RDMA_DEVICE, assert_that, live_add, live_sub
from rmemcached.sys.linux cimport (
    errno, posix_memalign, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    set_nonblocking,
)
from rmemcached.verbs.port cimport verbs_port_lost
from rmemcached.verbs.soft cimport soft_provider
from rmemcached.verbs.verbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ


cdef rdma_device *rdma_device_open(const verbs_port *port, const transport_ops *transport, const rdma_limits *limits,
                                   const shm_endpoint *endpoint, char *why, size_t size) noexcept nogil:
    cdef rdma_device *dev = <rdma_device *>calloc(1, sizeof(rdma_device))
    cdef const char *name = port.provider.get_device_name(port.context.device)
    cdef int error = 0
    if dev == NULL:
        snprintf(why, size, b"device %s: out of memory", name)
        port.provider.close_device(port.context)
        return NULL
    live_add(LIVE_RDMA_DEVICE)
    dev.port = port[0]
    dev.provider = port.provider
    dev.transport = transport[0]
    dev.soft = transport.provider == soft_provider()
    dev.remote = limits.remote and not dev.transport.near
    if endpoint != NULL:
        dev.endpoint = endpoint[0]
    set_nonblocking(port.context.async_fd)
    dev.limits = limits[0]
    dev.limits.ird = min(dev.limits.ird, <unsigned int>port.max_dest_rd_atomic)
    dev.limits.ord = min(dev.limits.ord, <unsigned int>port.max_rd_atomic)
    dev.inline_data = dev.transport.inline_data
    pthread_mutex_init(&dev.lock, NULL)
    pthread_mutex_init(&dev.counting_lock, NULL)
    if dev.transport.limit_memory != NULL:
        error = dev.transport.limit_memory(port.context, limits)
    if error:
        snprintf(why, size, b"device %s: the threads that limit clients' memory cannot be started: %s", name,
                 strerror(error))
    elif dev.limits.ord == 0 or port.max_qp_wr < SEND_DEPTH or port.max_cqe < SEND_DEPTH:
        snprintf(why, size, b"device %s has no RDMA READ, or its queues are too short", name)
    else:
        dev.limits.credits = min(dev.limits.credits, <unsigned int>port.max_qp_wr,
                                 <unsigned int>port.max_cqe - SEND_DEPTH)
        dev.pd = port.provider.alloc_pd(port.context)
        if dev.pd == NULL:
            snprintf(why, size, b"device %s refused a protection domain: %s", name, strerror(errno))
    if dev.pd == NULL:
        rdma_device_close(dev)
        return NULL
    dev.read_sges = <unsigned int>max(1, min(port.max_sge_rd, <int>BULK_SGES))
    dev.write_sges = <unsigned int>max(1, min(port.max_sge, <int>BULK_SGES))
    return dev


cdef void rdma_device_close(rdma_device *dev) noexcept nogil:
    cdef int i
    assert_that(dev.counting == NULL and dev.queue_pairs == 0)
    assert_that(dev.retired.queue_pairs == 0 and dev.retired.registrations == 0 and dev.retired.lanes == 0)
    for i in range(MAX_EXTENTS):
        if dev.extents[i] != NULL:
            dev.provider.dereg_mr(dev.extents[i])
    for i in range(<int>dev.indexed):
        dev.provider.dereg_mr(dev.index[i])
    if dev.pd != NULL:
        dev.provider.dealloc_pd(dev.pd)
    dev.provider.close_device(dev.port.context)
    pthread_mutex_destroy(&dev.lock)
    pthread_mutex_destroy(&dev.counting_lock)
    free(dev)
    live_sub(LIVE_RDMA_DEVICE)


cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil:
    return &dev.port


# ---- item memory -----------------------------------------------------------------------------------------------------

cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil:
    cdef size_t index
    cdef ibv_mr *mr = NULL
    cdef int error = ERANGE
    pthread_mutex_lock(&dev.lock)
    if dev.arena == NULL:
        store_release_pointer(&dev.arena, addr)
    index = <size_t>(<char *>addr - dev.arena) // ARENA_EXTENT
    if index < MAX_EXTENTS:
        assert_that(dev.extents[index] == NULL)
        mr = dev.provider.reg_mr(dev.pd, addr, length,
                                 IBV_ACCESS_LOCAL_WRITE | (IBV_ACCESS_REMOTE_READ if dev.remote else 0))
        error = 0 if mr != NULL else errno or EIO
    if mr != NULL:
        store_release_pointer(&dev.extents[index], mr)
        fetch_add(&dev.extent_registrations, 1)
    pthread_mutex_unlock(&dev.lock)
    return error


cdef int rdma_device_add_index(rdma_device *dev, void *addr, size_t length) noexcept nogil:
    cdef ibv_mr *mr = NULL
    cdef int error = ERANGE
    pthread_mutex_lock(&dev.lock)
    if dev.indexed < <unsigned int>MAX_INDEX:
        mr = dev.provider.reg_mr(dev.pd, addr, length, IBV_ACCESS_REMOTE_READ)
        error = 0 if mr != NULL else errno or EIO
    if mr != NULL:
        dev.index[dev.indexed] = mr
        store_release(&dev.indexed, dev.indexed + 1)
    pthread_mutex_unlock(&dev.lock)
    return error


cdef const ibv_mr *rdma_device_find_memory(rdma_device *dev, const void *addr) noexcept nogil:
    cdef const char *place = <const char *>addr
    cdef const char *arena = <const char *>load_acquire(&dev.arena)
    cdef unsigned int i
    for i in range(<unsigned int>load_acquire(&dev.indexed)):
        if <size_t>(place - <const char *>dev.index[i].addr) < dev.index[i].length:
            return dev.index[i]
    return extent_of(dev, addr) if arena != NULL and place >= arena else NULL


cdef const char *rdma_device_memory(const rdma_device *dev) noexcept nogil:
    if not dev.transport.near:
        return NULL
    if dev.limits.direct == DIRECT_NOBODY:
        return dev.limits.direct_off
    return b"own" if dev.limits.direct == DIRECT_OWN else b"all"


cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil:
    cdef void *memory = NULL
    cdef ibv_mr *mr
    cdef int error = posix_memalign(&memory, 4096, length)
    if error:
        return error
    mr = dev.provider.reg_mr(dev.pd, memory, length, IBV_ACCESS_LOCAL_WRITE)
    if mr == NULL:
        error = errno or EIO
    else:
        dev.provider.dereg_mr(mr)
    free(memory)
    return error


# ---- events and loss -------------------------------------------------------------------------------------------------

cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil:
    return dev.port.context.async_fd


cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil:
    if not verbs_port_lost(&dev.port, &dev.async_events, why, size):
        return False
    counter_add(&dev.losses, 1)
    return True


cdef void rdma_device_hand_over_counts(rdma_device *dev, rdma_device *successor) noexcept nogil:
    assert_that(dev.counting == NULL)
    pthread_mutex_lock(&successor.counting_lock)
    add_counts(&successor.retired, &dev.retired, sizeof(rdma_counters))
    pthread_mutex_unlock(&successor.counting_lock)
    fetch_add(&successor.async_events, relaxed_load(&dev.async_events))
    fetch_add(&successor.losses, relaxed_load(&dev.losses))


# ---- queue pairs -----------------------------------------------------------------------------------------------------

cdef bint rdma_device_admit(rdma_device *dev) noexcept nogil:
    if fetch_add(&dev.queue_pairs, 1) < dev.limits.max_qps:
        return True
    rdma_device_release(dev)
    return False


cdef void rdma_device_release(rdma_device *dev) noexcept nogil:
    cdef uint64_t before = fetch_sub(&dev.queue_pairs, 1)
    assert_that(before > 0)


# ---- counters --------------------------------------------------------------------------------------------------------

cdef void rdma_device_enter_counters(rdma_device *dev, counter_entry *entry) noexcept nogil:
    pthread_mutex_lock(&dev.counting_lock)
    entry.next = dev.counting
    dev.counting = entry
    pthread_mutex_unlock(&dev.counting_lock)


cdef void rdma_device_retire_counters(rdma_device *dev, counter_entry *entry) noexcept nogil:
    cdef counter_entry **link = &dev.counting
    pthread_mutex_lock(&dev.counting_lock)
    while link[0] != entry:
        link = &link[0].next
    link[0] = entry.next
    add_counts(&dev.retired, entry.counters, sizeof(rdma_counters))
    add_counts(&dev.retired_soft, entry.soft, sizeof(soft_qp_counters))
    pthread_mutex_unlock(&dev.counting_lock)
