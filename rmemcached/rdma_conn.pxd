"""A connection over RDMA: it agrees on a queue pair, serves its completions, and frees it (docs/rdma-protocol.md).

An rdma_thread is a worker's part of a device (rdma/device). It and its connections belong to that worker: functions
are called by the worker's thread, except where noted. The layer knows no sockets, and nothing of the server above it:
the server gives it the drive machine, and a function to call when a connection has failed.

The first part of this file is for the server. Behind it are the headers of the parts of this C unit, lowest first
(rdma/thread, rdma/queue, rdma/lane), and the connection itself.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.protocol.conn cimport conn, conn_thread, conn_want
from rmemcached.rdma.cm cimport rdma_request
from rmemcached.rdma.device cimport (
    BULK_DEPTH, BULK_SGES, SEND_BUFFERS, SEND_DEPTH, counter_entry, pair_entry, rdma_counters, rdma_device,
)
from rmemcached.rdma.wire cimport RDMA_LANES
from rmemcached.store.store cimport item
from rmemcached.sys.linux cimport sockaddr_in6
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel, ibv_cq, ibv_mr, ibv_qp, ibv_send_wr, ibv_sge, ibv_wc_status,
)

cdef struct rdma_thread
cdef struct rdma_conn
cdef struct rdma_lane

ctypedef conn_want (*drive_fn)(conn *c) noexcept nogil
# A connection's queue pair has failed. line, with \r\n, says why; NULL: the peer went away. The layer does not touch
# the connection afterwards, so that the function may call rdma_conn_destroy.
ctypedef void (*rdma_failed_fn)(void *owner, const char *line) noexcept nogil

# --- a worker's part of a device ---
# NULL: out of resources.
cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker, drive_fn drive,
                                     rdma_failed_fn failed) noexcept nogil
# Its connections have been destroyed.
cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil
# Readable while there is something to serve.
cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil
# For a worker that looks again and again before it sleeps. poll makes progress, and returns whether there is something
# to serve; readable: the descriptor was. Once it has been called, the worker may sleep on the descriptor only when arm
# has returned false. Only soft_shm needs this: for other transports both return false.
cdef bint rdma_thread_poll(rdma_thread *t, bint readable) noexcept nogil
cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil
# Serves what has completed. True: lanes gave way after reqs_per_event commands, call again soon.
cdef bint rdma_thread_run(rdma_thread *t) noexcept nogil

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
# Store time of the last command that any of its lanes did.
cdef uint32_t rdma_conn_last_cmd(rdma_conn *rc) noexcept nogil
# Makes sure that the peer is there: if it does not answer, the connection fails within seconds.
cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil
# Serves what has come so far, before the connection is ended. May end it by itself.
cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil
# Frees the queue pair and all that belongs to the connection. No RDMA touches an item after it returns.
cdef void rdma_conn_destroy(rdma_conn *rc) noexcept nogil


# ---- this C unit only ------------------------------------------------------------------------------------------------

include "rdma/thread.pxd"
include "rdma/queue.pxd"
include "rdma/lane.pxd"

cdef struct rdma_conn:
    rdma_queue q
    pair_entry pair              # in the device's table
    void *owner
    int sfd                      # of the lifeline, for log lines; of rdma_cm's descriptor where there is none
    bint by_cm                   # connected through rdma_cm: there is no lifeline
    bint ready                   # READY has come
    sockaddr_in6 local           # if by_cm: where
    # rdma/lane's
    rdma_lane *lanes[RDMA_LANES]
    uint64_t live                # a bit for each lane that exists
    uint64_t blocked             # ... that has output which could not be posted
    uint64_t runnable            # ... that gave way
    uint32_t last_cmd_time       # of any of them
    # rdma/thread's
    bint yielding                # it is in t.yielded
    rdma_conn *yield_next
    rdma_conn *yield_prev
