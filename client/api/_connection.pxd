"""A connection of a Client, and the work of a call on it.

A call takes a Connection from its Session, formats requests into its Stream, and calls `exchange` (or `unanswered`),
then `next_line` for each further answer. An exception in between may leave a request or an answer half done: the
Connection is useless then. Waiting methods release the GIL meanwhile, unless the Stream needs it, and let signal
handlers run. They raise TimeoutError, OSError, MemoryError, MemcacheUnexpectedCloseError and MemcacheUnknownError.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.client.api._views cimport Pins
from rmemcached.client.transport._lane_memory cimport LaneMemory
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._reply cimport reply_line

# The numbers of requests, without values and with values, that are sent together while more follow. So the first
# requests are on their way while the next are written; but each message costs the server some time.
cdef enum:
    AHEAD = 50
    AHEAD_WITH_VALUES = 34
    AHEAD_BYTES = 1 << 17        # ... or with values of so many bytes in named memory (_lane_memory.pxd)

# The form of a fetch's result.
cdef enum fetch_form:
    FETCH_VALUE
    FETCH_VALUE_AND_CAS
    FETCH_VIEW

# Stands for the value of a key without an item.
cdef object MISS

# Steps of a call on the Stream.
cdef enum stream_step:
    PUSH_AND_READ
    READ_REPLY
    READ_BODY
    DRAIN
    FILL


cdef class Connection:
    cdef Stream stream
    cdef reply_line reply        # the line just read
    cdef object server
    cdef readonly str transport
    cdef bytes name              # of the command under way
    cdef unsigned long owner     # the last thread, or greenlet, on this connection
    cdef object greenlet         # a weak reference to the greenlet; None: the owner is a thread
    cdef unsigned long home      # the only thread with access; 0: any
    cdef unsigned int generation  # fork_count() at its creation
    cdef unsigned int epoch      # of the Session, at the connection's creation
    cdef object sock             # the result of Client.sock; its owner is the Connection, or a Stream with needs_gil
    cdef Pins pins               # items kept by the server for views; None: there never were any
    cdef size_t late             # bytes of a report of reads and views at the request's beginning, sent in any case
    cdef int64_t left            # coarse_ms() when the last call ended
    cdef bint ended              # by the server, or the network
    cdef Connection next         # in the list of idle connections

    # Closes the connection. In a forked child: leaves the parent's connection alone.
    cdef void close(self) noexcept
    # Called by `close`: gives up the pins. True: views of items still need the stream, and the last view closes it.
    cdef bint leaves_open(self, Stream s) noexcept
    # Sends the request and reads the first line of the answer, into `reply`.
    cdef int exchange(self) except -1
    # Called after each of many requests; count: their number until now. Over RDMA, where sending costs no system call,
    # sends after every `batch` requests, so the server begins early.
    cdef int ahead(self, Py_ssize_t count, Py_ssize_t batch) except -1
    # Reads the next line.
    cdef int next_line(self) except -1
    # exchange for the first answer to a request, next_line for later answers.
    cdef int read_answer(self, bint first) except -1
    # Reads some more input.
    cdef int fill(self) except -1
    # Sends the request, and waits until all of it is sent. Reads no answer.
    cdef int send(self) except -1
    # Sends so many commands with the q flag or noreply. Their error lines are found and dropped later. After many such
    # commands waits for the server (`synchronise`).
    cdef int unanswered(self, size_t commands) except -1
    # Sends the request with mn at its end, and drops all answers before mn's.
    cdef int synchronise(self) except -1
    # Called at the end of a call that sent values: sends the rest of a refused value, and takes the values' memory back
    # from the server. The caller may then change or free the values.
    cdef int values_sent(self) except -1
    # Gives back the memory for values (LaneMemory.release_sink): no request needs it any more.
    cdef int release_sink(self) except -1
    # The memory filled by the server with the value of the reply. Raises MemcacheUnknownError: no memory was named, or
    # not enough.
    cdef LaneMemory filled(self)
    # Checks that a VA line answers the request for this key, with a CAS unique if with_cas. Raises
    # MemcacheUnknownError.
    cdef int check_value(self, object key, bint with_cas) except -1
    # Reads the value behind a VA line.
    cdef bytes value(self)
    # As value, but a read-only memoryview, without a copy if the server has written the value to memory.
    cdef object value_view(self)
    # Puts the value behind a VA line into the caller's memory, `size` bytes at `to`. If the request named this memory
    # (put_target), the server may have written the value there already; otherwise the method copies the value. A value
    # longer than `size` is read and dropped. Returns the length of the value.
    cdef Py_ssize_t value_into(self, char *to, size_t size) except -1
    # Reads a value from the stream.
    cdef int read_inline(self, char *to, size_t length) except -1
    # Appends the exception for the error line just read, or for `line`; raises it if the connection is useless
    # afterwards.
    cdef int refused(self, list errors) except -1
    cdef int refused_by(self, bytes line, list errors) except -1
    # The answer to a storage command: True, False or None as in pymemcache; or `refused`.
    cdef object stored(self, list errors)
    # The answer to mg: the value, (value, cas) or a view, with the item's flags; or MISS, also after `refused`.
    cdef object fetched(self, object key, fetch_form form, uint32_t *flags, list errors)
    # The answer to incr or decr: the number; or None, also after `refused`.
    cdef object number(self, list errors)

    # Whether there is input behind all answers, which the next command would take for its own answer.
    cdef bint has_more(self) noexcept
    # The exception for such input.
    cdef object unasked(self)

    # Takes the step `first`, then the step `again` after each interruption.
    cdef int step(self, stream_step first, stream_step again) except -1
    cdef str command(self)       # the command's name for errors
    # The exception, with the names of the server and of the command added.
    cdef object named(self, object error)
    # Adds the same names to an exception of a socket object, and returns the exception. Notes the connection's end.
    cdef object failed(self, object error)
    # The exception for a return code (0 or -errno) of the Stream's methods. Notes the connection's end.
    cdef object broken(self, int code)
    # -EINTR: runs signal handlers; then the caller repeats the step. Any other code: raises the exception.
    cdef int interrupted(self, int code) except -1
