"""The commands of a Client for changes of items: set and its kin, delete, incr and decr, touch."""

from rmemcached.client.wire._modes cimport store_mode
from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._retrieval cimport Retrieval


cdef class Storage(Retrieval):
    cdef object _serialize(self, object key, object value, object flags, list numbers)
    cdef bint are_plain(self, list names, list values)
    # A dict in lists for sending: its keys; these encoded; its encoded values; texts of their flags, or none.
    cdef tuple prepared(self, dict values, object flags)
    # Sends the result of `prepared`. Returns the keys not stored.
    cdef list store_prepared(self, tuple values, bytes seconds, bint quiet)
    cdef object _store(self, store_mode mode, bytes name, object key, object value, object expire, object noreply,
                       object flags, bytes cas)
    cdef object read_number(self, Connection c, list errors)
    cdef object _arithmetic(self, bytes name, bytes mode, object key, object value, bint quiet)
