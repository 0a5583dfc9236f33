"""The RDMA devices of this process, one for each transport: opened by the first connection and kept for the next.

When a device is of no use any more (its port is down, it was removed), its connections leave it one by one, and the
last one closes it. The next connection then opens a device that is there. rdma_cm chooses a device for each connection;
the process keeps the one that it chose last.

Each server that the process talks to has a protection domain of its own on a device, which its connections share: a
server reaches what was exposed to it, and with whatever key nothing that was exposed to another. A server is the
address that the Client was given.

All functions but `device_lost` and `device_removed` are called with the GIL. It, or the lock of _state.pxd, protects
the table of devices, their domains, and the `users` of both.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint64_t

from rmemcached.rdma.wire cimport RDMA_TRANSPORTS
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.verbs cimport ibv_pd

cdef enum:                   # which device: an rdma_transport, or
    DEVICE_OF_CM = RDMA_TRANSPORTS
    DEVICES

cdef struct shared_device

cdef struct server_domain:
    shared_device *device    # constant, as are pd and server
    ibv_pd *pd
    PyObject *server         # a reference
    unsigned int users       # queue pairs and Buffers
    server_domain *next

cdef struct shared_device:
    int which                # constant, as are port, pid and alarm
    verbs_port port
    int pid                  # the process that opened it
    int alarm                # eventfd: readable once the device is lost, for all who wait
    server_domain *domains   # under the GIL, or the lock of _state.pxd
    unsigned int users       # the sum of its domains' users
    pthread_mutex_t lock     # one thread at a time takes the device's asynchronous events
    uint64_t events          # the lock protects it
    uint64_t lost            # atomic; set under the lock
    char why[256]            # written under the lock, constant once the device is lost

# The domain of a server on the device, with one user more. node_guid, port_num: of DEVICE_OF_CM. OSError: there is no
# device, or it gives no domain.
cdef server_domain *open_domain(int which, object server, uint64_t node_guid=*, uint8_t port_num=*) except NULL
# One user more of a domain that has some.
cdef void join_domain(server_domain *domain) noexcept
# One user less. No registration of that user is left.
cdef void leave_domain(server_domain *domain) noexcept
# Closes the devices that are lost and have no user. open_domain does this for the device that it is asked for. That is
# not enough for rdma_cm: it names no device that the kernel is about to remove, and the kernel waits for its closing.
cdef void close_lost_devices() noexcept
# Whether nothing can go over the device any more. Takes the events that say so. Any thread.
cdef bint device_lost(shared_device *d) noexcept nogil
# rdma_cm has announced that the device will be removed. Any thread.
cdef void device_removed(shared_device *d) noexcept nogil
