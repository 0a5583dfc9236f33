"""Items are fetched, read directly, or viewed in place: the commands of a Client that change no value.

Plain functions over a Session; arguments and results are as of the methods of Client. Client calls them, and _async.pyx
calls target_view and too_long. The caller holds no lock of _state.pxd: a call has its Connection to itself, and the
methods of Session and Pins take the lock.
"""

from rmemcached.client.api._connection cimport fetch_form
from rmemcached.client.api._session cimport Session

# A memoryview of memory that receives a value. BufferError: not writable, or not contiguous.
cdef object target_view(object buffer)
# The exception for a value with more bytes than the buffer.
cdef object too_long(object key, Py_ssize_t size, Py_ssize_t length)

# expire: None for commands without an expiry time. name: the command's for errors.
cdef object get_value(Session session, object key, object default, object expire, fetch_form form, bytes name)
cdef object get_with_cas(Session session, object key, object default, object cas_default, object expire, bytes name)
cdef dict get_values(Session session, object keys, bint with_cas, object expire, bytes name)
cdef object get_view(Session session, object key, object default)
cdef object get_into(Session session, object key, object buffer, object offset, object default)
cdef list get_many_into(Session session, object pairs)
cdef object prefault(Session session)
cdef object make_buffer(Session session, object size)
cdef object register_object(Session session, object memory)
