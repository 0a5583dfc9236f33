"""The connection of an AsyncClient: a Stream driven by an event loop.

The loop calls when a descriptor of the Stream is readable or, while output is left, writable. Requests submitted in
the same turn of the loop are sent together, at the beginning of the next turn. Answers come in the order of the
requests. The loop's thread does everything.

submit and has_read close the connection before they raise; only a meta command to a server without meta commands leaves
the connection open. The methods of input and output raise, and their caller closes the connection by fail.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.client.api._client cimport Client
from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._request cimport Request
from rmemcached.client.transport._direct cimport DirectReader
from rmemcached.client.transport._lane_memory cimport LaneMemory
from rmemcached.client.transport._stream cimport Stream

cdef enum:
    ANSWERS_MOST = 1024      # requests under way at most
    EXPOSED_MOST = 64        # values in memory for the server at most, given back together after all answers


cdef class Group:
    """Requests whose answers are awaited together."""
    cdef object future
    cdef list results            # or exceptions, in the order of the requests
    cdef Py_ssize_t left         # results that have not come yet

    # Called by `resolve`: puts a result in its place. The last result completes the future.
    cdef int put(self, Py_ssize_t place, object result) except -1


cdef class AsyncConnection:
    cdef Client client
    cdef readonly object loop
    cdef Connection connection   # None: closed
    cdef Stream stream           # the connection's
    cdef LaneMemory memory       # the stream's; None: requests name no memory
    cdef object answers          # deque of Requests without an answer yet
    cdef object waiting          # deque of (future, bytes of the value) of calls that wait for room
    cdef list descriptors        # watched by the loop
    cdef bint flushing           # `_flush` will be called
    cdef bint writing            # the loop calls when there is room for output
    cdef bint sink_taken         # a request without an answer yet names the sink
    cdef list exposed            # values in memory for the server, until no request is under way
    cdef bytes body              # a value under reception; None: between values
    cdef bint behind_value       # classic: only the value's END has not come yet
    cdef object timer            # the loop's handle of the next `_look_at_time`; None: no call is planned
    cdef object progress         # the loop's time of the last input or output
    cdef int64_t looked          # coarse_ms() at the loop's last look at the connection
    cdef object error            # why the connection was closed
    cdef DirectReader reader     # of the server's memory; None: gets send requests
    cdef dict changing           # with a reader: key -> number of unanswered requests that may change its item
    cdef Py_ssize_t eager        # bytes of direct reads left before other tasks have their turn; not of eager values
    cdef bint renews             # the next turn of the loop refills eager
    cdef object readers          # deque of calls waiting until `eager` is above 0, each an object: the first goes on

    # Whether a call must wait for `room` before it submits a request.
    cdef bint full(self)
    # The value of a key by a direct read. None: the caller must send a request, since the memory does not tell, or
    # since an earlier request may still change the item.
    cdef bytes read(self, bytes key, uint32_t *flags, uint64_t *cas)
    # Reads likewise, to the caller's memory of `room` bytes: the value's length; -1: the caller must send a request. A
    # value longer than the memory is not copied.
    cdef Py_ssize_t read_into(self, bytes key, char *to, Py_ssize_t room) except -2
    # Whether gets of the key may read the memory now.
    cdef bint may_read(self, bytes key)
    # Called by `read` and `read_into` after a direct read: takes so many bytes off `eager`, and queues the report of
    # direct reads if due.
    cdef int has_read(self, Py_ssize_t length) except -1
    # Whether the caller must let the loop run other tasks first, and then ask again. Has `eager` refilled if used up.
    # call: the caller's object in `readers`; None: the caller has no object there.
    cdef bint gives_way(self, object call) except -1
    # Appends the line with the report of direct reads to the output.
    cdef int put_hits(self) except -1
    # Called by `close`: sends the report of direct reads, as much as can be sent at once.
    cdef int tell_all(self) except -1
    # Counts a request that may change its key's item. by: 1 after submit, -1 after the answer.
    cdef int count_change(self, Request r, int by) except -1
    # Called by AsyncClient's methods, after they have checked `full`: formats a request, which the loop's next turn
    # sends. The answer goes to r.future or r.group.
    cdef int submit(self, Request r) except -1
    # Whether the transport has taken all output. Called by `submit` and `rest` before the stream's `begin` and `end`,
    # which would drop unsent output.
    cdef bint all_sent(self)
    # Sends as much as the transport takes now. While output is left, the loop calls when there is room.
    cdef int send_some(self) except -1
    # Takes input and its answers, for TURN_NS at most.
    cdef int receive(self) except -1
    # Takes all complete answers from the input, and finishes their requests.
    cdef int take_answers(self) except -1
    # Takes input of the value under reception. True: the value was complete, and its request is finished.
    cdef bint take_body(self) except -1
    # Begins the reception of the value behind the VA line just read. False: take_answer must read the answer, because
    # no value follows in the stream, or none should.
    cdef bint begin_value(self, Request r) except -1
    # Ends the first request with a result or exception. Raises if surplus input follows the last request's answer.
    cdef int finish(self, Request r, object result) except -1
    # Called by `finish` and `fail`: gives a request's result or exception to its waiting caller, after the serde.
    cdef int resolve(self, Request r, object result) except -1
    # Called when no request is under way: arms the stream for the next input, and gives memory back.
    cdef int rest(self) except -1
    # Wakes as many calls in `waiting` as there is room for. Each of them checks `full` again.
    cdef int make_room(self) except -1
    # Closes the connection. All requests under way get the error, and waiting calls wake up.
    cdef int fail(self, object error) except -1


# Makes a connection for a client, and authenticates it. AsyncClient calls the function in a thread, since it waits.
# Returns (connection, the text about it in the log). logged: the last such text; a repeated text is not logged again.
cdef tuple open_connection(Client client, object logged)
