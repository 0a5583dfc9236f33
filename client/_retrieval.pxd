"""The retrieval commands of a Client: get, gets, gat, gats, and several at once."""

from libc.stdint cimport uint32_t

from rmemcached.client._connection cimport Connection
from rmemcached.client._session cimport Session


# In place of the value of a key that has no item.
cdef object MISS


cdef class Retrieval(Session):
    cdef object _load(self, object key, bytes value, uint32_t flags)
    cdef object _read_fetch(self, Connection c, bint with_cas, uint32_t *flags, list errors)
    cdef object _fetch(self, bytes key, bint with_cas, bytes expire, bytes name, uint32_t *flags)
    cdef object _get(self, object key, object default, object expire, bytes name)
    cdef object _gets(self, object key, object default, object cas_default, object expire, bytes name)
    cdef dict _get_many(self, object keys, bint with_cas, bytes name)
    cdef dict _fetch_many(self, list names, list encoded, bint with_cas, bytes name)
