"""See _devices.pxd."""

import os

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport ENODEV, errno
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport getpid

from rmemcached.client.transport._errors cimport os_error
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.rdma.wire cimport RDMA_TRANSPORTS, transport_name
from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.sys.debug cimport assert_held, assert_that
from rmemcached.sys.linux cimport (
    EFD_CLOEXEC,
    close,
    eventfd,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    set_nonblocking,
    snprintf,
    write,
)
from rmemcached.verbs.port cimport GID_ANY, port_spec, verbs_open_port, verbs_port_lost
from rmemcached.verbs.soft cimport soft_provider
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport verbs_provider

cdef shared_device *devices[DEVICES]
cdef dict places = {transport_name(which).decode(): which for which in range(RDMA_TRANSPORTS)}


cdef void raise_alarm(shared_device *d) noexcept nogil:
    """Marks the device as lost, for all its users."""
    cdef uint64_t one = 1
    assert_held(&d.lock)
    store_release(&d.lost, 1)
    # An eventfd stays readable after a write.
    while write(d.alarm, &one, sizeof(one)) < 0:
        pass


cdef bint device_lost(shared_device *d) noexcept nogil:
    cdef bint lost
    if load_acquire(&d.lost):
        return True
    pthread_mutex_lock(&d.lock)
    lost = d.lost or verbs_port_lost(&d.port, &d.events, d.why, sizeof(d.why))
    if lost and not d.lost:
        raise_alarm(d)
    pthread_mutex_unlock(&d.lock)
    return lost


cdef void device_removed(shared_device *d) noexcept nogil:
    pthread_mutex_lock(&d.lock)
    if not d.lost:
        snprintf(d.why, sizeof(d.why), b"device %s was removed", d.port.provider.get_device_name(d.port.context.device))
        raise_alarm(d)
    pthread_mutex_unlock(&d.lock)


cdef void close_device(shared_device *d) noexcept:
    assert_that(d.users == 0 and d.domains == NULL)
    d.port.provider.close_device(d.port.context)
    if d.alarm >= 0:
        close(d.alarm)
    pthread_mutex_destroy(&d.lock)
    free(d)


cdef void close_lost_devices() noexcept:
    cdef shared_device *d
    cdef int which
    lock_state(&shared_state)
    for which in range(<int>DEVICES):
        d = devices[which]
        if d != NULL and d.pid == getpid() and d.users == 0 and device_lost(d):
            devices[which] = NULL
            close_device(d)
    unlock_state(&shared_state)


cdef void join_domain(server_domain *domain) noexcept:
    lock_state(&shared_state)
    assert_that(domain.users > 0)
    domain.users += 1
    domain.device.users += 1
    unlock_state(&shared_state)


cdef void leave_domain(server_domain *domain) noexcept:
    cdef shared_device *d = domain.device
    cdef server_domain **link = &d.domains
    lock_state(&shared_state)
    assert_that(domain.users > 0)
    domain.users -= 1
    if domain.users == 0:
        while link[0] != domain:
            link = &link[0].next
        link[0] = domain.next
        d.port.provider.dealloc_pd(domain.pd)
        Py_DECREF(<object>domain.server)
        free(domain)
    leave_device(d)
    unlock_state(&shared_state)


cdef void leave_device(shared_device *d) noexcept:
    """Takes a user off the count. Closes a lost device after its last user."""
    assert_that(d.users > 0)
    d.users -= 1
    if devices[d.which] == d and device_lost(d):
        devices[d.which] = NULL
    if devices[d.which] != d and d.users == 0:
        close_device(d)


cdef int open_port(object row, uint64_t node_guid, uint8_t port_num, verbs_port *port) except -1:
    """Opens the device of a row and chooses its port and GID. Raises OSError."""
    cdef const verbs_provider *provider
    cdef const char *absent = NULL
    cdef port_spec spec
    cdef char why[256]
    memset(&spec, 0, sizeof(spec))
    spec.gid_index = GID_ANY
    name = row.device
    if row.soft:
        provider = soft_provider()
    else:
        provider = system_provider(&absent)
        if provider == NULL:
            raise OSError(ENODEV, absent.decode())
        name = os.environ.get("RMEMCACHED_RDMA_DEVICE")
        if name == "none":
            raise OSError(ENODEV, "RMEMCACHED_RDMA_DEVICE says none")
        name = os.fsencode(name) if name else None
        spec.iwarp = node_guid != 0
        spec.node_guid = node_guid
        spec.port = port_num
    spec.device = <const char *>name if name is not None else NULL
    if verbs_open_port(provider, &spec, port, why, sizeof(why)) != 0:
        raise OSError(ENODEV, (<bytes>why).decode())
    return 0


cdef bint serves(shared_device *d, uint64_t node_guid, uint8_t port_num) noexcept:
    """Whether the device can be used, and is rdma_cm's choice."""
    if node_guid != 0 and (d.port.node_guid != node_guid or d.port.port_num != port_num):
        return False
    return not device_lost(d)


cdef shared_device *open_device(object row, uint64_t node_guid, uint8_t port_num) except NULL:
    """The open device of a row, with another user. Opens a device, if need be. Raises OSError, MemoryError."""
    cdef int which = <int>RDMA_TRANSPORTS if row.by_cm else <int>places[row.name]
    cdef shared_device *d = devices[which]
    cdef verbs_port port
    cdef int error
    # The parent's device is of no use after a fork: its locks and its connections are the parent's.
    if d != NULL and d.pid == getpid():
        if serves(d, node_guid, port_num):
            d.users += 1
            return d
        if d.users == 0:
            close_device(d)
    devices[which] = NULL
    open_port(row, node_guid, port_num, &port)
    d = <shared_device *>calloc(1, sizeof(shared_device))
    if d == NULL:
        port.provider.close_device(port.context)
        raise MemoryError
    pthread_mutex_init(&d.lock, NULL)
    d.which = which
    d.port = port
    d.pid = getpid()
    d.alarm = eventfd(0, EFD_CLOEXEC)
    if d.alarm < 0 or set_nonblocking(port.context.async_fd) < 0:
        error = errno
        close_device(d)
        raise os_error("device", error)
    d.users = 1
    devices[which] = d
    return d


cdef server_domain *add_domain(shared_device *d, object server) except NULL:
    """A domain without a user."""
    cdef server_domain *domain = <server_domain *>calloc(1, sizeof(server_domain))
    if domain == NULL:
        raise MemoryError
    domain.device = d
    domain.pd = d.port.provider.alloc_pd(d.port.context)
    if domain.pd == NULL:
        free(domain)
        raise os_error("protection domain", errno)
    Py_INCREF(server)
    domain.server = <PyObject *>server
    domain.next = d.domains
    d.domains = domain
    return domain


cdef server_domain *open_domain(object row, object server, uint64_t node_guid=0, uint8_t port_num=0) except NULL:
    lock_state(&shared_state)
    try:
        return domain_of(row, server, node_guid, port_num)
    finally:
        unlock_state(&shared_state)


cdef server_domain *domain_of(object row, object server, uint64_t node_guid, uint8_t port_num) except NULL:
    cdef shared_device *d = open_device(row, node_guid, port_num)
    cdef server_domain *domain = d.domains
    try:
        while domain != NULL and <object>domain.server != server:
            domain = domain.next
        if domain == NULL:
            domain = add_domain(d, server)
    except BaseException:
        leave_device(d)
        raise
    domain.users += 1
    return domain
