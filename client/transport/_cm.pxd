"""Connecting through rdma_cm (docs/rdma-protocol.md, section 9), up to the steps with a queue pair.

A single thread makes and uses a CmRoute. Deadlines are CLOCK_MONOTONIC nanoseconds.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.verbs.system_cm cimport cm_address, cm_event, cm_event_type

cdef class CmRoute:
    cdef int fd              # rdma_cm's descriptor; -1: given to a QueuePair
    cdef uint32_t id         # the connection's identifier on the descriptor
    cdef cm_address where    # the device with a way to the address

    # Waits for the event that a command must bring. error: the command's result, an errno value. OSError, TimeoutError.
    cdef int expect(self, cm_event_type wanted, cm_event *event, int error, int64_t deadline) except -1

# Waits for the next event of the descriptor. TimeoutError, OSError, and errors of signal handlers.
cdef int wait_cm_event(int fd, cm_event *event, int64_t deadline) except -1
# The exception for an unexpected event.
cdef object cm_failure(const cm_event *event)
# Raises the exception for CM_REJECTED: TransportRefused with the server's reason, else ConnectionRefusedError.
cdef int raise_rejected(const cm_event *event) except -1
