"""Several commands of any kind in a single round trip."""

from rmemcached.client.api._request cimport Request
from rmemcached.client.api._session cimport Session


cdef class Pipeline:
    cdef Session client
    cdef list requests
    cdef readonly list results

    # Called by `execute`: sends the requests on a connection. Returns their results, with the exceptions of failed
    # requests.
    cdef list run(self, list requests)
    cdef Py_ssize_t behind_refusal(self, list results) except -1
    # The result of a failed request: the error, or, for a fetch with ignore_exc, the result of a miss.
    cdef object failed(self, Request r, object error)
    cdef int load(self, list requests, list results) except -1
