"""Items are changed: set and its kin, delete, incr and decr, touch.

Plain functions over a Session; arguments and results are as of the methods of Client. Client calls them, and
_fan_out.pyx calls prepared and store_prepared. The caller holds no lock of _state.pxd: a call has its Connection to
itself, and the methods of Session take the lock.
"""

from rmemcached.client.api._session cimport Session
from rmemcached.client.wire._modes cimport store_mode

cdef object store(Session session, store_mode mode, bytes name, object key, object value, object expire,
                  object noreply, object flags, bytes cas)
cdef list store_many(Session session, object values, object expire, object noreply, object flags)
# The items of a dict for sending, as lists: keys, encoded keys, encoded values, and the texts of flags, or none.
cdef tuple prepared(Session session, dict values, object flags)
# Sends the result of `prepared`. Returns the keys not stored.
cdef list store_prepared(Session session, tuple values, bytes seconds, bint quiet)
cdef bint delete(Session session, object key, object noreply) except -1
cdef bint delete_many(Session session, object keys, object noreply) except -1
# mode: the flags of `ma`, up to the delta.
cdef object arithmetic(Session session, bytes name, bytes mode, object key, object value, bint quiet)
cdef bint touch(Session session, object key, object expire, object noreply) except -1
