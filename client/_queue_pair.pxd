"""A connected queue pair to a server (docs/rdma-protocol.md): its messages and credits, its lanes, its end.

Above it are the RdmaStreams on its lanes, each with an owner: the thread that is in a call of it.

Progress is made by owners that wait: each polls (`reap`) for all, gives its stream what is its own, and puts the rest
into the inboxes of other lanes. One of them sleeps for all (`wait`) on the channel and the lifeline; the others sleep
until it, or who polls then, wakes them. The lock is held while something is posted or polled, and never while a
thread sleeps. In a forked child only `close` may be called, which leaves the parent's objects alone.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from rmemcached.client._direct cimport DirectMemory
from rmemcached.client._endpoint cimport RECEIVES_AT_A_TIME, SEND_BUFFERS, Endpoint
from rmemcached.client._lane cimport lane_list, lane_state, lane_table, lane_want
from rmemcached.client._stream cimport Stream
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.verbs cimport ibv_wc_status

# What the owners of lanes have learnt about waiting (Stream, RdmaStream). Hints, which threads may overwrite.
cdef struct wait_hints:
    int spin_score
    unsigned int spin_skipped
    unsigned int woken
    int64_t spin_pause
    int64_t spin_again
    int64_t woken_ns[2]


cdef class QueuePair(Endpoint):
    cdef unsigned int owed           # receives posted anew and not yet announced
    cdef uint16_t used[RECEIVES_AT_A_TIME]   # receives that are to be posted anew: used[:used_count]
    cdef unsigned int used_count
    cdef uint32_t rings              # how often the server had been woken up, as peer_slept last saw it
    cdef bint ready                  # READY has come
    cdef bint failed                 # the queue pair is of no use any more; also read without the lock
    cdef ibv_wc_status status        # why
    cdef const char *broken          # the rule of the protocol that the server has broken; NULL: none
    cdef bint given_up               # the server did not close a lane that had to be closed
    cdef bint watching               # on a software device: the channel watches the lifeline
    # lanes
    cdef pthread_mutex_t lock        # guards all that lanes share, from tx_credits on
    cdef readonly unsigned int users     # lanes with an owner; under the GIL, or the lock of _state.pxd
    cdef lane_table lanes
    cdef unsigned int unclosed       # lanes whose CLOSE could not be sent yet
    cdef unsigned int unanswered     # lanes without an owner that the server has not closed
    cdef unsigned int heard          # messages that have come (also read without the lock), and how many there were
    cdef unsigned int heard_then     # ... when a lane first waited for the server's CLOSE since,
    cdef int64_t waits_since         # ... which was at this time
    cdef lane_state *send_lanes[SEND_BUFFERS]    # whose SENDs these are; NULL: nobody's
    # waiting
    cdef bint sleeping               # a thread waits for completions: who polls meanwhile wakes it
    cdef uint32_t slept              # changes when it has woken up, if others wait for that:
    cdef unsigned int awaiters       # so many do
    cdef int kick_fd                 # an eventfd that wakes it
    cdef bint kicked                 # it is readable
    cdef lane_list followers         # owners that sleep meanwhile
    cdef wait_hints hints
    cdef bint hinted                 # there are some
    cdef object pool                 # regions for its lanes' values,
    cdef object registered           # objects that stay registered, or None, and
    cdef DirectMemory direct         # the server's items, or None
    # reads of items that ask nobody (_reads.pxd)
    cdef object remote               # what is known of its memory, or None
    cdef unsigned int reads          # under way,
    cdef lane_state *reader          # ... for the owner of this lane
    cdef list leaving                # memory of lanes that the server has not closed yet: RdmaStream's

    # set-up
    cdef int start(self, int64_t deadline) except -1
    # messages; all with the lock
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
    # As reap.
    cdef int reap_locked(self, Stream stream, lane_state *lane, int polls) noexcept nogil
    cdef void finish_lane(self, lane_state *lane) noexcept nogil
    cdef void wake_wanting(self) noexcept nogil
    # waiting
    cdef lane_want want_of(self, Stream stream, lane_state *lane, bint drains) noexcept nogil
    cdef bint can_have(self, lane_state *lane, lane_want want) noexcept nogil
    cdef int sleep(self, int64_t deadline) noexcept nogil
    cdef int sleep_soft(self, int timeout) noexcept nogil
    cdef int follow(self, lane_state *lane, lane_want want, int64_t deadline) noexcept nogil
    cdef bint is_silent(self) noexcept nogil
    # Marks it as of no use any more. given_up: because the server did not close a lane, unless it had failed before.
    cdef void fail(self, bint given_up) noexcept
    cdef void await_sleeper(self) noexcept nogil
    cdef void await_close(self, lane_state *lane, int patience) noexcept nogil
    cdef void poll_beside_sleeper(self) noexcept nogil

    # For the stream on a lane, and its owner.
    # A new lane. NULL: MemoryError or OSError.
    cdef lane_state *join(self) except NULL
    cdef lane_state *add_lane(self) except NULL
    cdef bint has_ended(self) noexcept
    # Sends what goes without waiting. *slept: whether the server slept on this host, and had to be woken up. 1, or a
    # negative errno.
    cdef int push(self, Stream stream, lane_state *lane, bint *slept) noexcept nogil
    # Whether every SEND of the lane has completed: has left this process.
    cdef bint all_sent(self, lane_state *lane) noexcept nogil
    # Takes the completions that there are, gives their payload to the stream or puts it into other lanes' inboxes.
    # It polls so often at most, until there is something. 1; 0: the queue pair has failed, or the lane is closed; a
    # negative errno. Both NULL until READY has come.
    cdef int reap(self, Stream stream, lane_state *lane, int polls) noexcept nogil
    # Sleeps until there may be something for the lane, or it can go on sending. drains: also until all that it has sent
    # has left. deadline: now_ns(), or 0 for none. 1; 0: the queue pair has failed; a negative errno.
    cdef int wait(self, Stream stream, lane_state *lane, bint drains, int64_t deadline) noexcept nogil
    # The owner does not wait any more: another takes its place.
    cdef void hand_over(self) noexcept nogil
    # The lane has no owner any more, and goes. True: the server may still touch its memory. That is kept until
    # lane_is_closed. must_close: it cannot be kept: the server is waited for, also on soft_shm, where the end of the
    # queue pair stops no copy that is under way, for `patience` ms at most (-1: as long as for any). The caller then
    # releases or keeps the memory, and takes one off `users`: not before, since the last one closes the queue pair.
    cdef bint leave(self, lane_state *lane, bint must_close, int patience) except -1
    cdef bint lane_is_closed(self, lane_state *lane) noexcept
    # Why the connection has ended, as far as known. Waits up to a second, or `limit` ms (-1: none), for the line in
    # which the server says it.
    cdef str failure_text(self, lane_state *lane, int limit)
    # Ends the connection: nobody can reach this process's memory through it any more.
    cdef void disconnect(self) noexcept
    # disconnect, and the rest. No registration with `pd` may be left.
    cdef void close(self) noexcept
