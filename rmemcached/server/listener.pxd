"""Accepting connections within the limit of -c, and choosing their workers."""

from libc.stdint cimport uint64_t

from rmemcached.server.layout cimport listener, server
from rmemcached.server.worker cimport worker

cdef enum:
    ACCEPT_RETRY_MS = 10         # while nothing is accepted: how often to look whether it can go on

cdef uint64_t places_taken(const server *s) noexcept nogil
cdef void accept_all(server *s, const listener *l) noexcept nogil
cdef void resume_listening(server *s) noexcept nogil
cdef worker *admit_cm(void *arg) noexcept nogil
