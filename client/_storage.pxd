"""The commands of a Client that change items: set and its kin, delete, incr and decr, touch."""

from rmemcached.client._modes cimport store_mode
from rmemcached.client._connection cimport Connection
from rmemcached.client._retrieval cimport Retrieval


cdef class Storage(Retrieval):
    cdef object _serialize(self, object key, object value, object flags, list numbers)
    cdef bint are_plain(self, list names, list values)
    # What is sent for a dict, in lists: its keys; these as sent; its values as sent; texts of their flags, or none.
    cdef tuple prepared(self, dict values, object flags)
    # Sends what `prepared` has returned. The keys that were not stored.
    cdef list store_prepared(self, tuple values, bytes seconds, bint quiet)
    cdef object _store(self, store_mode mode, bytes name, object key, object value, object expire, object noreply,
                       object flags, bytes cas)
    cdef object read_number(self, Connection c, list errors)
    cdef object _arithmetic(self, bytes name, bytes mode, object key, object value, bint quiet)
