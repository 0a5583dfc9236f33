"""One connection of a Client, and what a call does on it.

A call takes a Connection from its Session, formats requests into its Stream, and calls `exchange` (or `unanswered`),
then `next` for each further answer. An exception in between may leave a request or an answer half done: the Connection
is of no use then. Methods that wait release the GIL meanwhile, if the Stream does not need it, and let signal handlers
run. They raise TimeoutError, OSError, MemoryError, MemcacheUnexpectedCloseError and MemcacheUnknownError.
"""

from libc.stdint cimport int64_t

from rmemcached.client._stream cimport Stream
from rmemcached.client._views cimport Pins

# Requests that are sent together while more are to come, without values and with: the first ones are on their way while
# the next are written, and each message costs the server some time.
cdef enum:
    AHEAD = 50
    AHEAD_WITH_VALUES = 34
    AHEAD_BYTES = 1 << 17        # ... or that name so many bytes: the server moves them while the next are copied

# What a call asks of the Stream.
cdef enum stream_step:
    PUSH_AND_READ
    READ_REPLY
    READ_BODY
    DRAIN
    FILL


cdef class Connection:
    cdef Stream stream
    cdef object server
    cdef readonly str transport
    cdef bytes name              # of the command under way
    cdef unsigned long owner     # the thread, or greenlet, that has used it last
    cdef object greenlet         # a weak reference to that greenlet; None: the owner is a thread
    cdef unsigned long home      # the only thread that can use it; 0: any
    cdef unsigned int generation  # of the process that made it
    cdef unsigned int epoch      # of the Session, when it was made
    cdef object sock             # what Client.sock has shown; its own, unless the Stream has it
    cdef Pins pins               # items that the server keeps for views; None: there never were any
    cdef size_t late             # bytes at the request's begin that tell of reads and views, whatever the call sends
    cdef int64_t left            # coarse_ms() when the last call has ended
    cdef bint ended              # by the server, or the network
    cdef Connection next         # of those that no call uses

    # In a forked child: leaves the parent's connection alone.
    cdef void close(self) noexcept
    cdef bint leaves_open(self, Stream s) noexcept
    # Sends the request and reads the first line of the answer.
    cdef int exchange(self) except -1
    # Behind so many of many requests: the server may begin with them, where sending costs no system call.
    cdef int ahead(self, Py_ssize_t count, Py_ssize_t batch) except -1
    # Reads the next line.
    cdef int next_line(self) except -1
    # exchange for the first answer to a request, next_line for the others.
    cdef int read_answer(self, bint first) except -1
    # Reads what comes next, whatever it is.
    cdef int fill(self) except -1
    # Sends a request that has no answer.
    cdef int send(self) except -1
    # Sends so many commands with the q flag or noreply. Their error lines are found and dropped later.
    cdef int unanswered(self, size_t commands) except -1
    # Sends the request with a mn at its end, and drops all that is answered before that.
    cdef int synchronise(self) except -1
    # The end of a call that has sent values: afterwards none of them is needed any more.
    cdef int values_sent(self) except -1
    # Of a VA line: whether it answers the request for this key. Raises MemcacheUnknownError.
    cdef int check_value(self, object key, bint with_cas) except -1
    # Reads the value behind a VA line.
    cdef bytes value(self)
    # The same as a read-only memoryview, without a copy where the server has written it to memory.
    cdef object value_view(self)
    # The same, into the caller's memory, which put_target was called with. Reads and drops one that is longer. The
    # number of its bytes.
    cdef Py_ssize_t value_into(self, char *to, size_t size) except -1
    cdef int read_inline(self, char *to, size_t length) except -1
    # Appends the exception for the error line just read, or for another one. Raises it when the connection is of no use
    # behind it.
    cdef int refused(self, list errors) except -1
    cdef int refused_by(self, bytes line, list errors) except -1
    # The answer to a storage command: True, False or None as pymemcache has it; or `refused`.
    cdef object stored(self, list errors)

    # Whether there is input behind all answers, which would be taken for the next command's.
    cdef bint has_more(self) noexcept
    # The exception for that.
    cdef object unasked(self)

    cdef int step(self, stream_step first, stream_step again) except -1
    cdef str command(self)       # its name, as errors have it
    # The exception, which gets the names of the server and of the command.
    cdef object named(self, object error)
    # The same for one that a socket object has raised.
    cdef object failed(self, object error)
    # The exception for what a method of the Stream has returned.
    cdef object broken(self, int code)
    # Raises that exception, unless signal handlers wanted to run: then it runs them, and the step is to be repeated.
    cdef int interrupted(self, int code) except -1
