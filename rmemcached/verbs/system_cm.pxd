"""The kernel's connection manager (rdma_cm): the system interface of /dev/infiniband/rdma_cm.

librdmacm is not used. It opens device contexts of its own, and our protection domains, registrations and completion
queues are not valid there. Here the kernel makes the connection, and the queue pair remains the caller's.

A `cm_fd` is a descriptor of the interface, with O_NONBLOCK, readable while there are events. Its ids are connections
and listeners; closing the descriptor ends them all and tells their peers. Functions return 0 or an errno value unless a
comment differs. Any thread may call them. In Linux: drivers/infiniband/core/ucma.c, <rdma/rdma_user_cm.h>.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rmemcached.sys.linux cimport sockaddr, sockaddr_in6
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.verbs cimport ibv_qp, ibv_qp_state

cdef enum:
    # Bytes of private data that every device takes: the limits of InfiniBand and RoCE; iWARP has larger limits.
    CM_REQUEST_DATA = 56
    CM_REPLY_DATA = 196
    CM_REJECT_DATA = 148
    CM_DATA_MAX = 256            # of any event
    CM_CONSUMER_REJECT = 28      # cm_event.status of CM_REJECTED, if the peer's program has rejected, with private data

cdef enum cm_event_type:         # the kernel's numbers (enum rdma_cm_event_type)
    CM_ADDR_RESOLVED = 0
    CM_ADDR_ERROR
    CM_ROUTE_RESOLVED
    CM_ROUTE_ERROR
    CM_CONNECT_REQUEST
    CM_CONNECT_RESPONSE
    CM_CONNECT_ERROR
    CM_UNREACHABLE
    CM_REJECTED
    CM_ESTABLISHED
    CM_DISCONNECTED
    CM_DEVICE_REMOVAL
    CM_MULTICAST_JOIN
    CM_MULTICAST_ERROR
    CM_ADDR_CHANGE
    CM_TIMEWAIT_EXIT

cdef struct cm_event:
    cm_event_type type
    uint32_t id                  # with CM_CONNECT_REQUEST the new connection's, not the listener's
    int status                   # a negative errno value; with CM_REJECTED the reason, a positive number
    unsigned int responder_resources   # READs that the peer wants to have outstanding
    unsigned int initiator_depth       # READs answered by the peer at a time
    size_t length                # bytes of private data; InfiniBand and RoCE pad them with zeros up to the limit
    char private_data[CM_DATA_MAX]

cdef struct cm_address:          # of an id: its device, and the addresses of both ends
    uint64_t node_guid           # of the device, big-endian; 0: none yet
    uint8_t port_num
    sockaddr_in6 local           # or a sockaddr_in
    sockaddr_in6 peer

cdef struct cm_param:            # the parameters of either side for a connection
    uint32_t qpn
    unsigned int responder_resources   # READs answered by this end at a time
    unsigned int initiator_depth       # outstanding READs of this end
    const void *private_data
    size_t length

# Returns the descriptor, or -1 with errno. ENOENT: the module rdma_ucm is not loaded.
cdef int cm_open() noexcept nogil
# Makes an id, for a connection or a listener.
cdef int cm_create(int cm_fd, uint32_t *id) noexcept nogil
# Ends an id with its connection or listener.
cdef int cm_destroy(int cm_fd, uint32_t id) noexcept nogil
# An address binds the id to the address's device (ENODEV: there is none). A wildcard binds the id to all devices, also
# to later devices, but to its own address family only. EADDRNOTAVAIL and EADDRINUSE both mean: the port is taken.
cdef int cm_bind(int cm_fd, uint32_t id, const sockaddr *addr) noexcept nogil
# Makes a bound id a listener: requests come as CM_CONNECT_REQUEST.
cdef int cm_listen(int cm_fd, uint32_t id, int backlog) noexcept nogil
# The next three report their results as events. timeout: in milliseconds.
cdef int cm_resolve_addr(int cm_fd, uint32_t id, const sockaddr *addr, uint32_t timeout) noexcept nogil
cdef int cm_resolve_route(int cm_fd, uint32_t id, uint32_t timeout) noexcept nogil
cdef int cm_connect(int cm_fd, uint32_t id, const cm_param *param) noexcept nogil
# Takes the oldest event. EAGAIN: there is none.
cdef int cm_get_event(int cm_fd, cm_event *out) noexcept nogil
# The present device and addresses of an id.
cdef int cm_query(int cm_fd, uint32_t id, cm_address *out) noexcept nogil
# Moves an id with its events from one descriptor to another.
cdef int cm_migrate(int to_fd, int from_fd, uint32_t id) noexcept nogil
# Brings the queue pair of a connection over `port` to INIT, RTR or RTS. value: for INIT the access rights, for RTR the
# number of READs answered at a time, for RTS the number of outstanding READs. On iWARP the call for RTS has no effect:
# the kernel brings the queue pair to RTS together with its stream.
cdef int cm_modify_qp(int cm_fd, uint32_t id, const verbs_port *port, ibv_qp *qp, ibv_qp_state state,
                      unsigned int value) noexcept nogil
# Accepts CM_CONNECT_REQUEST, on the passive side, after cm_modify_qp to RTS.
cdef int cm_accept(int cm_fd, uint32_t id, const cm_param *param) noexcept nogil
# Answers CM_CONNECT_RESPONSE, on the active side, after cm_modify_qp to RTS.
cdef int cm_confirm(int cm_fd, uint32_t id) noexcept nogil
# Rejects CM_CONNECT_REQUEST. length: CM_REJECT_DATA at most.
cdef int cm_reject(int cm_fd, uint32_t id, const void *private_data, size_t length) noexcept nogil
# Takes the events of a descriptor with one connection. Returns the cm_event_type that ended the connection
# (CM_CONNECT_ERROR also if the descriptor fails), or 0 if the connection has not ended.
cdef int cm_ended(int cm_fd) noexcept nogil
