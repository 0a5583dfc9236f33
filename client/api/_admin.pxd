"""The server is administered: statistics, its version, flush_all, and commands as text.

Plain functions over a Session; arguments and results are as of the methods of Client. Only Client calls them, without
the lock of _state.pxd: a call has its Connection to itself, and the methods of Session take the lock.
"""

from rmemcached.client.api._session cimport Session

# The bytes of a str or of bytes; subclasses will do. Raises TypeError.
cdef bytes as_bytes(object text, str encoding=*)
# Sends a line and returns the line of the answer. Raises the exception of an error line, and MemcacheClientError for an
# answer other than `wanted` (None: any answer will do). name: the command's, for exceptions.
cdef bytes command(Session session, bytes line, bytes name, bytes wanted=*)
cdef dict stats(Session session, tuple args)
cdef bytes version(Session session)
cdef bint flush_all(Session session, object delay, object noreply) except -1
cdef bytes raw_command(Session session, object given, object end_tokens)
cdef int quit(Session session) except -1
cdef int shutdown(Session session, object graceful) except -1
