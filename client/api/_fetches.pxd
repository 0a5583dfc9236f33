"""The requests of a call that gets several values, and their answers in turn.

Small values are asked for together. After a large value, each request names memory of its own. The server fills this
memory while the caller copies the previous value.
"""

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.transport._lane_memory cimport LaneMemory

cdef enum:
    FETCHES_MOST = 8         # requests with memory and without an answer yet


cdef class Fetches:
    cdef Connection connection
    cdef LaneMemory memory           # None: requests name none
    cdef list wanted                 # keys, encoded
    cdef bint with_flags
    cdef bint with_cas
    cdef bytes expire
    cdef Py_ssize_t window           # requests with memory at a time; 0: none, or none any more
    cdef Py_ssize_t sinks            # `window` at the start: the number of sinks, named in turn
    cdef Py_ssize_t naming           # the number of requests that named a sink, before all others
    cdef Py_ssize_t missed           # keys in a row without an item
    cdef bint named[FETCHES_MOST]    # for each unanswered request: whether it names its sink
    cdef Py_ssize_t sent
    cdef Py_ssize_t got              # answers read

    # Called before the first answer, and by `answer`: sends as many requests as the window allows.
    cdef int ask(self) except -1
    # Reads the line of the next answer. The caller has taken the previous value.
    cdef int answer(self) except -1

# The fetches of encoded keys on an entered connection. Sends nothing yet. expire: None for gets without an expiry time.
cdef Fetches new_fetches(Connection c, list wanted, bint with_flags, bint with_cas, bytes expire)
