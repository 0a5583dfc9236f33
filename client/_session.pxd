"""The connection of a Client: made on demand, used by one call at a time, dropped when it is of no use any more.

A call is `enter`, requests formatted into the Stream, `exchange` (or `unanswered`), `next` for each further answer,
and `leave`. An exception between `enter` and `leave` may leave a request or an answer half done, so that `drop` must
follow. Methods that wait release the GIL meanwhile and let signal handlers run. They raise TimeoutError, OSError,
MemoryError, MemcacheUnexpectedCloseError and MemcacheUnknownError.
"""

from rmemcached.client._stream cimport Stream


cdef class Session:
    cdef readonly object server
    cdef readonly object connect_timeout
    cdef readonly object timeout
    cdef readonly bint no_delay
    cdef readonly object socket_keepalive
    cdef readonly object spin
    cdef readonly object rdma_cm_port
    cdef str _wanted             # the transport argument
    cdef object _logged          # the transport that was last reported
    cdef Stream _stream
    cdef str _transport          # of the connection
    cdef bint _busy              # a call is under way; checked and set under the GIL
    cdef unsigned int _generation  # of the process that made the connection

    # Takes the options, or raises ValueError.
    cdef int configure(self, server, connect_timeout, timeout, no_delay, keepalive, transport, spin,
                       rdma_cm_port) except -1
    # Whether the connection is the parent process's.
    cdef bint foreign(self) noexcept
    # The stream, connected, with an empty request. RuntimeError: another call is under way, or the connection is the
    # parent process's. quiet: the call waits for no answer.
    cdef Stream enter(self, bint quiet)
    # The end of a call, which leaves the connection in order. Raises the first of the errors.
    cdef int leave(self, list errors) except -1
    # Ends the call, if one is under way, and closes the connection, if there is one.
    cdef void drop(self) noexcept
    # Sends the request and reads the first line of the answer.
    cdef int exchange(self, Stream s) except -1
    # Reads the next line.
    cdef int next(self, Stream s) except -1
    # exchange for the first answer to a request, next for the others.
    cdef int read_answer(self, Stream s, bint first) except -1
    # Sends a request that has no answer.
    cdef int send(self, Stream s) except -1
    # Sends so many commands with the q flag or noreply. Their error lines are found and dropped later.
    cdef int unanswered(self, Stream s, size_t commands) except -1
    # Sends the request with a mn at its end, and drops all that is answered before that.
    cdef int synchronise(self, Stream s) except -1
    # The end of a call that has sent values: afterwards none of them is needed any more.
    cdef int values_sent(self, Stream s) except -1
    # Reads the value behind a VA line.
    cdef bytes value(self, Stream s)
    # The same, into the caller's memory, which put_target was called with. Reads and drops one that is longer. The
    # number of its bytes.
    cdef Py_ssize_t value_into(self, Stream s, char *to, size_t size) except -1
    cdef int read_inline(self, Stream s, char *to, size_t length) except -1

    # The exception for what a method of the Stream has returned.
    cdef object broken(self, Stream s, int code)
    # Raises that exception, unless signal handlers wanted to run: then it runs them, and the call is to be repeated.
    cdef int interrupted(self, Stream s, int code) except -1
