"""Reads of a server's memory by RDMA READ (docs/direct-reads.md, sections 8 and 9): of `verbs` and `soft_iw`.

What is known of the server's memory belongs to the queue pair; one call at a time reads through it.
"""

from libc.stdint cimport int64_t

from rmemcached.client._connection cimport Connection

# The values of keys, which are as they are sent, on a connection that the caller has entered and that waits for no
# answer: a list with (value, flags, CAS value), or None where only the server can say. None: for all of them. Raises
# what Connection does; the connection is of no use then, and the server is to be asked on another one.
cdef list read_values(Connection c, list keys)
# How long a get of one key takes so, in nanoseconds. 0: the server is to be asked. anew: without knowing where it was.
cdef int64_t time_read(Connection c, bytes key, bint anew) except -1
# A server has been flushed by this process: what is older than the flush is read no more.
cdef void forget_clocks() noexcept
