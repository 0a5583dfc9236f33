"""A memcached connection as a byte stream in both directions, whatever carries it.

Requests are formatted into `wbuf`; large values are referenced, not copied; `push` sends what the transport takes at
the moment. Replies are read with `read_reply` and `read_body`, which go on sending what is still queued while they
wait: a batch of any size cannot deadlock with a server that answers while it reads.

The buffers of a call are a stream's from `begin` to `end` only: a process with many Clients has as many as calls are
under way, and they stay in the cache. A stream that has unread input keeps them. They are taken and given back with the
GIL, or with the lock of _state.pxd.

One thread at a time. A method that may wait returns a positive number, 0 when the connection has ended, or a negative
errno; -EINTR means that signal handlers want to run and that the call is to be repeated: the wait goes on, with what is
left of its time.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.client._direct cimport DirectMemory
from rmemcached.client._reply cimport reply_line

cdef enum:
    RBUF_SIZE = 16384        # bytes of the receive buffer at first
    LINE_LIMIT = 65536       # bytes of the longest reply line that is accepted
    UNREAD_LIMIT = 1 << 26   # bytes of an answer to raw_command, or that come while a request is sent
    COPY_LIMIT = 2048        # values up to this size are copied behind their header
    IDLE_MS = 20             # ms without a call, after which the next one asks has_gone first

# The memory of a call.
cdef struct call_buffers:
    call_buffers *next       # of those that no call uses
    char *rbuf
    size_t rcap
    char *wbuf
    size_t wcap
    iovec *iov
    size_t iov_cap

cdef class Stream:
    cdef call_buffers *buffers   # NULL: none, and so have rbuf, wbuf and iov. The sizes may have grown since
    cdef int timeout_ms      # of each wait; -1: none
    cdef public bint classic  # the server knows no meta commands,
    cdef public bint unmarked  # ... and none that marks the end of commands without replies
    cdef bint doubtful       # unmarked: an error may be that of a command without a reply
    cdef bint needs_gil      # its methods are called with the GIL held
    cdef object error        # why a method has returned -EPROTO
    cdef bint of_thread      # only the thread that has made it can use it
    # input: [rpos, rend) of rbuf is unread
    cdef char *rbuf
    cdef size_t rcap
    cdef size_t rpos
    cdef size_t rend
    cdef char *line          # of read_line, without \r\n; valid until more input is asked for
    cdef size_t line_length
    cdef reply_line reply
    cdef char *dst           # of read_body: where the rest of the value goes
    cdef size_t dst_left
    cdef bint behind_value   # classic: the value has been read, and not the END behind it
    # output: wbuf[wmark:wlen] is not in iov yet; iov[iov_next:iov_count] is not sent yet
    cdef char *wbuf
    cdef size_t wcap
    cdef size_t wlen
    cdef size_t wmark
    cdef iovec *iov
    cdef size_t iov_cap
    cdef size_t iov_next
    cdef size_t iov_count
    cdef size_t noreplies    # commands without a reply since the last mark, or answer
    # waiting
    cdef int64_t until       # when a wait that a signal has interrupted is over; 0: none was
    cdef int64_t spin_ns     # poll for this long before blocking; 0: never
    cdef int spin_score      # above 0: spinning has lately paid
    cdef unsigned int spin_skipped
    cdef int64_t spin_pause  # ns without spinning after a yield that took long; 0: none did lately
    cdef int64_t spin_again  # now_ns() from which on it may spin
    cdef unsigned int well   # yields and waits that nobody has disturbed since the pause has changed
    cdef unsigned int lone_yields    # the last so many found nobody else for the core
    # memory named in requests
    cdef bint remote         # requests may name memory
    cdef size_t named        # bytes of values that requests name which may not have been sent yet
    cdef bint sink_named     # the request names the sink
    cdef size_t inline_limit  # values up to this size are sent in the request, and in the reply

    cdef bint in_loop        # an event loop drives it: whatever takes long is cut in pieces
    cdef bint late           # the caller's time is over, or it is an event loop: close does not wait for answers
    cdef size_t copied       # bytes of values that were copied for requests, since an event loop has set it to 0

    # requests: the first call is begin, the last one commit
    cdef int begin(self) except -1
    # The call is over.
    cdef void end(self) noexcept
    cdef int take_buffers(self) except -1
    cdef void give_buffers(self) noexcept
    cdef int grow(self, size_t more) except -1
    cdef int put(self, const char *data, size_t length) except -1
    # Where so many bytes can be written. The caller adds to wlen what it has written.
    cdef char *room(self, size_t length) except NULL
    cdef int put_number(self, uint64_t value) except -1
    cdef int put_hex(self, uint64_t value) except -1
    cdef int put_reference(self, const char *data, size_t length) except -1
    cdef int commit(self) except -1
    # replies
    cdef int read_line(self) noexcept nogil
    cdef int read_reply(self) noexcept nogil
    # read_reply of what has come; -EAGAIN: there is no whole line.
    cdef int next_reply(self) noexcept nogil
    cdef int read_body(self) noexcept nogil
    cdef int read_end(self) noexcept nogil
    cdef bint has_line(self) noexcept nogil
    # for the transports
    cdef void sent(self, size_t n) noexcept nogil
    cdef int reserve_input(self, size_t length) noexcept nogil
    cdef int deliver(self, const char *data, size_t length) noexcept nogil
    cdef int64_t spin_budget(self) noexcept nogil
    cdef bint pauses(self) noexcept nogil
    cdef bint spin_yield(self, int64_t *now, int64_t expected) noexcept nogil
    # Whether nobody else wants the core, as far as yields have shown: there is no need for one at every turn.
    cdef bint has_core(self) noexcept nogil
    cdef void spun_well(self) noexcept nogil
    cdef void spin_result(self, bint paid) noexcept nogil

    # the transport's part
    cdef int push(self) noexcept nogil                  # sends without waiting; 1, also when something is left
    cdef int drain(self) noexcept nogil                 # waits until everything is sent; keeps what arrives meanwhile
    cdef int fill(self) noexcept nogil                  # waits until rbuf has more; pushes meanwhile
    cdef int fill_body(self) noexcept nogil             # the same, straight into dst as far as possible
    # Names a value for the server to read: its address, or a copy's, and the key. `value`: the bytes or memoryview that
    # has the memory, or a Gathered, whose data is NULL. False: it cannot be named.
    cdef bint expose(self, object value, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # for event loops
    # Push never waits from now on, nor does close. False: it cannot do that.
    cdef bint join_loop(self) noexcept
    cdef object socket_object(self)                     # a socket.socket of the connection, which the caller closes
    cdef bint must_authenticate(self) noexcept          # itself; that of the connection that it began as does not count
    cdef bint has_ended(self) noexcept nogil            # of a connection that does not tell when it is written to
    cdef bint has_gone(self) noexcept                   # ended by the server while no call used it: a system call
    cdef int take_input(self) noexcept nogil            # takes what has come, and does not wait; -EAGAIN: nothing has
    cdef bint arm(self) noexcept nogil                  # a descriptor gets readable; True: something has come already
    cdef list descriptors(self)                         # that get readable when something comes, or the connection ends
    cdef bint tells_room(self) noexcept                 # the first one gets writable when more can be sent

    cdef int unexpose(self) except -1                   # no request of this call needs its exposed values any more
    cdef int put_sink(self, bint lends) except -1       # appends " @addr:key:length" of the sink, or nothing
    cdef int copy_early(self) except -1                 # take_sink follows: what comes there is copied as it comes
    cdef bytes take_sink(self, size_t length)           # the value that the server has written there
    cdef object lend_sink(self, size_t length)          # the same as a read-only memoryview, without a copy
    cdef int release_sink(self) except -1               # no request needs the sink any more
    # For a call of several requests, which name a sink each: so many at a time, numbered from 0. The one that is chosen
    # is meant by what is above. 0: values come in the stream.
    cdef Py_ssize_t sinks_at_once(self) noexcept
    cdef bint large_values(self) noexcept               # whether the last value was one for which that pays
    cdef int choose_sink(self, Py_ssize_t number) except -1
    # Of the caller's memory, which a value is to come into: refuses it (BufferError); appends its name, or the sink's,
    # or nothing; puts there what the server has written, if it has room for that.
    cdef int check_target(self, const char *to, size_t size) except -1
    cdef int put_target(self, char *to, size_t size) except -1
    cdef int take_target(self, char *to, size_t size, size_t length) except -1
    cdef void saw_length(self, size_t length) noexcept  # a value of so many bytes comes in the stream
    cdef DirectMemory direct_memory(self)               # the server's items, which can be read without asking, or None
    cdef bint may_stay(self) noexcept                   # open behind its Connection: no memory of the caller's is named
    cdef bint keeps_pins(self) noexcept                 # whether it is still connected, as far as known; any thread
    cdef str failure_text(self)                         # why the connection has ended, as far as known; may be ""
    cdef void close(self) noexcept                      # in a forked child: leaves the parent's connection alone
