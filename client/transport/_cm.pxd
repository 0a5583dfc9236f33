"""Connecting through rdma_cm (docs/rdma-protocol.md, section 9), up to the steps with a queue pair.

exchange.open_rdma_cm makes a CmRoute, whose descriptor the Endpoint takes over; a single thread does both. Deadlines
are CLOCK_MONOTONIC nanoseconds.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.verbs.system_cm cimport cm_address, cm_event, cm_event_type

cdef class CmRoute:
    cdef int fd              # rdma_cm's descriptor; -1: given to a QueuePair
    cdef uint32_t id         # the connection's identifier on the descriptor
    cdef cm_address where    # the device with a way to the address

    # Waits for the event `wanted` after a command to rdma_cm. error: the command's result, 0 or an errno value. Raises
    # OSError for this error or another event, TimeoutError.
    cdef int expect(self, cm_event_type wanted, cm_event *event, int error, int64_t deadline) except -1

# Waits for the descriptor's next event. Raises TimeoutError, OSError, and exceptions of signal handlers.
cdef int wait_cm_event(int fd, cm_event *event, int64_t deadline) except -1
# Returns the exception for an event that the caller did not expect.
cdef object cm_failure(const cm_event *event)
# Raises the exception for CM_REJECTED: TransportRefused with the server's reason, else ConnectionRefusedError.
cdef int raise_rejected(const cm_event *event) except -1
