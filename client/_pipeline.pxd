"""Several commands in one round trip, whatever they are."""

from rmemcached.client._commands cimport store_mode
from rmemcached.client._request cimport Request, request_kind
from rmemcached.client._storage cimport Storage


cdef class Pipeline:
    cdef Storage client
    cdef list requests
    cdef readonly list results

    cdef Request queue(self, request_kind kind, bytes name, object key)
    cdef int queue_get(self, request_kind kind, bytes name, object key, object default, object expire) except -1
    cdef int queue_store(self, store_mode mode, bytes name, object key, object value, object expire, object flags,
                         bytes cas) except -1
    cdef int queue_arithmetic(self, bytes name, bytes sign, object key, object value) except -1
    cdef list run(self, list requests)
    cdef object failed(self, Request r, object error)
    cdef int load(self, list requests, list results) except -1
