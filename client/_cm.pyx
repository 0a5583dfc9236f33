# Connecting through rdma_cm (docs/rdma-protocol.md, section 9).

cdef enum:
    HELLO_LENGTH = 12                # "rdma", version, credits, msgsize
    WELCOME_LENGTH = 16              # "RDMA", version, credits, msgsize, eager


class TransportRefused(MemcacheServerError):
    """The server has said why it does not want a connection."""


cdef uint64_t start_deadline(timeout):
    return now_ns() + <uint64_t>(1000000 * (START_WAIT if timeout is None else int(timeout * 1000)))


cdef int wait_cm_event(int fd, cm_event *event, uint64_t deadline) except -1:
    cdef pollfd waiting
    cdef uint64_t now
    cdef int error
    while True:
        error = cm_get_event(fd, event)
        if error == 0:
            return 0
        if error != EAGAIN:
            raise OSError(error, f"rdma_cm: {strerror(error).decode()}")
        now = now_ns()
        if now >= deadline:
            raise TimeoutError("timed out")
        waiting.fd = fd
        waiting.events = POLLIN
        with nogil:
            poll(&waiting, 1, <int>min((deadline - now + 999999) // 1000000, <uint64_t>0x7FFFFFFF))
        PyErr_CheckSignals()


cdef object cm_failure(const cm_event *event):
    cdef int error = -event.status
    if error == ETIMEDOUT:
        return TimeoutError("timed out")
    if error <= 0:
        return OSError(f"rdma_cm: the connection failed (event {<int>event.type}, status {event.status})")
    return OSError(error, f"rdma_cm: {strerror(error).decode()}")


cdef int raise_rejected(const cm_event *event) except -1:
    # A program's reason is a line; the connection manager's own have no private data.
    cdef const char *data = &event.private_data[0]
    cdef const char *end = <const char *>memchr(data, 0, event.length)
    cdef bytes line = data[:end - data if end != NULL else event.length]
    if line and (event.status == CM_CONSUMER_REJECT or event.status < 0):
        raise TransportRefused(f"the server answered {line.decode('ascii', 'replace')}")
    raise ConnectionRefusedError(ECONNREFUSED, f"rdma_cm: nobody listens there (reason {event.status})")


cdef void put_hello(char *out) noexcept:
    cdef uint16_t version = htobe16(1)
    cdef uint16_t credits = htobe16(CREDITS)
    cdef uint32_t msgsize = htobe32(MESSAGE_SIZE)
    memcpy(out, b"rdma", 4)
    memcpy(out + 4, &version, 2)
    memcpy(out + 6, &credits, 2)
    memcpy(out + 8, &msgsize, 4)


cdef class CmRoute:
    """A way to an address through rdma_cm, with the device that leads there.

    family, address: as of socket.getaddrinfo. timeout: seconds or None. OSError: there is no such way; ENODEV: no RDMA
    device leads there.
    """

    cdef int fd                      # -1: it belongs to a RdmaStream
    cdef uint32_t id
    cdef cm_address where

    def __cinit__(self):
        self.fd = -1

    def __init__(self, family, address, timeout):
        cdef uint64_t deadline = start_deadline(timeout)
        cdef uint32_t patience = START_WAIT if timeout is None else max(1, min(int(timeout * 1000), 2**31 - 1))
        cdef sockaddr_in6 target
        cdef sockaddr_in *four = <sockaddr_in *>&target
        cdef cm_event event
        cdef bytes packed = socket.inet_pton(family, address[0].partition("%")[0])
        cdef int error
        leave_idle_devices()
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
            raise OSError(errno, f"/dev/infiniband/rdma_cm: {strerror(errno).decode()}")
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
            close_fd(self.fd)

    cdef int expect(self, cm_event_type wanted, cm_event *event, int error, uint64_t deadline) except -1:
        if error == 0:
            wait_cm_event(self.fd, event, deadline)
            if event.type == wanted:
                return 0
            error = -event.status
        if error == ENODEV:
            raise OSError(ENODEV, "rdma_cm: no RDMA device leads there")
        if error > 0 and error != ETIMEDOUT:
            raise OSError(error, f"rdma_cm: {strerror(error).decode()}")
        raise cm_failure(event)
