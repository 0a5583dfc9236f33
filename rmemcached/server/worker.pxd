"""Worker threads and the epoll engine, which feeds the drive machine from sockets.

A worker is a thread with its connections. The listener, the devices' thread and the side threads reach the worker
through a queue and an eventfd; nobody else touches its connections.

The first part of this file is for the rest of the server. The worker is one C unit, for the path recv -> drive_machine
-> sendmsg; its parts are in worker/, and each has a header, included below.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from rmemcached.sys.linux cimport epoll_event, pthread_cond_t, pthread_mutex_t, pthread_t
from rmemcached.sys.pause cimport polling_pause
from rmemcached.logger cimport close_reasons, log_peer
from rmemcached.protocol.conn cimport conn, conn_engine, conn_thread, protocol, resp_wait, sasl_session
from rmemcached.rdma.cm cimport rdma_request
from rmemcached.rdma.device cimport RDMA_DEVICES, rdma_device
from rmemcached.rdma.wire cimport rdma_transport
from rmemcached.rdma_conn cimport rdma_conn, rdma_lane_hooks, rdma_thread
from rmemcached.server.dumps cimport dumps
from rmemcached.server.handshakes cimport handshakes
from rmemcached.server.udp cimport UDP_TAG, udp_socket
from rmemcached.server.watchers cimport watchers
from rmemcached.streams.stream cimport stream
from rmemcached.streams.tls cimport tls_context, tls_mode
from rmemcached.verbs.soft cimport SOFT_EVENT

cdef enum:
    READ_BUFFER_SIZE = 32768     # of each worker, lent to the connection being read
    READ_AHEAD = 8               # sockets read before the first is answered, at most
    READ_AHEAD_SIZE = 4032       # bytes for each socket; with a power of two, all would share a set of the CPU's cache
    READ_BUFFERS_SIZE = READ_BUFFER_SIZE + READ_AHEAD * READ_AHEAD_SIZE

cdef struct worker               # complete in worker/layout.pxd, as are the next two
cdef struct connection
cdef struct device_change

# --- the main thread, before the worker's start and after its join ---
# Makes the descriptors and buffers; the caller has set the fields marked so in layout.pxd. False: errno.
cdef bint worker_init(worker *w) noexcept nogil
# Gives the worker a UDP socket, closed at the worker's end. False (errno): fd is still the caller's.
cdef bint worker_add_udp(worker *w, int fd) noexcept nogil
# Starts the thread. 0 or an errno value.
cdef int worker_start(worker *w) noexcept nogil
# Ends all connections and frees everything. Also after worker_init has failed.
cdef void worker_destroy(worker *w) noexcept nogil

# --- any thread ---
# Hands over an accepted, non-blocking socket for the protocol prot. stream_only: the socket may only ask to be the
# transport stream of a queue pair. tls: of its listening socket. False: out of memory, fd is still the caller's.
cdef bint worker_dispatch(worker *w, int fd, protocol prot, const log_peer *peer, bint stream_only,
                          tls_mode tls) noexcept nogil
# Hands over a connection of rdma_cm, alone on the descriptor fd. The worker accepts or rejects the connection. False:
# out of memory, fd is still the caller's.
cdef bint worker_dispatch_cm(worker *w, int fd, const rdma_request *request) noexcept nogil
# Hands over a connection's stream, which has brought a whole request for the stream of a queue pair of this worker.
# False: out of memory, *s is still the caller's.
cdef bint worker_dispatch_stream(worker *w, stream *s, rdma_transport transport, const char *request,
                                 size_t length) noexcept nogil
# Asks a running worker to take a device or to give its device up. One change at a time; the worker counts `pending`
# down.
cdef void worker_change_device(worker *w, device_change *change) noexcept nogil
# Ends epoll_wait: the worker looks at its queue and at `stop`.
cdef void worker_wake(worker *w) noexcept nogil

# --- the side thread with the connection ---
# dump_release_fn and watcher_release_fn: gives the lent connection `owner` back to its worker. ended: the worker is to
# close the connection; else `rest` (malloc'd, may be NULL), now the connection's, is still to be sent.
cdef void worker_give_back(void *owner, bint ended, char *rest, size_t length) noexcept nogil

# sasl_deliver_fn: gives an authentication back to the worker of its connection.
cdef void worker_deliver(sasl_session *session) noexcept nogil
# --- a thread of the pool for handshakes ---
# handshake_done_fn: gives the connection `owner` back to its worker.
cdef void worker_handshake_done(void *owner) noexcept nogil

# --- the worker's thread ---
# rdma_failed_fn: the queue pair of `owner`, a connection, has failed. Tells the client the line, if not NULL, and ends
# the connection.
cdef void connection_rdma_failed(void *owner, const char *line) noexcept nogil

include "worker/source.pxd"
include "worker/polling.pxd"
include "worker/rdma.pxd"
include "worker/layout.pxd"
include "worker/events.pxd"
include "worker/connection.pxd"
include "worker/socket_io.pxd"
include "worker/stream.pxd"
include "worker/handshake.pxd"
include "worker/engine.pxd"
include "worker/handover.pxd"
include "worker/lanes.pxd"
include "worker/timeouts.pxd"
include "worker/loop.pxd"
