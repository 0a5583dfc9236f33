"""See _cm.pxd."""

import socket

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, ECONNREFUSED, ENODEV, ETIMEDOUT, errno
from libc.string cimport memchr, memcpy, memset

from rmemcached.client.transport._devices cimport close_lost_devices
from rmemcached.client.transport._errors cimport os_error
from rmemcached.client.transport._timeouts cimport START_WAIT, milliseconds, poll_timeout, start_deadline
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport POLLIN, close, htobe16, poll, pollfd, sockaddr, sockaddr_in, sockaddr_in6
from rmemcached.verbs.system_cm cimport (
    CM_ADDR_RESOLVED,
    CM_CONSUMER_REJECT,
    CM_ROUTE_RESOLVED,
    cm_create,
    cm_get_event,
    cm_open,
    cm_query,
    cm_resolve_addr,
    cm_resolve_route,
)

from rmemcached.client.exceptions import TransportRefused


cdef int wait_cm_event(int fd, cm_event *event, int64_t deadline) except -1:
    cdef pollfd waiting
    cdef int64_t now
    cdef int error
    while True:
        error = cm_get_event(fd, event)
        if error == 0:
            return 0
        if error != EAGAIN:
            raise os_error("rdma_cm", error)
        now = now_ns()
        if now >= deadline:
            raise TimeoutError("timed out")
        waiting.fd = fd
        waiting.events = POLLIN
        with nogil:
            poll(&waiting, 1, poll_timeout(deadline, now))
        PyErr_CheckSignals()


cdef object cm_failure(const cm_event *event):
    cdef int error = -event.status
    if error == ETIMEDOUT:
        return TimeoutError("timed out")
    if error <= 0:
        return OSError(f"rdma_cm: the connection failed (event {<int>event.type}, status {event.status})")
    return os_error("rdma_cm", error)


cdef int raise_rejected(const cm_event *event) except -1:
    # A server's reason is a line. A reject of the connection manager itself has no private data.
    cdef const char *data = &event.private_data[0]
    cdef const char *end = <const char *>memchr(data, 0, event.length)
    cdef bytes line = data[:end - data if end != NULL else event.length]
    if line and (event.status == CM_CONSUMER_REJECT or event.status < 0):
        raise TransportRefused(f"the server answered {line.decode('ascii', 'replace')}")
    raise ConnectionRefusedError(ECONNREFUSED, f"rdma_cm: nobody listens there (reason {event.status})")


cdef class CmRoute:
    """A way to an address through rdma_cm, and its device.

    family, address: as of socket.getaddrinfo. timeout: seconds or None. OSError: there is no such way; ENODEV: no RDMA
    device leads there. TimeoutError.
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(self, family, address, timeout):
        cdef int64_t deadline = start_deadline(timeout)
        cdef uint32_t patience = milliseconds(timeout, START_WAIT)
        cdef sockaddr_in6 target
        cdef sockaddr_in *four = <sockaddr_in *>&target
        cdef cm_event event
        cdef bytes packed = socket.inet_pton(family, address[0].partition("%")[0])
        cdef int error
        close_lost_devices()
        memset(&target, 0, sizeof(target))
        (<sockaddr *>&target).sa_family = family
        target.sin6_port = htobe16(address[1])
        if family == socket.AF_INET:
            memcpy(&four.sin_addr, PyBytes_AS_STRING(packed), 4)
        else:
            memcpy(&target.sin6_addr, PyBytes_AS_STRING(packed), 16)
            target.sin6_scope_id = address[3]
        self.fd = cm_open()
        if self.fd < 0:
            raise os_error("/dev/infiniband/rdma_cm", errno)
        error = cm_create(self.fd, &self.id)
        if error == 0:
            error = cm_resolve_addr(self.fd, self.id, <const sockaddr *>&target, patience)
        self.expect(CM_ADDR_RESOLVED, &event, error, deadline)
        error = cm_resolve_route(self.fd, self.id, patience)
        self.expect(CM_ROUTE_RESOLVED, &event, error, deadline)
        error = cm_query(self.fd, self.id, &self.where)
        if error or self.where.node_guid == 0:
            raise OSError(ENODEV, "rdma_cm: no RDMA device leads there")

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    cdef int expect(self, cm_event_type wanted, cm_event *event, int error, int64_t deadline) except -1:
        if error == 0:
            wait_cm_event(self.fd, event, deadline)
            if event.type == wanted:
                return 0
            if event.status != -ENODEV:
                raise cm_failure(event)
            error = ENODEV
        if error == ENODEV:
            raise OSError(ENODEV, "rdma_cm: no RDMA device leads there")
        raise os_error("rdma_cm", error)
