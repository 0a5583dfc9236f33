"""Worker threads and the epoll engine that feeds the drive machine from sockets."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rmemcached.sys.linux cimport pthread_cond_t, pthread_mutex_t, pthread_t
from rmemcached.logger cimport log_peer
from rmemcached.protocol.conn cimport conn, conn_thread, protocol
from rmemcached.rdma.wire cimport rdma_transport
from rmemcached.rdma_conn cimport RDMA_DEVICES, rdma_conn, rdma_device, rdma_request, rdma_thread
from rmemcached.server.dumps cimport dumps
from rmemcached.server.udp cimport udp_socket
from rmemcached.server.watchers cimport watchers

cdef enum:
    READ_BUFFER_SIZE = 32768     # one per worker, lent to the connection that is being read
    BULK_READ_SIZE = 2048        # what is asked for where a payload larger than that buffer is expected behind a line
    MAX_EVENTS = 128
    IOV_BATCH = 128

cdef enum connection_flags:
    CONNECTION_FRESH = 1         # no byte has been read yet
    CONNECTION_STREAM = 2        # its bytes are an MPA request so far
    CONNECTION_RUNNABLE = 4      # in the worker's run queue
    CONNECTION_BLOCKED = 8       # output waits for the socket; nothing is read meanwhile
    CONNECTION_CLOSING = 16      # to be closed when its output has left
    CONNECTION_STREAM_ONLY = 64  # came where only streams of queue pairs do
    CONNECTION_LENT = 32         # a side thread has the socket; the worker touches nothing but this structure
    CONNECTION_CM = 128          # of rdma_cm: there is no socket, its descriptor tells of its end

# One accepted socket, or connection of rdma_cm. Owned by its worker; only the worker touches it, except where noted.
cdef struct connection:
    conn c                       # first: the engine's functions get a conn * and cast
    worker *w
    rdma_conn *rdma              # the queue pair whose lifeline this is, or that came through rdma_cm
    connection *prev             # the worker's list of all connections
    connection *next
    connection *run_next
    char *rbuf                   # holds unparsed bytes between reads; NULL most of the time
    uint32_t rsize
    int fd                       # -1: closed, waits to be freed at the end of the turn
    uint32_t events              # epoll interest
    uint32_t opened              # store time of the accept
    uint32_t probed              # ... of the last look whether the peer of rdma_cm is there
    bint bulk                    # its last payload was larger than the read buffer: the next may be, too
    log_peer peer
    # written by the side thread that gives it back
    char *rest                   # malloc'd: what the side thread left to be sent. NULL most of the time
    uint32_t rest_length
    bint ended_by_side           # it is to be closed
    uint8_t flags

# A socket on its way from the listener to a worker.
cdef struct handover:
    handover *next
    int fd
    protocol prot
    bint stream_only
    log_peer peer
    bint by_cm                   # fd is a descriptor of rdma_cm with the connection that `request` is about
    rdma_request request

# A device is to be taken in or given up by all workers.
cdef struct worker_change:
    # constant
    rdma_transport transport
    rdma_device *device          # NULL: give up the one there is
    const char *line             # what is then said on the lifelines
    # under lock
    pthread_mutex_t lock
    pthread_cond_t done          # pending has become 0
    unsigned int pending         # workers that have not done it yet

cdef struct worker:
    conn_thread thread           # first. Owned by the worker; its statistics are read by others
    # set before the thread starts, then constant
    pthread_t id
    int epfd
    int notify_fd                # eventfd: something is in `queue`, `given_back` or `change`, or `stop` is set
    watchers *watchers           # whom a connection is lent to
    dumps *dumps
    rdma_device **devices        # the server's, by transport; of those that can go the worker uses its part in `rdma`
    unsigned int idle_timeout    # seconds of silence after which a TCP connection is closed; 0: never
    unsigned int napi_id         # the listener's: connections of this receive queue are for this worker
    uint64_t *curr_connections   # atomic; shared by all workers and the listener
    uint64_t *stop               # atomic
    uint64_t spin_max            # ns; 0: never poll
    # under queue_lock
    pthread_mutex_t queue_lock
    handover *queue_head
    handover **queue_tail
    connection *given_back       # by side threads; linked by run_next, which a lent connection has no other use for
    worker_change *change        # not begun yet
    # the links of `connections` are written under list_lock by the worker, and read by others under it
    pthread_mutex_t list_lock
    connection *connections
    # the worker's own
    char *rbuf
    udp_socket *udp
    connection *run_head
    connection **run_tail
    connection *dead
    rdma_thread *rdma[RDMA_DEVICES]   # its part of each device; NULL: there is no such device
    unsigned int nstreams        # connections with CONNECTION_STREAM
    unsigned int ncm             # connections with CONNECTION_CM
    uint32_t probes_due          # store time when silent ones are next looked for
    uint32_t streams_checked     # store time when slow ones were last looked for
    uint32_t idle_due            # store time when a connection may have been idle for too long
    unsigned int rdma_runnable   # bit per device: some of its streams gave way
    bint rdma_recent             # RDMA work was done since the last sleep
    uint64_t spin_until          # polls instead of sleeping until then (CLOCK_MONOTONIC, ns); 0: not spinning
    uint64_t spin_ns             # how long it lately paid to

cdef int worker_init(worker *w) noexcept nogil
cdef int worker_add_udp(worker *w, int fd) noexcept nogil
cdef int worker_start(worker *w) noexcept nogil
# stream_only: nothing but the stream of a queue pair is taken from it.
cdef int worker_dispatch(worker *w, int fd, protocol prot, const log_peer *peer, bint stream_only) noexcept nogil
# Hands a connection of rdma_cm over, which is alone on the descriptor fd; the worker accepts or rejects it. As above.
cdef int worker_dispatch_cm(worker *w, int fd, const rdma_request *request) noexcept nogil
# A side thread is done with a connection that was lent to it. ended: it is to be closed; else `rest` (malloc'd, may be
# NULL), which becomes the connection's, is still to be sent.
cdef void worker_give_back(connection *cn, bint ended, char *rest, size_t length) noexcept nogil
# Asks a running worker for a change; one at a time. Any thread.
cdef void worker_change_device(worker *w, worker_change *change) noexcept nogil
cdef void worker_wake(worker *w) noexcept nogil
cdef void worker_destroy(worker *w) noexcept nogil
# rdma_failed_fn: owner is a connection
cdef void connection_rdma_failed(void *owner, const char *line) noexcept nogil
