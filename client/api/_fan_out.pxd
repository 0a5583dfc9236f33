"""A call for keys of several servers: all servers are asked before the caller waits for any.

The call is divided into batches, one for each server. Values found by direct reads are not asked for. A failed server
costs the rest nothing: its batch has an exception in place of a result. Several servers that do not answer to a fetch
or a delete take less time than two timeouts.
"""

from libc.stdint cimport int64_t

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._fetches cimport Fetches
from rmemcached.client.api._session cimport Session


# The part of a call for one server. `run` in _fan_out.pyx calls `look`, `ask` and `take`, in this order.
cdef class Batch:
    cdef Session client
    cdef list requests           # of Request
    cdef Fetches fetches         # gets: the requests sent
    cdef Connection connection   # from `ask` to the batch's end; else None
    cdef list results            # in the order of the requests
    cdef bint whole              # direct reads have found all values
    cdef list errors             # the error lines of the server
    cdef object error            # the exception in place of results, or None

    # Reads values directly into `results`. Request.found marks the values found. Sets `whole`.
    cdef int look(self) except -1
    # Takes a connection, and sends as much as the transport takes at once. An exception ends up in `error`.
    cdef int ask(self, bytes name) except -1
    # Waits for the answers and gives the connection back. An exception ends up in `error`.
    cdef int take(self, int64_t asked) except -1
    # Whether the timeout has passed since `asked` (now_ns) without input, while earlier batches were awaited. asked 0:
    # no limit.
    cdef bint is_late(self, int64_t asked) except -1
    # Ends the batch with this error, and drops its connection, which is in disorder.
    cdef int give_up(self, object error) except -1
