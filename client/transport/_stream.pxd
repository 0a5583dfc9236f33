"""A memcached connection as a byte stream in both directions, over any transport.

Requests are formatted into `wbuf`; large values are referenced, not copied. `push` sends as much as the transport takes
at once. `read_line` and `read_body` read replies, and go on sending the rest of the requests while they wait. So a
batch of any size cannot deadlock with a server that answers while it reads.

A stream has the buffers of a call from `begin` to `end` only. A process with many Clients has as many buffers as calls
under way, and they stay in the cache. A stream with unread input keeps its buffers. Buffers are taken and given back
with the GIL, or with the lock of _state.pxd.

One thread at a time uses a stream. A method that may wait returns a positive number, 0 after the end of the connection,
or a negative errno. -EINTR: signal handlers want to run, and the caller repeats the call. The wait then goes on with
the rest of its time.
"""

from libc.stdint cimport int64_t, uint64_t
from posix.uio cimport iovec

from rmemcached.client.transport._direct cimport DirectMemory

cdef enum:
    RBUF_SIZE = 16384        # bytes of the receive buffer at first
    LINE_LIMIT = 65536       # bytes of the longest reply line accepted
    UNREAD_LIMIT = 1 << 26   # bytes of an answer to raw_command, or of input during the send of a request
    COPY_LIMIT = 2048        # values up to this size are copied behind their header
    IDLE_MS = 20             # ms without a call, after which the next call asks has_gone first

# The memory of a call.
cdef struct call_buffers:
    call_buffers *next       # in the list of unused buffers
    char *rbuf
    size_t rcap
    char *wbuf
    size_t wcap
    iovec *iov
    size_t iov_cap

cdef class Stream:
    cdef call_buffers *buffers   # its sizes are as of take_buffers. NULL: rbuf, wbuf and iov are NULL, too
    cdef int timeout_ms      # of each wait; -1: none
    cdef public bint classic  # the server knows no meta commands,
    cdef public bint unmarked  # ... and no command to mark the end of commands without replies
    cdef bint doubtful       # unmarked: an error may belong to a command without a reply
    cdef bint needs_gil      # its methods are called with the GIL held
    cdef object error        # why a method has returned -EPROTO
    cdef bint of_thread      # usable only in the thread of its creation
    # input: [rpos, rend) of rbuf is unread
    cdef char *rbuf
    cdef size_t rcap
    cdef size_t rpos
    cdef size_t rend
    cdef char *line          # of read_line, without \r\n; valid until more input is asked for
    cdef size_t line_length
    cdef char *dst           # of read_body: where the rest of the value goes
    cdef size_t dst_left
    cdef bint behind_value   # classic: the value has been read, but not the END behind it
    # output: wbuf[wmark:wlen] is not in iov yet; iov[iov_next:iov_count] is not sent yet
    cdef char *wbuf
    cdef size_t wcap
    cdef size_t wlen
    cdef size_t wmark
    cdef iovec *iov
    cdef size_t iov_cap
    cdef size_t iov_next
    cdef size_t iov_count
    cdef size_t noreplies    # commands without a reply since the last mark or answer (put_mark of wire/_commands.pxd)
    # waiting
    cdef int64_t until       # the end of a wait interrupted by a signal; 0: no such wait
    cdef bint remote         # an RdmaStream, whose requests may name memory (_lane_memory.pxd)
    cdef size_t inline_limit  # values up to this size are sent in the request, and in the reply

    cdef bint in_loop        # an event loop drives the stream: long work is cut in pieces
    cdef bint late           # the caller's time is over, or there is an event loop: close waits for no answer

    # requests: the first call is begin, the last call commit; then the output can be pushed. Raise MemoryError
    # Begins a call: takes buffers, unless the stream has kept them, and empties the output.
    cdef int begin(self) except -1
    # Ends a call: gives the buffers back, unless input is unread.
    cdef void end(self) noexcept
    # The steps of `begin` and `end`, under the lock of _state.pxd.
    cdef int take_buffers(self) except -1
    cdef void give_buffers(self) noexcept
    # Makes room for `more` bytes in wbuf, which may move.
    cdef int grow(self, size_t more) except -1
    cdef int put(self, const char *data, size_t length) except -1
    # A place for `length` bytes. The caller adds to wlen as many bytes as it has written.
    cdef char *room(self, size_t length) except NULL
    cdef int put_number(self, uint64_t value) except -1
    cdef int put_hex(self, uint64_t value) except -1
    # Puts a large value, which is sent from its place: the caller keeps it there until the command is over. A value up
    # to COPY_LIMIT is copied.
    cdef int put_reference(self, const char *data, size_t length) except -1
    # Moves the bytes written to wbuf since the last commit into iov.
    cdef int commit(self) except -1
    # replies; these methods may wait
    # Reads the next line into `line`. -EMSGSIZE: the line is longer than LINE_LIMIT.
    cdef int read_line(self) noexcept nogil
    # Reads dst_left bytes to dst, and the \r\n behind them (classic: also END). The caller has set dst and dst_left.
    # -EBADMSG: other input.
    cdef int read_body(self) noexcept nogil
    # Reads the END behind a value of the classic protocol, for read_body and event loops.
    cdef int read_end(self) noexcept nogil
    # Whether read_line need not wait.
    cdef bint has_line(self) noexcept nogil
    # for the transports' subclasses
    # Takes n bytes, now sent, off the front of iov.
    cdef void sent(self, size_t n) noexcept nogil
    # Makes room for `length` bytes of input behind rend. 1, -ENOMEM, -EMSGSIZE.
    cdef int reserve_input(self, size_t length) noexcept nogil
    # Copies input to dst, or behind rend. 1, -ENOMEM, -EMSGSIZE.
    cdef int deliver(self, const char *data, size_t length) noexcept nogil

    # the transport's part: the subclasses override these methods, and Connection (api/_connection.pyx) calls them
    cdef int push(self) noexcept nogil                  # sends without waiting; 1, also when something is left
    cdef int drain(self) noexcept nogil                 # waits until everything is sent; keeps input that arrives
    cdef int fill(self) noexcept nogil                  # waits until rbuf has more; pushes meanwhile
    cdef int fill_body(self) noexcept nogil             # the same, straight into dst as far as possible
    # From now on an event loop drives the stream: neither push nor close waits. False: the stream has no such mode.
    cdef bint join_loop(self) noexcept
    cdef object socket_object(self)                     # Client.sock; None: the connection has no socket
    cdef bint must_authenticate(self) noexcept          # whether the new stream needs authentication of its own
    cdef bint has_ended(self) noexcept nogil            # after a send without an answer: whether the server has ended
    cdef bint has_gone(self) noexcept                   # whether it has ended between two calls (a system call)
    # for event loops
    cdef int take_input(self) noexcept nogil            # takes the present input, never waits; -EAGAIN: there is none
    cdef bint arm(self) noexcept nogil                  # makes a descriptor readable at input; True: input has come
    cdef list descriptors(self)                         # readable when something comes, or the connection ends
    cdef bint tells_room(self) noexcept                 # whether the first of them gets writable when there is room

    cdef DirectMemory direct_memory(self)               # the server's items for direct reads, or None
    cdef bint may_stay(self) noexcept                   # may outlive its Connection: names no memory of the caller's
    cdef bint keeps_pins(self) noexcept                 # whether the server still keeps the pins: any thread may call
    cdef str failure_text(self)                         # why the connection has ended, as far as known; may be ""
    cdef void close(self) noexcept                      # in a forked child: leaves the parent's connection alone
