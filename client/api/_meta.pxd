"""The meta commands of a Client, with options of their own: mg, ms, md, ma, mn and me.

memcached's doc/protocol.txt, "Meta Commands". A command is a Request with its line and the function to read its answer,
so Client, Pipeline and AsyncClient have the same commands.
"""

from rmemcached.client.api._request cimport Request
from rmemcached.client.api._session cimport Session

# These functions check the arguments as the Client's methods do, and return the command's Request. options: the
# arguments of Client's methods behind key and value.
cdef Request meta_get_request(Session session, object key, dict options)
cdef Request meta_set_request(Session session, object key, object value, dict options)
cdef Request meta_delete_request(Session session, object key, dict options)
cdef Request meta_arithmetic_request(Session session, object key, object delta, dict options)
cdef Request meta_debug_request(Session session, object key)
cdef Request meta_noop_request(Session session)
cdef Request exists_request(Session session, object key)
cdef Request remaining_request(Session session, bytes name, object key, object default)

# Carries out a request of Client's. Returns its result, after the serde. With ignore_exc a failed meta_get returns
# None.
cdef object call(Session session, Request r)
