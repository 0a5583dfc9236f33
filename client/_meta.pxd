"""The meta commands of a Client, with what they alone can say: mg, ms, md, ma, mn and me.

memcached's doc/protocol.txt, "Meta Commands". A command is a Request that has its line and who reads its answer, so
that Client, Pipeline and AsyncClient have the same ones.
"""

from rmemcached.client._request cimport Request
from rmemcached.client._storage cimport Storage

# With the client's checks of arguments; options: what the methods of Meta take behind key and value.
cdef Request meta_get_request(Storage client, object key, dict options)
cdef Request meta_set_request(Storage client, object key, object value, dict options)
cdef Request meta_delete_request(Storage client, object key, dict options)
cdef Request meta_arithmetic_request(Storage client, object key, object delta, dict options)
cdef Request meta_debug_request(Storage client, object key)
cdef Request meta_noop_request(Storage client)
cdef Request exists_request(Storage client, object key)
cdef Request remaining_request(Storage client, bytes name, object key, object default)


cdef class Meta(Storage):
    # Its result; what serde and ignore_exc say is done.
    cdef object call(self, Request r)
    cdef object exchange_meta(self, Request r)
