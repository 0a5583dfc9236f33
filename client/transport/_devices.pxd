"""The RDMA devices of this process, one for each transport: opened by the first connection and kept for the next.

When a device is lost (its port is down, or it was removed), its connections leave the device one by one, and the last
connection closes it. The next connection then opens a present device. rdma_cm chooses a device for each connection; the
process keeps the last device chosen.

Each server of the process has a protection domain of its own on a device, and its connections share the domain. So a
server reaches the memory exposed to it, and with no key the memory exposed to another server. A server is the address
given to the Client.

All functions but `device_lost` and `device_removed` are called with the GIL. The GIL, or the lock of _state.pxd,
protects the table of devices, their domains, and the `users` of both.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint64_t

from rmemcached.rdma.wire cimport RDMA_TRANSPORTS
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.verbs cimport ibv_pd

cdef enum:
    DEVICES = RDMA_TRANSPORTS + 1    # a place for each transport of the exchange, and for rdma_cm

cdef struct shared_device

cdef struct server_domain:
    shared_device *device    # constant, as are pd and server
    ibv_pd *pd
    PyObject *server         # a reference
    unsigned int users       # queue pairs, Buffers and Loans
    server_domain *next

cdef struct shared_device:
    int which                # its index in the table of devices; constant, as are port, pid and alarm
    verbs_port port
    int pid                  # the process that opened the device
    int alarm                # an eventfd, readable from the device's loss on: wakes all who wait
    server_domain *domains   # under the GIL, or the lock of _state.pxd
    unsigned int users       # the sum of its domains' users
    pthread_mutex_t lock     # held by the thread that takes the device's asynchronous events
    uint64_t events          # how many asynchronous events were taken; under the lock
    uint64_t lost            # atomic; set under the lock
    char why[256]            # written under the lock, constant once the device is lost

# The domain of a server on the device of a row of transports.py, with another user: an Endpoint. Opens the device and
# makes the domain, if need be. node_guid, port_num: rdma_cm's choice; 0: any. Raises OSError if there is no device or
# the device gives no domain; MemoryError.
cdef server_domain *open_domain(object row, object server, uint64_t node_guid=*, uint8_t port_num=*) except NULL
# Counts another user (a Buffer or a Loan) of a domain that has users.
cdef void join_domain(server_domain *domain) noexcept
# Takes a user off the count, after the user has freed its registrations. The last user's call frees the domain, and
# closes the device if the device is lost and has no other user.
cdef void leave_domain(server_domain *domain) noexcept
# Closes all lost devices without users, before a CmRoute looks for a device. open_domain closes only the lost device of
# its row. But rdma_cm names no device that the kernel is removing, and the kernel waits until the device is closed.
cdef void close_lost_devices() noexcept
# Whether the device is lost: nothing can go over it any more. Takes the device's asynchronous events. Any thread may
# call.
cdef bint device_lost(shared_device *d) noexcept nogil
# Marks the device as lost, when rdma_cm has announced its removal to an Endpoint. Any thread may call.
cdef void device_removed(shared_device *d) noexcept nogil
