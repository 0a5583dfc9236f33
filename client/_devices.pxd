"""The RDMA devices of this process, one for each transport: opened by the first connection and kept for the next.

A device that is of no use any more (its port is down, it was removed) is left by its connections one by one and closed
by the last; the connection after that opens what is there then. rdma_cm chooses a device for each connection: the one
that it chose last is kept.

All functions but `device_lost` and `device_removed` are called with the GIL, which protects the table of devices and
their `users`.
"""

from libc.stdint cimport uint8_t, uint64_t

from rmemcached.rdma.wire cimport RDMA_TRANSPORTS
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.verbs cimport ibv_pd

cdef enum:                   # which device: an rdma_transport, or
    DEVICE_OF_CM = RDMA_TRANSPORTS
    DEVICES

cdef struct shared_device:
    int which                # constant, as are port, domain, pid and alarm
    verbs_port port
    ibv_pd *domain
    int pid                  # the process that opened it
    int alarm                # eventfd: readable once the device is lost, for all who wait
    unsigned int users       # queue pairs; the GIL protects it
    pthread_mutex_t lock     # one thread at a time takes the device's asynchronous events
    uint64_t events          # the lock protects it
    uint64_t lost            # atomic; set under the lock
    char why[256]            # written under the lock, constant once the device is lost

# The device, with one user more. node_guid, port_num: of DEVICE_OF_CM. OSError: there is none.
cdef shared_device *open_device(int which, uint64_t node_guid=*, uint8_t port_num=*) except NULL
# One user less.
cdef void leave_device(shared_device *d) noexcept
# Closes the devices that are lost and have no user. open_device does so with the device that it is asked for, but
# rdma_cm leads nobody to a device that the kernel is about to remove, and the kernel waits until it is closed.
cdef void close_lost_devices() noexcept
# Whether nothing can go over the device any more. Takes the events that say so. Any thread.
cdef bint device_lost(shared_device *d) noexcept nogil
# rdma_cm has announced that the device will be removed. Any thread.
cdef void device_removed(shared_device *d) noexcept nogil
