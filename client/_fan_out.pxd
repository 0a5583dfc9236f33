"""One call for keys of several servers: all of them are asked before any is waited for.

The call is divided into batches, one for each server. What can be read without asking is not asked for. A server that
fails takes nothing from the others: its batch has an exception in place of a result. Several servers that do not answer
to a fetch or a delete take less time than two timeouts.
"""

from libc.stdint cimport int64_t

from rmemcached.client._connection cimport Connection
from rmemcached.client._fetches cimport Fetches
from rmemcached.client._storage cimport Storage


cdef class Batch:
    cdef Storage client
    cdef list requests           # of Request
    cdef Fetches fetches         # gets: of those that are asked for
    cdef Connection connection   # None: not in the call, or not any more
    cdef list results            # one for each request
    cdef bint whole              # nothing is asked for
    cdef list errors             # the error lines of the server
    cdef object error            # why there are no results; None: there are

    # Fetches what can be read without asking: Request.found says what.
    cdef int look(self) except -1
    # Sends what the transport takes at the moment.
    cdef int ask(self, bytes name) except -1
    # Waits for the answers.
    cdef int take(self, int64_t asked) except -1
    # Whether its time has passed, since `asked` (now_ns), while others were waited for. asked 0: that does not count.
    cdef bint is_late(self, int64_t asked) except -1
    # Ends it: its connection is in disorder.
    cdef int give_up(self, object error) except -1
