"""The retrieval commands of a Client: get, gets, gat, gats, and several at once."""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._session cimport Session


cdef enum fetch_form:
    FETCH_VALUE
    FETCH_VALUE_AND_CAS
    FETCH_VIEW

# A memoryview of memory that receives a value. BufferError: not writable, or not contiguous.
cdef object target_view(object buffer)
# The exception for a value with more bytes than the buffer.
cdef object too_long(object key, Py_ssize_t size, Py_ssize_t length)
# In place of the value of a key without an item.
cdef object MISS


cdef class Retrieval(Session):
    cdef object _load(self, object key, object value, uint32_t flags)
    cdef object _read_fetch(self, Connection c, object key, fetch_form form, uint32_t *flags, list errors)
    cdef bytes _look(self, object key, uint32_t *flags, uint64_t *cas)
    cdef int _look_all(self, list given, list results) except -1
    cdef Py_ssize_t _look_into(self, bytes key, char *to, Py_ssize_t length) except -2
    cdef object _view_again(self, object key, uint32_t *flags)
    cdef object _view(self, object key, uint32_t *flags)
    cdef object _fetch(self, object key, fetch_form form, bytes expire, bytes name, uint32_t *flags)
    cdef object _get(self, object key, object default, object expire, fetch_form form, bytes name)
    cdef object _gets(self, object key, object default, object cas_default, object expire, bytes name)
    cdef dict _get_many(self, object keys, bint with_cas, object expire, bytes name)
    cdef dict _look_many(self, list names, list encoded, bint with_cas, bytes name)
    cdef dict _fetch_many(self, list names, list encoded, bint with_cas, bytes expire, bytes name)
    cdef Py_ssize_t _fetch_into(self, bytes key, char *to, Py_ssize_t length) except -2
    cdef Py_ssize_t _read_into(self, Connection c, bytes key, char *to, Py_ssize_t length,
                               list errors) except -2
    cdef object _fetch_small(self, list given, list which, list results)
