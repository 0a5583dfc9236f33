"""The Client: its options, and its methods. Most methods call a function of another module (_retrieval.pxd,
_storage.pxd, ...) with the Client, which is a Session."""

from rmemcached.client.api._session cimport Session


cdef class Client(Session):
    cdef dict __dict__
    cdef object __weakref__

    # The arguments for a client with the same options: for copies and pickles.
    cdef dict _options(self)
    # The property `sock`, for a caller with the lock of _state.pxd.
    cdef object _sock(self)
