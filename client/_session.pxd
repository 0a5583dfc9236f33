"""The options of a Client, and its connections: one for each call that is under way, made on demand.

A call is `enter`, what it does on the Connection, and `leave`, or `drop` after an exception. Any number of threads may
be in calls; each has a Connection of its own meanwhile. All of this is done with the GIL held, or the lock of
_state.pxd.

A thread's commands reach the server in their order. Behind one that was sent without waiting for an answer only the
same Connection keeps it, so that no other thread gets that one before a reply has come on it.
"""

from libc.stdint cimport uint64_t

from rmemcached.client._connection cimport Connection
from rmemcached.client._direct cimport DirectMemory, DirectReader
from rmemcached.client._views cimport Pins, Releases


cdef class Session:
    cdef readonly object server
    cdef readonly object connect_timeout
    cdef readonly object timeout
    cdef readonly bint no_delay
    cdef readonly object socket_keepalive
    cdef readonly object spin
    cdef readonly object rdma_cm_port
    cdef readonly object socket_module  # None: the standard library's
    cdef readonly object tls_context
    cdef readonly object credentials  # (name, password) as bytes, or None
    cdef public bint closes_on_rdma  # the server has ended a connection because of the exchange
    cdef public bint closes_on_meta  # the server has ended a connection because of a meta command,
    cdef public bint unmarked    # ... and does not answer to `version` either
    cdef readonly object serde
    cdef bint views              # ... takes views of values, in place of bytes
    cdef readonly bint ignore_exc
    cdef readonly bytes key_prefix
    cdef readonly bint default_noreply
    cdef readonly bint allow_unicode_keys
    cdef readonly str encoding
    cdef str _wanted             # the transport argument
    cdef object _logged          # what the log said last of transport and reads
    cdef str _transport          # of the connection that was made last
    cdef object _current         # returns the greenlet that runs; None: connections belong to threads only
    cdef Connection _idle        # those that no call uses, the one that was used last first
    cdef DirectReader _reader    # of the server's memory; None: values are asked for
    cdef Releases _releases      # of views that have gone
    cdef unsigned int _open      # connections, idle or in calls
    cdef unsigned int _unanswered  # of the idle ones: on which commands without an answer were the last
    cdef unsigned int _epoch     # connections of earlier ones are closed when their calls end
    cdef unsigned int _generation  # of the process that has made the idle ones

    # Takes the options of the connections, or raises ValueError.
    cdef int configure(self, server, connect_timeout, timeout, no_delay, keepalive, transport, spin, rdma_cm_port,
                       username, password, socket_module, tls_context) except -1
    # A Connection with an empty request, for the command `name`. quiet: the call waits for no answer.
    cdef Connection enter(self, bint quiet, bytes name)
    # The end of a call, which leaves the connection in order. Raises the first of the errors.
    cdef int leave(self, Connection c, list errors) except -1
    # The end of a call that leaves the connection in disorder.
    cdef void drop(self, Connection c) noexcept
    # Tells the server of what was read without it: with a request, or in one. Errors are left to the next command.
    cdef int tell_hits(self) except -1
    cdef bint has_hits(self) noexcept
    cdef int put_hits(self, Connection c) except -1
    # Tells the server of views that have gone: in this request, and by the connections that no call uses. Errors are
    # left to the next command.
    cdef int put_releases(self, Connection c) except -1
    cdef int tell_releases(self) except -1
    # Either, when it is time for it: behind a read of `reader` that has asked nobody.
    cdef int tell_late(self, DirectReader reader) except -1
    cdef int leave_quietly(self, Connection c) except -1
    # What is read from now on, with the lock. None: all is asked for.
    cdef void read_from(self, DirectMemory memory) noexcept
    # Whether this thread or greenlet has sent commands last without an answer.
    cdef bint has_unanswered(self, unsigned long caller) noexcept
    # The reader, if what it reads is in order with this Client's commands; None: ask.
    cdef DirectReader reader(self)
    # The memory of a server that lives. None: there is none, or nobody is connected.
    cdef DirectMemory memory(self)
    # Closes the idle connections, and those that calls use when these end.
    cdef void close_all(self) noexcept

    cdef Connection take(self, Connection c, Connection before)
    # Takes one for a caller. None: there is none.
    cdef Connection idle(self, unsigned long caller)
    # The pins of a connection that no call uses, if that of the item at a place is among them. None: there is no such.
    cdef Pins pins_with(self, DirectMemory memory, uint64_t place)
    # One whose views have gone. None: there is none.
    cdef Connection take_releasing(self)
    # Stands for the thread, or the greenlet, as long as it lives.
    cdef unsigned long caller(self) except? 0
    cdef int own(self, Connection c, unsigned long caller) except -1
    cdef bint is_owned(self, Connection c, dict threads)
    cdef Connection find(self, unsigned long caller)
    cdef Connection connect(self)
    cdef int authenticate(self, Connection c) except -1
    cdef bytes encoded_key(self, object key)
    # The same for put_fetch and put_store.
    cdef object sendable_key(self, object key)
    cdef bint is_quiet(self, object noreply) except -1
