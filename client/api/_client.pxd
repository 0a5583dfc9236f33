"""The Client: its options, and its methods, which are functions over a Session."""

from rmemcached.client.api._session cimport Session


cdef class Client(Session):
    cdef dict __dict__
    cdef object __weakref__

    cdef dict _options(self)
    # The property `sock`, for a caller with the lock of _state.pxd.
    cdef object _sock(self)
