"""A connected queue pair to a server (docs/rdma-protocol.md): its messages, credits and lanes, and its end.

Each lane has an RdmaStream, and each RdmaStream an owner while a call is under way: the thread in this call.

Waiting owners make progress for the queue pair. Each polls (`reap`) for all lanes. The payload of its own lane goes to
its stream, the payload of the rest into the inboxes of their lanes. One owner sleeps for all (`wait`) on the channel
and the lifeline. Meanwhile the rest sleep until the first owner, or a polling thread, wakes them. The lock is held
during posts and polls, and never while a thread sleeps. A forked child may call `close` only, which leaves the parent's
objects alone.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._endpoint cimport RECEIVES_AT_A_TIME, SEND_BUFFERS, Endpoint
from rmemcached.client.transport._lane cimport lane_list, lane_state, lane_table, lane_want
from rmemcached.client.transport._stream cimport Stream
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.verbs cimport ibv_wc_status

# The experience of the lanes' owners with waits: RdmaStream copies it from here before a wait, and back afterwards. The
# fields are only hints: several threads write them without a lock.
cdef struct wait_hints:
    int spin_score
    unsigned int spin_skipped
    unsigned int woken
    int64_t spin_pause
    int64_t spin_again
    int64_t woken_ns[2]


cdef class QueuePair(Endpoint):
    cdef unsigned int owed           # receives posted anew and not yet announced
    cdef uint16_t used[RECEIVES_AT_A_TIME]   # receives to be posted anew: used[:used_count]
    cdef unsigned int used_count
    cdef uint32_t wakeups            # how often the server had been woken up, as of the last `push`
    cdef bint ready                  # READY has come
    cdef bint failed                 # the queue pair is of no use any more; also read without the lock
    cdef ibv_wc_status status        # of the failed work request, if the queue pair failed by a completion
    cdef const char *broken          # the rule of the protocol broken by the server; NULL: none
    cdef bint given_up               # the server did not close a lane in time (`leave` with must_close)
    cdef bint watching               # on a software device: the channel watches the lifeline
    # lanes
    cdef pthread_mutex_t lock        # guards all that lanes share, from tx_credits on
    cdef readonly unsigned int users     # lanes with an owner; under the GIL, or the lock of _state.pxd
    cdef lane_table lanes
    cdef unsigned int unclosed       # lanes whose CLOSE could not be sent yet
    cdef unsigned int unanswered     # lanes without an owner, and not yet closed by the server
    cdef unsigned int heard          # messages received; also read without the lock
    cdef unsigned int heard_then     # `heard` when the wait for a CLOSE began without news from the server
    cdef int64_t waits_since         # now_ns() when that wait began
    cdef lane_state *send_lanes[SEND_BUFFERS]    # the lane of each send buffer's SEND; NULL: none
    # waiting
    cdef bint sleeping               # a thread sleeps for completions; a poll by another thread must wake it
    cdef uint32_t slept              # changes when the sleeping thread wakes up, if there are awaiters
    cdef unsigned int awaiters       # threads in await_sleeper
    cdef bint kicked                 # kick_fd is readable, and the sleeping thread clears it
    cdef lane_list followers         # owners asleep while another thread sleeps for all
    cdef wait_hints hints
    cdef bint hinted                 # `hints` is filled
    cdef object pool                 # regions for its lanes' values
    cdef object registered           # Registrations, or None
    cdef DirectMemory direct         # the server's items, or None
    # reads of items without a request (_reads.pxd)
    cdef object remote               # a RemoteMemory (api/_reads.pyx), or None
    cdef unsigned int reads          # READs under way
    cdef lane_state *reader          # the lane whose owner posted these READs; NULL: none
    cdef list leaving                # memory of lanes not closed by the server yet: Leaving of _rdma.pxd

    # set-up: the READYs of both ends; see the errors of `connect`
    cdef int start(self, int64_t deadline) except -1
    # messages: the caller holds the lock; _queue_pair.pyx describes each step
    cdef int post_message(self, uint8_t kind, lane_state *lane, size_t payload) noexcept nogil
    cdef char *data_buffer(self) noexcept nogil
    cdef int post_data(self, lane_state *lane, size_t payload) noexcept nogil
    cdef int push_locked(self, Stream stream, lane_state *lane) noexcept nogil
    cdef void send_closes(self) noexcept nogil
    cdef bint must_say(self, lane_state *lane) noexcept nogil
    cdef void return_credits(self, Stream stream, lane_state *lane) noexcept nogil
    cdef int take_data(self, Stream stream, lane_state *own, lane_state *lane, const char *data,
                       size_t length) noexcept nogil
    cdef int breaks(self, const char *rule) noexcept nogil
    cdef int use_again(self, unsigned int index) noexcept nogil
    cdef int take_message(self, Stream stream, lane_state *own, unsigned int index, size_t length) noexcept nogil
    cdef void take_sent(self, unsigned int index) noexcept nogil
    cdef int poll_locked(self, Stream stream, lane_state *own) noexcept nogil
    cdef int reap_locked(self, Stream stream, lane_state *lane, int polls) noexcept nogil    # the work of `reap`
    cdef void finish_lane(self, lane_state *lane) noexcept nogil
    cdef void wake_wanting(self) noexcept nogil
    # waiting
    cdef lane_want want_of(self, Stream stream, lane_state *lane, bint drains) noexcept nogil
    cdef bint can_have(self, lane_state *lane, lane_want want) noexcept nogil
    cdef int sleep(self, int64_t deadline) noexcept nogil
    cdef int sleep_soft(self, int timeout) noexcept nogil
    cdef int follow(self, lane_state *lane, lane_want want, int64_t deadline) noexcept nogil
    cdef bint is_silent(self) noexcept nogil
    # Marks the queue pair as failed; takes the lock. given_up: the reason is a server that did not close a lane;
    # ignored after an earlier failure.
    cdef void fail(self, bint given_up) noexcept
    cdef void await_sleeper(self) noexcept nogil
    cdef void await_close(self, lane_state *lane, int patience) noexcept nogil
    cdef void poll_beside_sleeper(self) noexcept nogil

    # The RdmaStream on a lane calls the methods below, except for add_lane and has_ended: these are steps of methods.
    # A new lane, with another user of the queue pair. Raises MemoryError; OSError if the queue pair has ended or the
    # server allows no more lanes.
    cdef lane_state *join(self) except NULL
    # `join` for a caller with the lock of _state.pxd.
    cdef lane_state *add_lane(self) except NULL
    # `ended` for a caller with the lock of _state.pxd.
    cdef bint has_ended(self) noexcept
    # Sends as much as goes without waiting. Sets *slept if the server slept on this host, and had to be woken up. 1, or
    # a negative errno.
    cdef int push(self, Stream stream, lane_state *lane, bint *slept) noexcept nogil
    # Whether every SEND of the lane has completed, and so has left this process.
    cdef bint all_sent(self, lane_state *lane) noexcept nogil
    # Takes the present completions, and gives their payload to the stream, or puts it into the inboxes of their lanes.
    # Polls `polls` times at most, until there are completions. Also returns credits, sends late CLOSEs, and wakes
    # owners. 1; 0: the queue pair has failed, or the lane is closed; a negative errno. Without a stream and lane (None,
    # NULL) all payload goes into inboxes.
    cdef int reap(self, Stream stream, lane_state *lane, int polls) noexcept nogil
    # Sleeps until something may have come for the lane, or the lane can go on sending. drains: also wakes when all
    # SENDs of the lane have left. deadline: now_ns(), or 0 for none. 1; 0: the queue pair has failed; a negative errno.
    cdef int wait(self, Stream stream, lane_state *lane, bint drains, int64_t deadline) noexcept nogil
    # Called by an owner that stops waiting. Wakes the next sleeping owner, if no thread sleeps for all: it then does.
    cdef void hand_over(self) noexcept nogil
    # The lane loses its owner, and ends. True: the server may still touch the lane's memory, which the caller keeps
    # until lane_is_closed. must_close: the caller cannot keep the memory. Then `leave` waits for the server, for
    # `patience` ms at most (-1: CLOSE_WAIT_MOST). The last user ends the queue pair instead of waiting, unless the
    # server is near: there the end stops no copy under way. Afterwards the caller releases or keeps the memory, and
    # only then takes 1 off `users`: the last user closes the queue pair.
    cdef bint leave(self, lane_state *lane, bint must_close, int patience) except -1
    # Called after `leave` returned True. True: the server has closed the lane, and the lane is freed.
    cdef bint lane_is_closed(self, lane_state *lane) noexcept
    # Why the connection has ended, as far as known. Waits up to a second, or `limit` ms (-1: the whole second), for the
    # server's last line with the reason.
    cdef str failure_text(self, lane_state *lane, int limit)
    # Ends the connection, and destroys the queue pair after waking the sleeping thread. Afterwards nobody can reach
    # this process's memory through the queue pair; but a near server finishes a copy under way.
    cdef void disconnect(self) noexcept
    # `disconnect`, and frees the rest, after the last user or a failed start. No registration with `pd` may be left.
    cdef void close(self) noexcept
