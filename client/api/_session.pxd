"""The options of a Client, and its connections: one for each call under way, made on demand.

A call consists of `enter`, its work on the Connection, and `leave`, or `drop` after an exception. Any number of threads
may be in calls, each with a Connection of its own meanwhile. All of this is done with the GIL held, or the lock of
_state.pxd.

A thread's commands reach the server in their order. After a command sent without waiting for an answer, only the same
Connection keeps this order. So no other thread gets this Connection before a reply has come on it.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._views cimport Pins, Releases
from rmemcached.client.transport._direct cimport DirectMemory, DirectReader


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
    cdef readonly object credentials  # transport/arguments.Credentials, or None
    cdef public object binary_only    # bool or None: the server takes no text after SASL
    cdef public bint closes_on_rdma  # the server has ended a connection because of the exchange
    cdef public bint closes_on_meta  # the server has ended a connection because of a meta command,
    cdef public bint unmarked    # ... and does not answer to `version` either
    cdef readonly object serde
    cdef bint views              # the serde takes views of values, in place of bytes
    cdef readonly bint ignore_exc
    cdef readonly bytes key_prefix
    cdef readonly bint default_noreply
    cdef readonly bint allow_unicode_keys
    cdef readonly str encoding
    cdef str _wanted             # the transport argument
    cdef object _logged          # the last text in the log about transport and reads
    cdef str _transport          # of the newest connection
    cdef object _current         # returns the current greenlet; None: connections belong to threads only
    cdef Connection _idle        # connections without a call, the most recent first
    cdef DirectReader _reader    # of the server's memory; None: gets ask the server
    cdef Releases _releases      # counts the pins without views
    cdef unsigned int _open      # connections, idle or in calls
    cdef unsigned int _unanswered  # idle connections whose last command had no answer
    cdef unsigned int _epoch     # connections of earlier epochs are closed when their calls end
    cdef unsigned int _generation  # fork_count() of the process that has the idle connections

    # Called by the Client's constructor: takes the options of the connections, or raises ValueError.
    cdef int configure(self, server, connect_timeout, timeout, no_delay, keepalive, transport, spin, rdma_cm_port,
                       username, password, socket_module, tls_context, sasl) except -1
    # Begins a call: takes or makes a Connection, whose request has at most reports and a mark yet. name: the command's,
    # for exceptions. quiet: the call waits for no answer. Raises the errors of `connect` and of Connection.
    cdef Connection enter(self, bint quiet, bytes name)
    # The end of a call with the connection in order. Raises the first of the errors.
    cdef int leave(self, Connection c, list errors) except -1
    # The end of a call with the connection in disorder: closes the connection. If the server has ended the connection,
    # closes the idle connections, too.
    cdef void drop(self, Connection c) noexcept
    # Tells the server of direct reads, on an idle connection. Errors are left to the next command.
    cdef int tell_hits(self) except -1
    # Whether the server has not been told of some direct reads.
    cdef bint has_hits(self) noexcept
    # Called by `enter` and `tell_hits`: puts the report of direct reads into the request.
    cdef int put_hits(self, Connection c) except -1
    # Called by `enter`: puts the releases of views of c's pins into the request, and calls tell_releases for the rest.
    cdef int put_releases(self, Connection c) except -1
    # Sends the releases of views on the idle connections. Errors are left to the next command.
    cdef int tell_releases(self) except -1
    # Called after a direct read by `reader`: tell_hits or tell_releases, when due.
    cdef int tell_late(self, DirectReader reader) except -1
    # As `leave`, but raises no MemcacheError.
    cdef int leave_quietly(self, Connection c) except -1
    # Sets the memory for direct reads from now on. The caller holds the lock. None: all gets ask the server.
    cdef void read_from(self, DirectMemory memory) noexcept
    # Whether the thread's or greenlet's last command was sent without waiting for an answer.
    cdef bint has_unanswered(self, unsigned long caller) noexcept
    # The reader, if its reads are in order with this Client's commands. None: the caller must ask
    # the server.
    cdef DirectReader reader(self)
    # The memory of a live server. None: there is no such memory, or no connection.
    cdef DirectMemory memory(self)
    # Closes the idle connections, and connections in calls at the end of the calls.
    cdef void close_all(self) noexcept

    # Takes c out of the list of idle connections, behind `before` (None: c is the first). The caller holds the
    # lock.
    cdef Connection take(self, Connection c, Connection before)
    # Takes an idle connection for a caller (see `caller`). None: there is none. In a forked child forgets the parent's
    # connections.
    cdef Connection idle(self, unsigned long caller)
    # The pins of an idle connection, if the item at the place is among them. None: there are no such pins.
    cdef Pins pins_with(self, DirectMemory memory, uint64_t place)
    # Called by `tell_releases`: takes an idle connection with released views. None: there is no such connection.
    cdef Connection take_releasing(self)
    # Returns a number for the calling thread or greenlet, for its whole life.
    cdef unsigned long caller(self) except? 0
    # Makes the caller the owner of the connection.
    cdef int own(self, Connection c, unsigned long caller) except -1
    # Whether the connection's owner still lives, and may need the order of its commands. threads: the living threads,
    # by their idents.
    cdef bint is_owned(self, Connection c, dict threads)
    # The search of `idle`, which holds the lock. The caller's connection with unanswered commands comes first.
    cdef Connection find(self, unsigned long caller)
    # Makes a connection, and authenticates it. Raises OSError, TimeoutError, MemcacheError.
    cdef Connection connect(self)
    # Authenticates a new connection, or closes it and raises the exception.
    cdef int authenticate(self, Connection c) except -1
    # Returns the key with the prefix, encoded for the server. Raises MemcacheIllegalInputError, TypeError.
    cdef bytes encoded_key(self, object key)
    # Returns the key with the prefix, for put_fetch and put_store.
    cdef object sendable_key(self, object key)
    # Whether a call with this argument waits for no answer. None: default_noreply.
    cdef bint is_quiet(self, object noreply) except -1
    # Called by the commands that store. Returns what to send for the value: bytes, a memoryview or a Gathered, as
    # encode_value. Appends the text of the item's flags to `numbers`. flags None: the serde's flags are sent; without a
    # serde None is appended, and the item gets flags 0. An OSError of the serde gets the attribute of_serde, since
    # the connection has not failed.
    cdef object serialize(self, object key, object value, object flags, list numbers)
    # Returns the value of stored bytes and flags, by the serde if there is one. Marks an OSError as `serialize` does.
    cdef object load(self, object key, object value, uint32_t flags)
