# The structures of a worker, and the thread or lock that owns each field. There are two locks, and no thread holds
# both: queue_lock guards the handovers to the worker; list_lock lets any thread read the list of connections.

cdef enum:
    IOV_MOST = 1024              # pieces of output in a sendmsg, at most: Linux's IOV_MAX
    IOV_PAYLOAD = 128            # pieces of a payload in a readv, at most
    LANES_PER_TURN = 64          # lanes ended in a turn, with their queue pairs

cdef enum connection_flags:
    CONNECTION_FRESH = 1         # no byte has been read yet
    CONNECTION_STREAM = 2        # the input so far begins a stream request (worker/stream)
    CONNECTION_RUNNABLE = 4      # in a run_queue; nothing is read meanwhile
    CONNECTION_BLOCKED = 8       # output waits for room in the socket; nothing is read meanwhile
    CONNECTION_CLOSING = 16      # closed when its output has left
    CONNECTION_LENT = 32         # a side thread has the socket; the worker touches nothing but this structure
    CONNECTION_STREAM_ONLY = 64  # from a listener for stream requests only
    CONNECTION_CM = 128          # of rdma_cm: no socket; the descriptor becomes readable at the connection's end
    CONNECTION_HANDSHAKE = 256   # the TLS handshake is not done: nothing is read or written (worker/handshake)
    CONNECTION_WAITS = 512       # a reply waits for its result (protocol/conn.pxd); nothing is read meanwhile

# An accepted socket, or a connection of rdma_cm. Its worker's alone, except for the last group.
cdef struct connection:
    conn c                       # first: the engine's functions get a conn * and cast the pointer
    worker *w
    rdma_conn *rdma              # the queue pair of this lifeline, or of this connection of rdma_cm
    rdma_conn *ending            # ... after the connection's end, as long as lanes are left
    connection *prev             # the worker's list of all connections
    connection *next
    connection *run_next         # in a run_queue, or the worker's given_back
    char *rbuf                   # holds unparsed bytes between reads; NULL most of the time
    uint32_t rsize
    stream stream                # its fd is -1 after the end; the structure is freed at the end of the turn
    uint32_t events              # epoll interest
    uint32_t opened              # store time of the accept
    uint32_t probed              # ... of the last probe of an rdma_cm peer
    uint32_t moved               # ... when the peer last sent a part of a payload or took a part of a reply, if seen
    int untaken                  # bytes in the socket for the peer at the last look; 0: not known
    log_peer peer
    uint16_t flags
    # bool
    uint8_t bulk                 # its last payload was larger than the read buffer: the next may be, too
    uint8_t long_replies         # its last output was longer than TURN_LEAST: the next reply may be as long
    uint8_t long_input           # the last read was as long as a read ahead may be: do not read ahead
    uint8_t ahead                # read_ahead has read its input; connection_run_ahead goes on
    # written by the side thread before it gives the connection back
    uint8_t ended_by_side        # bool: the worker is to close the connection
    uint32_t rest_length
    char *rest                   # malloc'd: output left by the side thread. NULL most of the time

# Connections to be served without an event, first in, first out.
cdef struct run_queue:
    connection *head
    connection *tail             # if there is a head

cdef enum handover_kind:
    HANDOVER_SOCKET              # an accepted socket
    HANDOVER_CM                  # fd is a descriptor of rdma_cm with the connection of `request`
    HANDOVER_STREAM              # fd asks for the stream of a queue pair of this worker

# A socket on its way to a worker. The worker's from the queue on.
cdef struct handover:
    handover *next
    handover_kind kind
    int fd                       # of a stream: in `stream`
    protocol prot                # of a socket, or a connection of rdma_cm
    log_peer peer
    bint stream_only             # of a socket
    tls_mode tls                 # of a socket
    rdma_request request         # of a connection of rdma_cm
    stream stream                # which asks for a queue pair
    rdma_transport transport     # of a stream: on the device of this transport
    char *stream_request         # ... by these octets, malloc'd
    size_t stream_request_length

# An order to all workers: take a device, or give your device up. Owned by the ordering thread until `pending` is 0.
cdef struct device_change:
    # constant
    rdma_transport transport
    rdma_device *device          # NULL: give up the present device
    const char *line             # the reason, told on the lifelines
    # under lock
    pthread_mutex_t lock
    pthread_cond_t done          # pending has become 0
    unsigned int pending         # workers not done yet

cdef struct worker:
    conn_thread thread           # first. Owned by the worker; its statistics are read by others
    # set before worker_init, then constant
    worker *all                  # of the daemon
    uint32_t nall
    uint32_t number              # its index in `all`
    watchers *watchers           # to whom connections are lent
    dumps *dumps
    unsigned int idle_timeout    # seconds without a transfer to or from a peer, before the connection ends; 0: no limit
    uint64_t *curr_connections   # atomic; shared by all workers and the listener
    uint64_t *turns_back         # atomic: server.turns_back. NULL with -N
    bint (*admit_lane)(void *arg) noexcept nogil    # counts a connection; False: there are as many as may be
    void *admit_arg
    uint64_t *stop               # atomic: the worker is to end
    tls_context *tls             # NULL: no TLS
    handshakes *handshakes       # the pool; NULL: no TLS
    bint cleartext               # connections with TLS may have queue pairs on the network
    # set by worker_init and worker_start, then constant
    pthread_t id
    int epfd
    rdma_lane_hooks lane_hooks
    int notify_fd                # eventfd: something is in `queue`, `given_back` or `change`, or `stop` is set
    # the listener's
    unsigned int napi_id         # connections of this receive queue are for this worker
    # under queue_lock
    pthread_mutex_t queue_lock
    handover *queue_head
    handover **queue_tail        # NULL: worker_init has not been called
    connection *given_back       # by side threads; linked by run_next, unused while lent
    resp_wait *results           # for replies that wait: the oldest
    resp_wait **results_tail     # where the next is linked
    sasl_session *delivered      # by side threads of server/sasl; linked by next
    device_change *change        # not begun yet
    # The worker writes the links of `connections`, and of their lanes, under list_lock. Any thread reads the links
    # under list_lock.
    pthread_mutex_t list_lock
    connection *connections
    # the worker's own
    char *rbuf
    udp_socket *udp
    run_queue runnable           # connections that gave way with input left: each goes on in the next turn
    run_queue sending            # connections with long replies or payloads: they go on as a turn has bytes for them
    run_queue holding            # connections whose streams hold input: each is read in the next turn
    connection *dead             # ended in this turn, or before with lanes still to end
    unsigned int lanes_left      # how many of these lanes may end in this turn
    source *sources[SOURCES]     # nsources, entered by worker_init, then constant
    unsigned int nsources
    rdma_source rdma             # the first source
    unsigned int nstreams        # connections with CONNECTION_STREAM
    unsigned int ncm             # connections with CONNECTION_CM
    size_t turn_left             # bytes of replies and payloads in this turn, before large transfers wait for the next
    uint32_t probes_due          # store time of the next look for silent peers
    uint32_t streams_checked     # store time of the last look for slow stream requests
    uint32_t idle_due            # store time when a connection may have been idle for too long
    int64_t asked                # when epoll was last asked while a source had something to serve (now_ns())
