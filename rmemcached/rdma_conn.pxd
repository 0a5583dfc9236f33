"""A connection over RDMA: it agrees on a queue pair, serves its completions, and frees it (docs/rdma-protocol.md).

An rdma_thread is a worker's part of a device (rdma/device). It and its connections belong to that worker: functions
are called by the worker's thread, except where noted. The layer knows no sockets, and nothing of the server above it:
the server gives it the drive machine, and a function to call when a connection has failed.

The first part of this file is for the server. Behind it are the headers of the parts of this C unit, lowest first
(rdma/thread, rdma/messages, rdma/completions, rdma/queue, rdma/setup, rdma/lane_table, rdma/pins, rdma/lane,
rdma/lanes), and the
connection itself.
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
from rmemcached.sys.linux cimport pthread_mutex_t, sockaddr_in6
from rmemcached.verbs.soft cimport soft_qp_counters
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel, ibv_cq, ibv_mr, ibv_qp, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wc_status,
)

cdef struct rdma_thread
cdef struct rdma_conn
cdef struct rdma_lane

ctypedef conn_want (*drive_fn)(conn *c) noexcept nogil
# A connection's queue pair has failed. line, with \r\n, says why; NULL: the peer went away. The layer does not touch
# the connection afterwards, so that the function may call rdma_conn_stop.
ctypedef void (*rdma_failed_fn)(void *owner, const char *line) noexcept nogil

# What lanes need of the owner, for each lane is a connection: one constant table for each worker.
cdef struct rdma_lane_hooks:
    # Counts one more. False: there are as many connections as may be.
    bint (*admit)(void *owner) noexcept nogil
    # One that was admitted begins; c says which.
    void (*began)(void *owner, const conn *c) noexcept nogil
    # It ends; c.close_reason says why.
    void (*ended)(void *owner, const conn *c) noexcept nogil
    # The list of a connection's lanes is written under it by the worker, and read by others: see rdma_conn_lanes.
    pthread_mutex_t *lock

# --- a worker's part of a device ---
# number: the worker's, by which tokens name it. epfd: its epoll set. Descriptors of a software device's queue pairs are
# put there; their events have the bit SOFT_EVENT (verbs/soft.pxd) in their data and go to soft_channel_event. NULL:
# out of resources.
cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker, uint32_t number, int epfd, drive_fn drive,
                                     rdma_failed_fn failed, const rdma_lane_hooks *lanes) noexcept nogil
# Its connections have been destroyed.
cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil
# Of a device of the system: readable while there is something to serve. -1: a software device, see above.
cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil
# The descriptor is readable: takes the event.
cdef void rdma_thread_event(rdma_thread *t) noexcept nogil
# For a worker that is awake, or looks again and again before it sleeps: makes progress without a system call, and
# returns whether it did anything or there is something to serve. Of soft_iw only the epoll set tells.
cdef bint rdma_thread_poll(rdma_thread *t) noexcept nogil
# Whether rdma_thread_poll may find something that nothing else tells of.
cdef bint rdma_thread_polls(const rdma_thread *t) noexcept nogil
# Whether there is something to serve, as far as that is known without a look at a device of the system.
cdef bint rdma_thread_pending(const rdma_thread *t) noexcept nogil
# Called before the worker sleeps, and at no other time. True: there is something to do already, and it must not.
cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil
# Whether it has queue pairs whose transfers this process makes itself, and whether they had something to do in the last
# turn.
cdef bint rdma_thread_in_use(const rdma_thread *t) noexcept nogil
cdef bint rdma_thread_was_busy(const rdma_thread *t) noexcept nogil
# Begins a turn of the worker, before anything else of it: what its connections move in this turn, of
# values and messages, is about `work` octets. A device of the system copies nothing here, and takes no notice. True:
# the last turn was used up, so that there may be more to do.
cdef bint rdma_thread_begin_turn(rdma_thread *t, uint32_t work) noexcept nogil
# The worker's last call. Another thread may then destroy what is left.
cdef void rdma_thread_end_turns(rdma_thread *t) noexcept nogil
# Whether others are to be served before it in this turn, since it had more to do in the last one than a turn has.
cdef bint rdma_thread_gives_way(const rdma_thread *t) noexcept nogil
# An event of a software device has been taken, of this queue pair: its connection is served in this turn.
cdef void rdma_event_taken(ibv_qp *qp) noexcept nogil
# Serves what has completed, for a turn: each connection its share, and all together no more than a turn may last. now:
# now_ns() when it came, or 0 if nobody asks for rdma_thread_expected. limit: nanoseconds of the longest gap that is
# polled through. True: there is more, call again soon.
cdef bint rdma_thread_run(rdma_thread *t, int64_t now, int64_t limit) noexcept nogil
# Until when (now_ns()) the next request of one of the connections that the last rdma_thread_run has served is to be
# polled for, as their last gaps say; 0: it is not.
cdef int64_t rdma_thread_expected(const rdma_thread *t) noexcept nogil
# The worker has polled for a request on this device: counts the nanoseconds.
cdef void rdma_thread_polled(rdma_thread *t, int64_t ns) noexcept nogil

# Whether queue pairs are there whose READY has not come. If so, rdma_thread_end_late is to be called each second: it
# ends connections that have waited for longer than limits.ready_timeout, a few at a time. True: there are more.
cdef bint rdma_thread_waits(const rdma_thread *t) noexcept nogil
cdef bint rdma_thread_end_late(rdma_thread *t) noexcept nogil

# --- streams: of devices of the software provider ---
# data: the `received` bytes that were read from a socket, which begin like a request for a stream. 1: *worker is the
# number of the worker whose queue pair it is for, if there is such a worker; 0: the request is not whole; -1: it is
# none.
cdef int rdma_thread_route(rdma_thread *t, const char *data, size_t received, uint32_t *worker) noexcept nogil
# Gives the socket to the queue pair that a whole request names, or refuses and closes it. t: the part of the worker
# that rdma_thread_route has named.
cdef void rdma_thread_attach(rdma_thread *t, int fd, const char *data, size_t received) noexcept nogil
# Refuses what rdma_thread_route has no worker for, and closes the socket.
cdef void rdma_thread_refuse(rdma_thread *t, int fd, const char *data, size_t received) noexcept nogil

# --- connections ---
# Answers an exchange line that came over the lifeline sfd. threads: the worker's part of each transport's device, NULL
# where there is none; one at least is there. has_one: the lifeline has a queue pair already. Returns the new
# connection, or NULL; reply is the line to answer with.
cdef rdma_conn *rdma_exchange(rdma_thread **threads, void *owner, int sfd, bint has_one,
                              const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil
# Accepts or rejects a connection of rdma_cm, which has the descriptor cm_fd for itself. NULL: rejected, the caller
# closes cm_fd. Else the caller watches it: cm_ended tells of the connection's end.
cdef rdma_conn *rdma_cm_accept(rdma_thread **threads, void *owner, int cm_fd,
                               const rdma_request *request) noexcept nogil
cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil
# The address that a client of rdma_cm has connected to. Any thread.
cdef const sockaddr_in6 *rdma_cm_local(rdma_conn *rc) noexcept nogil
# Store time of the peer's last message, or of the last transfer that it has completed.
cdef uint32_t rdma_conn_last_active(rdma_conn *rc) noexcept nogil
# Whether the client has views of items, which it reads without a word.
cdef bint rdma_conn_has_views(const rdma_conn *rc) noexcept nogil
# Store time since when READs and WRITEs are under way of which none has completed. 0: none is under way.
cdef uint32_t rdma_conn_stalled_since(const rdma_conn *rc) noexcept nogil
# Calls `each` for every lane that is counted as a connection of its own, with its id. Any thread, with the lock of
# rdma_lane_hooks.
cdef void rdma_conn_lanes(const rdma_conn *rc, void (*each)(void *arg, const conn *c, uint32_t id) noexcept nogil,
                          void *arg) noexcept nogil
# Ends lanes of which nothing has been heard for longer than `seconds`. Returns how many. The store time of the one that
# has been silent for the longest goes into *oldest, if it is before.
cdef unsigned int rdma_conn_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil
# Makes sure that the peer is there: if it does not answer, the connection fails within seconds.
cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil
# The client has ended. What it has sent is done in as many turns of rdma_thread_run as it takes, without replies; then
# the connection fails without a line. The next turn is due soon.
cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil
# Destroys the queue pair: no RDMA touches an item after it returns, and nothing calls the owner but the hook of lanes
# that end. rdma_conn_free frees the rest, *lanes of its lanes at most, and
# takes them off; it is to be called until it returns True.
cdef void rdma_conn_stop(rdma_conn *rc) noexcept nogil
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
    int sfd                      # of the lifeline, for log lines; of rdma_cm's descriptor where there is none
    bint by_cm                   # connected through rdma_cm: there is no lifeline
    bint ready                   # READY has come
    uint32_t psn                 # of the first packet that it sends; not over rdma_cm, which has its own
    uint32_t last_active         # store time of the peer's last message, or of the last transfer that has completed
    rdma_pace pace
    sockaddr_in6 local           # if by_cm: where
    # rdma/setup's
    uint8_t token[RDMA_TOKEN_LENGTH]
    bint in_setup                # in the list of those whose READY has not come
    bint streamless              # in the table of those that wait for their stream
    bint direct                  # the client can read the items' memory itself,
    bint given                   # ... and has got it
    bint remote                  # its queue pair can READ it
    uint32_t setup_since         # store time of the exchange
    rdma_conn *setup_prev
    rdma_conn *setup_next
    rdma_conn *streamless_next
    # rdma/lane's
    uint32_t lane_bytes          # bytes of payload that the client keeps for a lane
    lane_table table             # by id
    rdma_lane *first_lane        # of all that are connections. Written under t.lanes.lock
    lane_list runnable           # those that gave way,
    lane_list want_send          # ... and those that have output which could not be posted
    lane_list want_write         # ... or a value that could not
    lane_list want_read          # those whose payload could not be asked for
    lane_list want_room          # those whose client keeps all that it has promised to keep
    lane_close *first_close      # CLOSE messages that wait
    lane_close *last_close
    int64_t turn_left            # commands that lanes may do in this turn; negative: they have done more
    unsigned int pins            # of all lanes
    bint lost                    # the peer is gone; what it has sent is done before the connection is given up
    uint32_t turn                # the turn, by rdma_thread.turn, that turn_left and completions_left are of
    unsigned int completions_left    # that it takes in this turn
    # rdma/completions'
    bint entered                 # it is in t.numbers
    uint32_t number              # of the queue pair
    rdma_conn *number_next
    uint32_t nkept               # completions that it has not taken
    uint32_t first_kept          # the oldest of them; the others are linked
    uint32_t last_kept
    # rdma/thread's
    bint listed                  # it is in t.ready
    rdma_conn *ready_next
    rdma_conn *ready_prev
