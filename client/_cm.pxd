"""Connecting through rdma_cm (docs/rdma-protocol.md, section 9), as far as it goes without a queue pair.

A CmRoute is made and used by one thread. Deadlines are CLOCK_MONOTONIC nanoseconds.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.verbs.system_cm cimport cm_address, cm_event, cm_event_type

cdef class CmRoute:
    cdef int fd              # rdma_cm's descriptor; -1: it belongs to a QueuePair
    cdef uint32_t id         # the identifier on it
    cdef cm_address where    # the device that leads to the address

    cdef int expect(self, cm_event_type wanted, cm_event *event, int error, int64_t deadline) except -1

# Waits for the next event of the descriptor. TimeoutError, OSError, and what signal handlers raise.
cdef int wait_cm_event(int fd, cm_event *event, int64_t deadline) except -1
# The exception for an event other than the one that was waited for.
cdef object cm_failure(const cm_event *event)
# Raises the exception for CM_REJECTED: TransportRefused when the server said why, else ConnectionRefusedError.
cdef int raise_rejected(const cm_event *event) except -1
