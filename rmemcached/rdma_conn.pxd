"""A connection over RDMA: makes a queue pair, serves its completions, and frees it (docs/rdma-protocol.md).

An rdma_thread is a worker's part of a device (rdma/device). The part and its connections belong to the worker: the
worker's thread calls the functions, except where noted. The layer knows no sockets, and nothing of the server above:
the server passes the drive machine, and a function to call when a connection has failed.

Failures in this layer and in rmemcached/rdma: a `bint` is False, a pointer NULL; an int is 0 or an errno value. A
function with the argument `why` writes the reason there, in one line, and a function with the argument `reply` the
line for the client. Exceptions: a descriptor is -1; a parser of a stream's request returns 1 (whole), 0 (more octets
are needed) or -1 (no request); a parser of an exchange returns NULL, or the fault. A failed queue pair is marked
(queue_fail), and reported at the end of its service (rdma_failed_fn).

The first part of this file is for the server. The headers of the parts of this C unit follow, each after the
headers whose structures it contains (rdma/pace, rdma/messages, rdma/thread, rdma/completions, rdma/queue, rdma/setup,
rdma/lane_table, rdma/pins, rdma/lane, rdma/lanes), and then the connection itself.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.protocol.conn cimport conn, conn_thread, conn_want
from rmemcached.rdma.cm cimport rdma_request
from rmemcached.rdma.device cimport (
    BULK_DEPTH, BULK_SGES, RDMA_LANE_BYTES, SEND_BUFFERS, SEND_DEPTH, counter_entry, rdma_counters, rdma_device,
)
from rmemcached.rdma.wire cimport RDMA_TOKEN_LENGTH, message_header
from rmemcached.store.store cimport item
from rmemcached.streams.stream cimport stream
from rmemcached.streams.tls cimport tls_context
from rmemcached.sys.linux cimport pthread_mutex_t, sockaddr_in6
from rmemcached.verbs.soft cimport soft_qp_counters
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel, ibv_cq, ibv_mr, ibv_qp, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wc_status,
)

cdef struct rdma_thread
cdef struct rdma_conn
cdef struct rdma_lane
cdef struct kept_completion

# drive_machine (rmemcached/drive_machine.pxd).
ctypedef conn_want (*drive_fn)(conn *c) noexcept nogil
# A connection's queue pair has failed. line: the reason, with \r\n; NULL: the peer went away. The layer does not touch
# the connection afterwards, so the function may call rdma_conn_stop.
ctypedef void (*rdma_failed_fn)(void *owner, const char *line) noexcept nogil

# The owner's functions for lanes, since each lane is a connection: a constant table for each worker.
cdef struct rdma_lane_hooks:
    # Counts a further connection. False: the limit of connections is reached.
    bint (*admit)(void *owner) noexcept nogil
    # The admitted lane c begins.
    void (*began)(void *owner, const conn *c) noexcept nogil
    # The lane c ends, for c.close_reason.
    void (*ended)(void *owner, const conn *c) noexcept nogil
    # The worker writes the list of a connection's lanes under this lock; any thread reads the list: see
    # rdma_conn_lanes.
    pthread_mutex_t *lock

# --- a worker's part of a device ---
# Makes the part. number: the worker's number, for tokens. epfd: the worker's epoll set, with the descriptors of a
# software device's queue pairs; their events have the bit SOFT_EVENT (verbs/soft.pxd) in their data and go to
# soft_channel_event. NULL: out of resources.
cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker, uint32_t number, int epfd, drive_fn drive,
                                     rdma_failed_fn failed, const rdma_lane_hooks *lanes) noexcept nogil
# Frees the part, after the end of its connections. In the worker's thread, or after the thread's end in another.
cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil
# The descriptor of completions of a device of the system: readable while completions are to be served. -1: a software
# device, see above.
cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil
# The descriptor is readable: takes the event.
cdef void rdma_thread_event(rdma_thread *t) noexcept nogil
# Makes progress without a system call, for an awake or polling worker. True: the call has done something, or there is
# something to serve. Work on soft_iw shows in the epoll set only.
cdef bint rdma_thread_poll(rdma_thread *t) noexcept nogil
# Whether rdma_thread_poll may find work that shows nowhere else.
cdef bint rdma_thread_polls(const rdma_thread *t) noexcept nogil
# Whether there is something to serve, as far as known without a look at a device of the system.
cdef bint rdma_thread_pending(const rdma_thread *t) noexcept nogil
# Called before the worker sleeps, and at no other time. True: there is something to do already, and the worker must not
# sleep.
cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil
# Whether there are queue pairs with transfers made by this process (rdma_device.soft).
cdef bint rdma_thread_in_use(const rdma_thread *t) noexcept nogil
# Whether these queue pairs had something to do in the last turn.
cdef bint rdma_thread_was_busy(const rdma_thread *t) noexcept nogil
# The first call of a worker's turn: its connections may move about `work` octets of values and messages in this turn. A
# device of the system copies nothing in this process, and ignores `work`. True: the last turn was used up, so there may
# be more to do.
cdef bint rdma_thread_begin_turn(rdma_thread *t, uint32_t work) noexcept nogil
# The worker's last call. Another thread may then destroy the worker's part.
cdef void rdma_thread_end_turns(rdma_thread *t) noexcept nogil
# Whether the other devices come first in this turn, since this device has used up the last turn.
cdef bint rdma_thread_gives_way(const rdma_thread *t) noexcept nogil
# The worker has taken an event of this queue pair of a software device: its connection is served in this turn.
cdef void rdma_event_taken(ibv_qp *qp) noexcept nogil
# Serves completions for a turn: each connection its share, and all together no longer than a turn. now: now_ns() at the
# arrival of the work, or 0 if nobody asks for rdma_thread_expected. limit: nanoseconds of the longest gap to poll
# through. True: there is more, call again soon.
cdef bint rdma_thread_run(rdma_thread *t, int64_t now, int64_t limit) noexcept nogil
# Until when (now_ns()) to poll for the next request of the connections served in the last rdma_thread_run, by their
# last gaps; 0: do not poll.
cdef int64_t rdma_thread_expected(const rdma_thread *t) noexcept nogil
# The worker has polled for a request on this device: counts the nanoseconds.
cdef void rdma_thread_polled(rdma_thread *t, int64_t ns) noexcept nogil

# Whether there are queue pairs without READY. If so, the worker calls rdma_thread_end_late each second.
cdef bint rdma_thread_waits(const rdma_thread *t) noexcept nogil
# Ends connections without READY for longer than limits.ready_timeout, a few at a time. True: there are more, and
# the next call is due in the next turn.
cdef bint rdma_thread_end_late(rdma_thread *t) noexcept nogil

# --- streams: of transports with a second connection ---
# Reads a request for a stream, and finds the worker of its queue pair. data: the bytes received from a socket so far;
# their beginning looks like a request. Returns
#  1: the request is whole. *worker is the number in the request, and the caller checks whether a worker has it;
#  0: the request is not whole yet;
# -1: the data is no request.
cdef int rdma_thread_route(rdma_thread *t, const char *data, size_t received, uint32_t *worker) noexcept nogil
# Gives the stream to the queue pair of a whole request, or refuses the request and ends the stream. t: the part of
# the worker found by rdma_thread_route.
cdef void rdma_thread_attach(rdma_thread *t, stream *s, const char *data, size_t received) noexcept nogil
# Refuses a request without a worker, and ends the stream.
cdef void rdma_thread_refuse(rdma_thread *t, stream *s, const char *data, size_t received) noexcept nogil

# --- connections ---
# Answers an exchange line, received from the socket sfd of a lifeline.
# - threads: the worker's parts of the devices, an array by transport; NULL for a transport without a device. The caller
#   has checked that the array has a part.
# - owner: the lifeline's connection, for rdma_failed_fn and rdma_lane_hooks.
# - has_one: the lifeline has a queue pair already.
# - tls: of the lifeline; NULL: the lifeline has no TLS. With TLS nothing leaves the host outside of TLS, unless
#   cleartext.
# - line, reply: as in conn_engine.exchange. The line of the answer is written to reply, also the line of a refusal.
# Returns the new connection. NULL: the request is refused.
# Parameters: line and reply, with their sizes, are those of conn_engine.exchange; the others are of the lifeline.
cdef rdma_conn *rdma_exchange(rdma_thread **threads, void *owner, int sfd, bint has_one, const tls_context *tls,
                              bint cleartext, const char *line, size_t length, char *reply,
                              size_t reply_size) noexcept nogil
# Accepts or rejects a connection of rdma_cm with a descriptor cm_fd of its own. threads and owner: as in rdma_exchange,
# but owner is the worker's connection for cm_fd. NULL: rejected, the caller closes cm_fd. Otherwise the caller watches
# cm_fd: cm_ended reports the connection's end.
cdef rdma_conn *rdma_cm_accept(rdma_thread **threads, void *owner, int cm_fd,
                               const rdma_request *request) noexcept nogil
# The part of a device to which the connection belongs.
cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil
# The server's address of a connection through rdma_cm. Any thread.
cdef const sockaddr_in6 *rdma_cm_local(rdma_conn *rc) noexcept nogil
# Store time of the peer's last message, or of the last completed transfer.
cdef uint32_t rdma_conn_last_active(rdma_conn *rc) noexcept nogil
# Whether the client has views of items, and so reads items without messages.
cdef bint rdma_conn_has_views(const rdma_conn *rc) noexcept nogil
# Store time since when READs and WRITEs are under way and none has completed. 0: none is under way.
cdef uint32_t rdma_conn_stalled_since(const rdma_conn *rc) noexcept nogil
# Calls `each` with the id of every lane counted as a connection of its own. Any thread, with the lock of
# rdma_lane_hooks.
cdef void rdma_conn_lanes(const rdma_conn *rc, void (*each)(void *arg, const conn *c, uint32_t id) noexcept nogil,
                          void *arg) noexcept nogil
# Ends lanes silent for longer than `seconds`. Returns their number. Lowers *oldest to the store time of the longest
# silent lane left.
cdef unsigned int rdma_conn_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil
# Probes the peer: without an answer the connection fails within seconds.
cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil
# The client has ended. Its earlier commands are done in as many turns of rdma_thread_run as necessary, without replies;
# then the connection fails without a line. The next turn is due soon.
cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil
# Destroys the queue pair: afterwards no RDMA touches an item, and of the owner's functions only rdma_lane_hooks.ended
# is called.
cdef void rdma_conn_stop(rdma_conn *rc) noexcept nogil
# Frees the rest, after rdma_conn_stop: at most *lanes lanes, whose number the call subtracts from *lanes. False: lanes
# are left, and the caller repeats the call in a later turn.
cdef bint rdma_conn_free(rdma_conn *rc, unsigned int *lanes) noexcept nogil


# ---- this C unit only ------------------------------------------------------------------------------------------------

include "rdma/pace.pxd"
include "rdma/messages.pxd"
include "rdma/thread.pxd"
include "rdma/completions.pxd"
include "rdma/queue.pxd"
include "rdma/setup.pxd"
include "rdma/lane_table.pxd"
include "rdma/pins.pxd"
include "rdma/lane.pxd"
include "rdma/lanes.pxd"

cdef struct rdma_conn:
    rdma_queue q
    void *owner
    int sfd                      # the lifeline's descriptor, for log lines; without a lifeline, rdma_cm's descriptor
    bint by_cm                   # connected through rdma_cm, without a lifeline
    bint ready                   # READY has come
    uint32_t psn                 # number of this end's first packet; rdma_cm chooses a number of its own
    uint32_t last_active         # store time of the peer's last message, or of the last completed transfer
    rdma_pace pace
    sockaddr_in6 local           # if by_cm: the server's address
    # fields of rdma/setup
    uint8_t token[RDMA_TOKEN_LENGTH]
    bint in_setup                # in the list of connections without READY
    bint streamless              # in the table of connections without a stream
    bint covered                 # the stream must have TLS, since the lifeline has it
    bint direct                  # the client can read the items' memory itself
    bint given                   # the client has got the memory
    bint remote                  # the client's queue pair can READ the memory
    uint32_t setup_since         # store time of the exchange
    rdma_conn *setup_prev
    rdma_conn *setup_next
    rdma_conn *streamless_next
    # fields of rdma/lane
    uint32_t lane_bytes          # bytes of payload that the client keeps for a lane
    lane_table table             # by id
    rdma_lane *first_lane        # of all lanes. Written under t.lanes.lock
    lane_list runnable           # lanes in each lane_place
    lane_list want_send
    lane_list want_write
    lane_list want_read
    lane_list want_room
    lane_list want_result
    lane_close *first_close      # waiting CLOSE messages
    lane_close *last_close
    int64_t turn_left            # commands left for lanes in this turn; negative: the lanes have done more
    unsigned int pins            # items with views of the client, of all lanes
    bint lost                    # the peer is gone; its earlier commands are done before the connection is given up
    uint32_t turn                # the turn (rdma_thread.turn) of turn_left and completions_left
    unsigned int completions_left    # completions left for the connection in this turn
    # fields of rdma/completions
    bint entered                 # the connection is in t.numbers
    uint32_t number              # of the queue pair
    rdma_conn *number_next
    uint32_t nkept               # completions in t.kept
    uint32_t first_kept          # the oldest; the next are linked
    uint32_t last_kept
    # fields of rdma/thread
    bint listed                  # the connection is in t.ready
    rdma_conn *ready_next
    rdma_conn *ready_prev
