"""The Client: its options, and the commands of administration."""

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._meta cimport Meta


cdef class Client(Meta):
    cdef dict __dict__
    cdef object __weakref__

    cdef dict _options(self)
    cdef object _sock(self)
    cdef bytes _command(self, bytes command, bytes name, bytes wanted=*)
    cdef dict _stats(self, list words)
    cdef bytes _read_until(self, Connection c, bytes token)
