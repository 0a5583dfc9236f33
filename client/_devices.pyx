# The devices of this process, one of each transport, of rdma_cm the one that it chose last: opened by the first
# connection and kept for the next. A device that is of no use any more (its port is down, it was removed) is left by
# its connections one by one and closed by the last; the connection after that opens what is there then.

cdef enum:
    SOFT_IW = 0
    SOFT_SHM = 1
    VERBS = 2
    CM = 3
    DEVICES = 4

cdef struct device:
    int which
    verbs_port port
    ibv_pd *domain
    pthread_mutex_t lock             # held while events are taken
    int pid                          # the process that opened it
    unsigned int users               # streams; under the GIL
    int alarm                        # eventfd, readable once it is lost: for all who wait
    uint64_t events                  # atomic
    uint64_t lost                    # atomic
    char why[256]                    # constant once it is lost

cdef device *devices[DEVICES]        # under the GIL


cdef void raise_alarm(device *d) noexcept nogil:
    """The device is lost. d.lock is held."""
    cdef uint64_t one = 1
    store_release(&d.lost, 1)
    # An eventfd that has been written to stays readable.
    while write(d.alarm, &one, sizeof(one)) < 0:
        pass


cdef bint device_lost(device *d) noexcept nogil:
    """Whether nothing can go over the device any more. Takes the events that say so; any thread."""
    cdef bint lost
    if load_acquire(&d.lost):
        return True
    pthread_mutex_lock(&d.lock)
    lost = d.lost or verbs_port_lost(&d.port, &d.events, d.why, sizeof(d.why))
    if lost and not d.lost:
        raise_alarm(d)
    pthread_mutex_unlock(&d.lock)
    return lost


cdef void device_removed(device *d) noexcept nogil:
    """rdma_cm has said so; it does before the device goes."""
    pthread_mutex_lock(&d.lock)
    if not d.lost:
        snprintf(d.why, sizeof(d.why), b"device %s was removed", d.port.provider.get_device_name(d.port.context.device))
        raise_alarm(d)
    pthread_mutex_unlock(&d.lock)


cdef void leave_idle_devices() noexcept:
    """A lost device that no stream uses would not be looked at again if no stream came. Those of rdma_cm do not come
    once the kernel knows that the device is to go."""
    cdef device *d
    cdef int which
    for which in range(VERBS, <int>DEVICES):
        d = devices[which]
        if d != NULL and d.pid == getpid() and d.users == 0 and device_lost(d):
            devices[which] = NULL
            close_device(d)


cdef void close_device(device *d) noexcept:
    """Its streams are gone, or there was none."""
    if d.domain != NULL:
        d.port.provider.dealloc_pd(d.domain)
    d.port.provider.close_device(d.port.context)
    if d.alarm >= 0:
        close_fd(d.alarm)
    pthread_mutex_destroy(&d.lock)
    free(d)


cdef void leave_device(device *d) noexcept:
    """One stream less."""
    d.users -= 1
    if devices[d.which] == d and device_lost(d):
        devices[d.which] = NULL
    if devices[d.which] != d and d.users == 0:
        close_device(d)


cdef device *open_device(int which, uint64_t node_guid=0, uint8_t port_num=0) except NULL:
    """The device, with one user more. node_guid, port_num: of CM."""
    cdef device *d = devices[which]
    cdef const verbs_provider *provider
    cdef const char *absent = NULL
    cdef port_spec spec
    cdef verbs_port port
    cdef char why[256]
    cdef int error
    # After a fork the parent's device is of no use: its locks and its connections are the parent's.
    if d != NULL and d.pid == os.getpid():
        if (which != CM or (d.port.node_guid == node_guid and d.port.port_num == port_num)) and not device_lost(d):
            d.users += 1
            return d
        if d.users == 0:
            close_device(d)
    devices[which] = NULL
    memset(&spec, 0, sizeof(spec))
    spec.gid_index = GID_ANY
    if which == SOFT_IW or which == SOFT_SHM:
        provider = soft_provider()
        spec.device = b"soft_iw0" if which == SOFT_IW else b"soft_shm0"
    else:
        provider = system_provider(&absent)
        if provider == NULL:
            raise OSError(ENODEV, absent.decode())
        name = os.environ.get("RMEMCACHED_RDMA_DEVICE")
        if name == "none":
            raise OSError(ENODEV, "RMEMCACHED_RDMA_DEVICE says none")
        name = os.fsencode(name) if name else None
        spec.device = <const char *>name if name is not None else NULL
        spec.iwarp = which == CM
        spec.node_guid = node_guid
        spec.port = port_num
    if verbs_open_port(provider, &spec, &port, why, sizeof(why)) != 0:
        raise OSError(ENODEV, (<bytes>why).decode())
    d = <device *>calloc(1, sizeof(device))
    if d == NULL:
        provider.close_device(port.context)
        raise MemoryError
    pthread_mutex_init(&d.lock, NULL)
    d.which = which
    d.port = port
    d.pid = os.getpid()
    d.alarm = eventfd(0, EFD_CLOEXEC)
    d.domain = provider.alloc_pd(port.context) if d.alarm >= 0 else NULL
    if d.domain == NULL or set_nonblocking(port.context.async_fd) < 0:
        error = errno
        close_device(d)
        raise OSError(error, strerror(error).decode())
    d.users = 1
    devices[which] = d
    return d
