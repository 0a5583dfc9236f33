"""The requests of a call that gets several values, and their answers in turn.

Small values are asked for together. Large ones, as long as what came last was large, are asked for with memory of their
own for each, which the server fills while the one before is copied out.
"""

from rmemcached.client._connection cimport Connection

cdef enum:
    FETCHES_MOST = 8         # that name memory and are not answered yet


cdef class Fetches:
    cdef Connection connection
    cdef list wanted                 # keys, as they are sent
    cdef bint with_flags
    cdef bint with_cas
    cdef bytes expire
    cdef Py_ssize_t window           # how many name memory at a time; 0: none does, or none any more
    cdef Py_ssize_t sinks            # as many, from the start; the first `naming` requests name these in turn
    cdef Py_ssize_t naming
    cdef Py_ssize_t missed           # keys in a row that had no item
    cdef bint named[FETCHES_MOST]    # of a request that has no answer: whether it does name that
    cdef Py_ssize_t sent
    cdef Py_ssize_t got              # answers that were read

    # Sends those for which there is room.
    cdef int ask(self) except -1
    # Reads the line of the next answer. The value of the one before has been taken.
    cdef int answer(self) except -1

cdef Fetches new_fetches(Connection c, list wanted, bint with_flags, bint with_cas, bytes expire)
