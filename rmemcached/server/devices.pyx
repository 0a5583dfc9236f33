"""RDMA devices of the daemon (see devices.pxd).

The software devices are always there. The system's device can fail, lose its port, or be removed while connections use
it. The thread waits for the device's asynchronous events. When the device has become unusable, the thread asks every
worker to end its connections, waits for all workers, and only then frees the shared objects: registrations, protection
domain and context. Without a device the thread looks for one every second. So a cable plugged in again, a driver loaded
late, or a renamed device needs no restart.

A connection through rdma_cm gets a descriptor of its own, and a worker gets both.
"""

from libc.errno cimport ENOMEM, ENOSPC
from libc.stdint cimport int64_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.string cimport memcpy, memset, strerror

from rmemcached.sys.atomics cimport fetch_sub
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport assert_owner, assert_that, thread_id
from rmemcached.sys.linux cimport (
    AF_INET, EFD_CLOEXEC, POLLERR, POLLHUP, POLLIN, POLLNVAL, RLIMIT_MEMLOCK, RLIM_INFINITY, close, errno, eventfd,
    eventfd_signal, getrlimit, poll, pollfd, pthread_cond_destroy, pthread_cond_init, pthread_cond_wait, pthread_join,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, rlimit, sockaddr, sockaddr_in,
    sockaddr_in6, start_thread,
)
from rmemcached.protocol.stats_text cimport stat_append
from rmemcached.rdma.cm cimport rdma_cm_refuse, rdma_request
from rmemcached.rdma.device cimport (
    rdma_device_add_extent, rdma_device_add_index, rdma_device_async_fd, rdma_device_close,
    rdma_device_hand_over_counts, rdma_device_lost, rdma_device_open, rdma_device_port, rdma_device_try_memory,
)
from rmemcached.rdma.stats cimport rdma_stats
from rmemcached.rdma.transport cimport SYSTEM_TRANSPORT, transport_of
from rmemcached.server.worker cimport device_change, worker_change_device, worker_dispatch_cm
from rmemcached.store.store cimport ARENA_EXTENT, store_pin_memory
from rmemcached.verbs.port cimport verbs_open_port, verbs_port
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.system_cm cimport (
    CM_CONNECT_REQUEST, CM_DEVICE_REMOVAL, CM_REQUEST_DATA, cm_bind, cm_create, cm_destroy, cm_event, cm_get_event,
    cm_listen, cm_migrate, cm_open, cm_query,
)
from rmemcached.verbs.verbs cimport ibv_device, verbs_provider

cdef enum:
    LOOK_NS = 1000000000         # between two checks of an open device, or between two searches for one
    PAUSE_MAX = 64               # looks between two attempts to open an unusable device, at most
    WHY_SIZE = 256
    CM_EVENTS_PER_TURN = 64


cdef void devices_init(rdma_devices *d) noexcept nogil:
    memset(d, 0, sizeof(rdma_devices))
    d.stop_fd = d.cm_fd = -1
    pthread_mutex_init(&d.lock, NULL)
    pthread_mutex_init(&d.open_lock, NULL)


cdef void no_registration(rdma_device *dev, size_t length, int error, char *why, size_t size) noexcept nogil:
    """Writes to why: `length` bytes of item memory could not be registered. The limit on locked memory is the usual
    reason."""
    cdef const verbs_port *port = rdma_device_port(dev)
    cdef rlimit limit
    if (dev.transport.pins and error == ENOMEM and getrlimit(RLIMIT_MEMLOCK, &limit) == 0
            and limit.rlim_cur != RLIM_INFINITY):
        snprintf(why, size, b"%zu MB of item memory could not be locked for the device: ulimit -l is %lu KB; it must"
                 b" have room for -m and the connections (systemd: LimitMEMLOCK=infinity)", length >> 20,
                 limit.rlim_cur // 1024)
    else:
        snprintf(why, size, b"%zu MB of item memory could not be registered for device %s: %s", length >> 20,
                 port.provider.get_device_name(port.context.device), strerror(error))


cdef bint register_index(rdma_devices *d, rdma_device *dev, char *why, size_t size) noexcept nogil:
    """Registers the parts of the index missing in the device."""
    cdef unsigned int i, parts
    cdef char *addr
    cdef int error
    pthread_mutex_lock(&d.lock)
    addr = d.index_low
    parts = d.nindex if dev.remote else 0
    pthread_mutex_unlock(&d.lock)
    # The lock is not needed any more: a part does not change.
    for i in range(parts):
        error = rdma_device_add_index(dev, addr, d.index_parts[i]) if i >= dev.indexed else 0
        if error:
            no_registration(dev, d.index_parts[i], error, why, size)
            return False
        addr += d.index_parts[i]
    return True


cdef bint register_arena(rdma_devices *d, rdma_device *dev, rdma_transport transport, char *why,
                         size_t size) noexcept nogil:
    """Registers the present item memory, and makes the device known: from then on added memory is registered, too."""
    cdef size_t done = 0
    cdef size_t length
    cdef char *low
    cdef bint whole
    cdef int error
    assert_owner(d.owner)
    while True:
        if not register_index(d, dev, why, size):
            return False
        # Registration takes long, and a worker in need of memory must not wait meanwhile: so registration goes on
        # without the lock.
        pthread_mutex_lock(&d.lock)
        low = d.arena_low
        length = min(d.arena_used - done, <size_t>ARENA_EXTENT)
        whole = length == 0 and (not dev.remote or dev.indexed == d.nindex)
        if whole:
            pthread_mutex_lock(&d.open_lock)
            d.open[transport] = dev
            pthread_mutex_unlock(&d.open_lock)
        pthread_mutex_unlock(&d.lock)
        if whole:
            return True
        error = rdma_device_add_extent(dev, low + done, length) if length else 0
        if error:
            no_registration(dev, length, error, why, size)
            return False
        done += length


cdef bint try_extent(rdma_device *dev, char *why, size_t size) noexcept nogil:
    """Whether item memory can be registered at all. A daemon without items would otherwise find out with its first
    item.
    """
    cdef rlimit limit
    cdef int error
    if getrlimit(RLIMIT_MEMLOCK, &limit) != 0 or limit.rlim_cur >= <unsigned long>ARENA_EXTENT:
        return True
    # A privileged process may lock more than the limit: try a little more.
    error = rdma_device_try_memory(dev, limit.rlim_cur + 4096)
    if error:
        no_registration(dev, ARENA_EXTENT, error, why, size)
    return error == 0


cdef bint devices_open(rdma_devices *d, const verbs_provider *provider, const port_spec *spec, rdma_transport transport,
                       const shm_endpoint *endpoint, char *why, size_t size) noexcept nogil:
    cdef verbs_port port
    cdef rdma_device *dev
    if verbs_open_port(provider, spec, &port, why, size) != 0:
        return False
    dev = rdma_device_open(&port, transport_of(transport), &d.limits, endpoint, why, size)
    if dev == NULL:
        return False
    if dev.transport.pins:
        # Registration pins the present pages, and the device would not see later pages in their place. So the store
        # must keep the pages.
        store_pin_memory(d.store)
    if dev.transport.pins and d.arena_used == 0 and not try_extent(dev, why, size):
        rdma_device_close(dev)
        return False
    if not register_arena(d, dev, transport, why, size):
        rdma_device_close(dev)
        return False
    return True


cdef void devices_describe(rdma_devices *d, rdma_transport transport) noexcept nogil:
    cdef const verbs_port *port = rdma_device_port(d.open[transport])
    cdef int i
    fprintf(stderr, b"RDMA: device %s, port %d, GID %d ", port.provider.get_device_name(port.context.device),
            <int>port.port_num, port.gid_index)
    for i in range(16):
        fprintf(stderr, b"%02x", <unsigned int>port.gid.raw[i])
    fprintf(stderr, b"\n")


cdef void change_workers(rdma_devices *d, rdma_transport transport, rdma_device *dev, const char *line) noexcept nogil:
    """Lets every worker take dev or, if dev is NULL, give up its device of this transport. Returns when all have done
    so. line: the error for the clients of the given-up device."""
    cdef device_change change
    cdef unsigned int i
    assert_owner(d.owner)
    pthread_mutex_init(&change.lock, NULL)
    pthread_cond_init(&change.done, NULL)
    change.transport = transport
    change.device = dev
    change.line = line
    change.pending = d.nworkers
    for i in range(d.nworkers):
        worker_change_device(&d.workers[i], &change)
    pthread_mutex_lock(&change.lock)
    while change.pending:
        pthread_cond_wait(&change.done, &change.lock)
    pthread_mutex_unlock(&change.lock)
    pthread_cond_destroy(&change.done)
    pthread_mutex_destroy(&change.lock)


cdef void close_failed(rdma_devices *d, rdma_transport transport, const char *why) noexcept nogil:
    """Ends the connections on a device and closes the device. The first device that stays open gets the counts of
    the closed device."""
    cdef rdma_device *dev = d.open[transport]
    cdef unsigned int successor = 0
    cdef char line[WHY_SIZE + 32]
    assert_owner(d.owner)
    fprintf(stderr, b"RDMA: %s; its connections end\n", why)
    snprintf(line, sizeof(line), b"SERVER_ERROR rdma: %s\r\n", why)
    pthread_mutex_lock(&d.lock)
    d.failing[transport] = True
    pthread_mutex_unlock(&d.lock)
    change_workers(d, transport, NULL, line)
    pthread_mutex_lock(&d.lock)
    pthread_mutex_lock(&d.open_lock)
    while successor == transport or d.open[successor] == NULL:
        successor += 1
        # The system's device is never the only one.
        assert_that(successor < RDMA_DEVICES)
    rdma_device_hand_over_counts(dev, d.open[successor])
    d.open[transport] = NULL
    pthread_mutex_unlock(&d.open_lock)
    d.failing[transport] = False
    d.missing_error = 0
    pthread_mutex_unlock(&d.lock)
    rdma_device_close(dev)


cdef bint open_again(rdma_devices *d) noexcept nogil:
    """Opens the system's device, if there is a device. False: the device is unusable."""
    cdef const char *absent = NULL
    cdef const verbs_provider *system = system_provider(&absent)
    cdef char why[WHY_SIZE]
    cdef int devices = 0
    cdef ibv_device **list
    assert_owner(d.owner)
    if not devices_open(d, system, &d.spec, SYSTEM_TRANSPORT, NULL, why, sizeof(why)):
        list = system.get_device_list(&devices)
        system.free_device_list(list)
        return devices == 0
    change_workers(d, SYSTEM_TRANSPORT, d.open[SYSTEM_TRANSPORT], NULL)
    devices_describe(d, SYSTEM_TRANSPORT)
    return True


# ---- rdma_cm ---------------------------------------------------------------------------------------------------------

cdef int start_listening(rdma_devices *d, cm_listener *one) noexcept nogil:
    """Listens on the address of a listener. 0 or an errno value."""
    cdef int error = cm_create(d.cm_fd, &one.id)
    assert_owner(d.owner)
    if error:
        return error
    error = cm_bind(d.cm_fd, one.id, <const sockaddr *>&one.addr)
    if error == 0:
        error = cm_listen(d.cm_fd, one.id, d.backlog)
    if error:
        cm_destroy(d.cm_fd, one.id)
    one.listening = error == 0
    return error


cdef int devices_listen(rdma_devices *d, const sockaddr *addr, int backlog, bint *opened) noexcept nogil:
    cdef cm_listener *one = &d.listeners[d.nlisteners]
    cdef int error
    if d.cm_fd < 0:
        d.cm_fd = cm_open()
    opened[0] = d.cm_fd >= 0
    if d.cm_fd < 0 or d.nlisteners == CM_ADDRESSES:
        return errno if d.cm_fd < 0 else ENOSPC
    d.backlog = backlog
    memset(one, 0, sizeof(cm_listener))
    memcpy(&one.addr, addr, sizeof(sockaddr_in) if addr.sa_family == AF_INET else sizeof(sockaddr_in6))
    error = start_listening(d, one)
    if error == 0:
        d.nlisteners += 1
    return error


cdef void take_request(rdma_devices *d, const cm_event *event) noexcept nogil:
    """Gives the connection a descriptor of its own and a worker."""
    cdef rdma_request request
    cdef worker *w = d.admit(d.admit_arg)
    cdef int fd
    assert_owner(d.owner)
    if w == NULL:
        rdma_cm_refuse(d.cm_fd, event.id, b"ERROR Too many open connections")
        cm_destroy(d.cm_fd, event.id)
        return
    request.id = event.id
    request.responder_resources = event.responder_resources
    request.initiator_depth = event.initiator_depth
    memcpy(request.private_data, event.private_data, CM_REQUEST_DATA)
    fd = cm_open()
    if fd >= 0 and cm_query(d.cm_fd, event.id, &request.where) == 0 and cm_migrate(fd, d.cm_fd, event.id) == 0:
        if worker_dispatch_cm(w, fd, &request):
            return
    else:
        rdma_cm_refuse(d.cm_fd, event.id, b"SERVER_ERROR rdma: out of resources")
        cm_destroy(d.cm_fd, event.id)
    if fd >= 0:
        close(fd)
    fetch_sub(w.curr_connections, 1)


cdef void take_cm_events(rdma_devices *d) noexcept nogil:
    """Takes requests of rdma_cm, and notes the listeners of a removed device."""
    cdef cm_event event
    cdef cm_listener *one
    cdef unsigned int i
    cdef int turns = CM_EVENTS_PER_TURN
    assert_owner(d.owner)
    while turns and cm_get_event(d.cm_fd, &event) == 0:
        turns -= 1
        if event.type == CM_CONNECT_REQUEST:
            take_request(d, &event)
        elif event.type == CM_DEVICE_REMOVAL:
            for i in range(d.nlisteners):
                one = &d.listeners[i]
                if one.listening and one.id == event.id:
                    cm_destroy(d.cm_fd, one.id)
                    one.listening = False


cdef void listen_again(rdma_devices *d) noexcept nogil:
    cdef unsigned int i
    assert_owner(d.owner)
    for i in range(d.nlisteners):
        if not d.listeners[i].listening:
            start_listening(d, &d.listeners[i])


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef bint take_failure(rdma_devices *d, rdma_device *dev, short events, char *why, size_t size) noexcept nogil:
    """Takes the reports about the system's device. True: the device has become unusable, and `why` says why. events:
    from poll, for its descriptor."""
    cdef size_t length
    cdef int error
    pthread_mutex_lock(&d.lock)
    error, length = d.missing_error, d.missing
    d.missing_error = 0
    pthread_mutex_unlock(&d.lock)
    if error:
        no_registration(dev, length, error, why, size)
        return True
    snprintf(why, size, b"its driver has gone")
    return rdma_device_lost(dev, why, size) or events & (POLLERR | POLLHUP | POLLNVAL)


cdef void *devices_main(void *arg) noexcept nogil:
    """The main function of the thread mc-rdma."""
    cdef rdma_devices *d = <rdma_devices *>arg
    cdef rdma_device *dev
    cdef pollfd waiting[3]
    cdef char why[WHY_SIZE]
    cdef unsigned int pause = 1      # looks between two attempts to open a device
    cdef unsigned int left = 1       # looks until the next attempt
    cdef int64_t due = now_ns() + LOOK_NS
    d.owner = thread_id()
    while True:
        dev = d.open[SYSTEM_TRANSPORT]
        waiting[0].fd = d.stop_fd
        waiting[0].events = POLLIN
        waiting[1].fd = rdma_device_async_fd(dev) if dev != NULL else -1
        waiting[1].events = POLLIN
        waiting[2].fd = d.cm_fd
        waiting[2].events = POLLIN
        waiting[0].revents = waiting[1].revents = waiting[2].revents = 0
        poll(waiting, 3, <int>((max(due - now_ns(), 0) + 999999) // 1000000))
        if waiting[0].revents:
            d.owner = 0
            return NULL
        if waiting[2].revents:
            take_cm_events(d)
        if waiting[1].revents == 0 and now_ns() < due:
            continue
        due = now_ns() + LOOK_NS
        listen_again(d)
        if dev != NULL:
            if take_failure(d, dev, waiting[1].revents, why, sizeof(why)):
                close_failed(d, SYSTEM_TRANSPORT, why)
                pause = left = 1
            continue
        left -= 1
        if left == 0:
            pause = 1 if open_again(d) else min(pause * 2, <unsigned int>PAUSE_MAX)
            left = pause


cdef int devices_start(rdma_devices *d, worker *workers, unsigned int nworkers) noexcept nogil:
    cdef int error
    d.workers = workers
    d.nworkers = nworkers
    d.stop_fd = eventfd(0, EFD_CLOEXEC)
    if d.stop_fd < 0:
        return errno
    error = start_thread(&d.id, b"mc-rdma", devices_main, d)
    d.running = error == 0
    return error


cdef void devices_stop(rdma_devices *d) noexcept nogil:
    if d.running:
        eventfd_signal(d.stop_fd)
        pthread_join(d.id, NULL)
        d.running = False
    if d.stop_fd >= 0:
        close(d.stop_fd)
        d.stop_fd = -1
    if d.cm_fd >= 0:
        close(d.cm_fd)
        d.cm_fd = -1


cdef void devices_close(rdma_devices *d) noexcept nogil:
    cdef unsigned int i
    for i in range(<unsigned int>RDMA_DEVICES):
        if d.open[i] != NULL:
            rdma_device_close(d.open[i])
            d.open[i] = NULL
    pthread_mutex_destroy(&d.lock)
    pthread_mutex_destroy(&d.open_lock)


cdef void devices_extent_added(rdma_devices *d, void *addr, size_t length) noexcept nogil:
    """Registers new item memory before any item lies there. If the system's device fails, the thread closes the device;
    until then connections in need of this memory end."""
    cdef unsigned int i
    cdef int error
    pthread_mutex_lock(&d.lock)
    if d.arena_low == NULL:
        d.arena_low = <char *>addr
    d.arena_used += length
    for i in range(<unsigned int>RDMA_DEVICES):
        if d.open[i] == NULL or d.failing[i]:
            continue
        error = rdma_device_add_extent(d.open[i], addr, length)
        if error and i == <unsigned int>SYSTEM_TRANSPORT:
            d.missing_error, d.missing = error, length
        elif error:
            fprintf(stderr, b"rmemcached: item memory could not be registered for RDMA: %s\n", strerror(error))
    pthread_mutex_unlock(&d.lock)


cdef void devices_index_added(rdma_devices *d, void *addr, size_t length) noexcept nogil:
    """Registers a new part of the index. Clients do not READ an unregistered part: they ask the daemon."""
    cdef unsigned int i
    cdef int error
    pthread_mutex_lock(&d.lock)
    if d.index_low == NULL:
        d.index_low = <char *>addr
    if d.nindex < <unsigned int>MAX_INDEX:
        d.index_parts[d.nindex] = length
        d.nindex += 1
    for i in range(<unsigned int>RDMA_DEVICES):
        if d.open[i] == NULL or not d.open[i].remote or d.failing[i]:
            continue
        error = rdma_device_add_index(d.open[i], addr, length)
        if error:
            fprintf(stderr, b"rmemcached: a part of the index could not be registered for RDMA: %s\n", strerror(error))
    pthread_mutex_unlock(&d.lock)


cdef void devices_stats(rdma_devices *d, stat_buf *out) noexcept nogil:
    pthread_mutex_lock(&d.open_lock)
    rdma_stats(d.open, out)
    pthread_mutex_unlock(&d.open_lock)
    stat_append(out, b"rdma_cm_port", d.cm_port)
