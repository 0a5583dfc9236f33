"""A device on the server's side: its port and limits, the registrations of item memory, the number of queue pairs.

A daemon has at most one rdma_device for each transport, shared by all workers. `lock` is held for registrations of item
memory, which take long: so no worker takes this lock to serve a queue pair. Workers that take or give up the device,
and statistics, hold `counting_lock` for a moment.

Workers are the layer above. A device knows a worker's part of it (rdma_thread) only by the counter_entry there.

A device is opened with the row of its transport (rdma/transport).
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.rdma.wire cimport RDMA_HOST_MAX, RDMA_TRANSPORTS, attach_request
from rmemcached.store.store cimport ARENA_EXTENT
from rmemcached.streams.stream cimport stream
from rmemcached.sys.atomics cimport load_acquire, relaxed_load
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.soft cimport soft_qp_counters
from rmemcached.verbs.verbs cimport ibv_context, ibv_mr, ibv_pd, ibv_qp, ibv_wc_status, verbs_provider

cdef enum:
    RDMA_DEVICES = RDMA_TRANSPORTS   # a server has at most one device for each transport
    RDMA_PATH_MAX = 128
    CLIENT_DESCRIPTORS = 8       # transport_ops.descriptors, at most
    MAX_EXTENTS = 16384          # 1 TiB of item memory
    # Parts of the index, which lies before item memory with a bucket of 128 bytes for each 960 bytes of item memory
    # (direct_bytes). The first part has 2 MB, each further part twice as much up to an extent; a few are shorter.
    MAX_INDEX = MAX_EXTENTS * 2 // 15 + 16

cdef enum:
    RDMA_LANE_BYTES = 16 * 1024  # unused bytes of a lane's payload that this end keeps

# The resources of each queue pair.
cdef enum:
    SEND_BUFFERS = 16            # SENDs under way
    BULK_DEPTH = 48              # send queue entries for READs and WRITEs
    SEND_DEPTH = SEND_BUFFERS + BULK_DEPTH
    BULK_SGES = 8                # extents of an item in a READ or WRITE, if the device takes as many
    INLINE_LEAST = 32            # a device that takes fewer bytes of inline data gets none

cdef enum direct_clients:       # as DIRECT_READERS in settings.py
    DIRECT_NOBODY
    DIRECT_OWN
    DIRECT_ALL

cdef struct rdma_limits:
    unsigned int credits         # receives posted for each queue pair
    unsigned int msgsize         # bytes of each
    unsigned int eager           # bytes of the largest value in SENDs
    unsigned int ird
    unsigned int ord
    unsigned int max_qps
    unsigned int lanes           # of a queue pair
    unsigned int workers         # threads of the server
    unsigned int ready_timeout   # seconds from the exchange to READY
    unsigned int peer_memory     # MB of clients' memory mapped by soft_shm, in all
    unsigned int views           # items with views of clients, in all; 0: none
    uint64_t view_bytes          # ... and their bytes
    unsigned int spin            # microseconds of the longest gap between requests that a worker polls through
    unsigned int spin_share      # percent of its time that a worker polls, at most
    uint32_t nobody              # user id of peers without a user id in this user namespace; UINT32_MAX: none
    bint crc                     # soft_iw's frames have checksums
    direct_clients direct        # the clients that read items over soft_shm (docs/direct-reads.md)
    unsigned int direct_linger   # seconds for which the index outlasts its last reader
    const char *direct_off       # why no client reads items, for `stats rdma`; NULL: some clients do
    bint remote                  # clients READ items (docs/direct-reads.md)

# The socket for the second connection of soft_shm, and the clients that can reach the socket.
cdef struct shm_endpoint:
    char host[RDMA_HOST_MAX + 1]
    unsigned long netns          # the network namespace of the path; 0: any
    char path[RDMA_PATH_MAX]     # as in the exchange: a path, or @ and an abstract name. Empty: the socket of -s

# Written by a single worker with counter_add, read by any thread. uint64_t only: the counters are added up as an array.
cdef struct rdma_counters:
    uint64_t exchanges
    uint64_t exchange_errors
    uint64_t unready             # queue pairs without READY
    uint64_t ready_timeouts
    uint64_t refused_streams
    uint64_t queue_pairs
    uint64_t total_queue_pairs
    uint64_t registrations
    uint64_t qp_errors
    uint64_t lanes
    uint64_t refused_lanes
    uint64_t refused_queue_pairs  # for limits.max_qps
    uint64_t sends
    uint64_t send_bytes
    uint64_t recvs
    uint64_t recv_bytes
    uint64_t reads
    uint64_t read_bytes
    uint64_t read_errors
    uint64_t writes
    uint64_t write_bytes
    uint64_t write_errors
    uint64_t credit_waits
    uint64_t input_bytes         # bytes of the present buffers of lanes
    uint64_t wakeups
    uint64_t completions
    uint64_t doorbells
    uint64_t polled_ns           # nanoseconds of polling for requests
    uint64_t total_views
    uint64_t refused_views       # for limits.views and limits.view_bytes

# The counters of a worker, in dev.counting.
cdef struct counter_entry:
    const rdma_counters *counters
    const soft_qp_counters *soft     # the counts of the software provider for its queue pairs
    counter_entry *next          # under dev.counting_lock

cdef struct rdma_device

# The row of a transport in rdma/transport: its properties, all constant. verbs/soft.pxd explains the soft_* calls.
cdef struct transport_ops:
    const char *name             # in the exchange and in statistics
    # The daemon opens a device of the provider at its start, and ends without the device. NULL: libibverbs' provider,
    # if the system has libibverbs; the settings choose the device, which may be missing (SYSTEM_TRANSPORT alone).
    const verbs_provider *provider
    const char *device           # the device of the provider; NULL: any
    # The transport is for clients on this host alone. The field decides:
    # - the device has an endpoint, and is opened if there is a place for its socket (-s, rdma_shm); other software
    #   devices are opened if there is a TCP port;
    # - an exchange is refused unless the client names the endpoint's host, and its network namespace, if any;
    # - streams come over UNIX sockets, not over TCP;
    # - clients may get the items' memory to map, and cannot READ items (rdma_device.remote);
    # - `stats rdma` shows the endpoint and the clients with the items' memory;
    # - without a place for the socket, the daemon reserves no `descriptors` for clients of this transport.
    bint near
    bint rings                   # work shows in memory, and the worker looks there; False: work shows in the epoll set
    bint pins                    # a registration pins the pages of the memory
    unsigned int inline_data     # bytes of the longest SEND copied at posting; a device may take less
    unsigned int descriptors     # of this process for a client, with its lifeline: CLIENT_DESCRIPTORS at most
    # A second connection of each queue pair is its stream, and begins with a request (docs/rdma-protocol.md, section
    # 3). If all four are NULL, there is no stream.
    const char *key              # the first STREAM_KEY_LENGTH octets of a request
    # data: the `received` bytes of a socket, which begin like a request. 1: the request is in *out, which points into
    # data; 0: the request is not whole; -1: the data is no request. Any thread.
    int (*parse)(const char *data, size_t received, attach_request *out) noexcept nogil
    # Answers a whole request, and gives the queue pair the stream. False: the caller keeps the stream, and refuses the
    # request. Called by the owner of the queue pair. memory: SHM_MEMORY_PARTS descriptors of
    # the items' memory, for the client; NULL: the client gets none.
    bint (*accept)(const rdma_device *dev, ibv_qp *qp, stream *s, const char *data, size_t received,
                   const int *memory) noexcept nogil
    # Refuses a whole request; an incomplete request gets no answer. The caller ends the stream. Any thread.
    void (*refuse)(stream *s, const char *data, size_t received) noexcept nogil
    # The remaining entries may be NULL.
    # Limits the clients' memory mapped by a new device, and starts the threads for that. Returns 0, or an errno value:
    # then rdma_device_open fails.
    int (*limit_memory)(ibv_context *context, const rdma_limits *limits) noexcept nogil
    uint32_t (*write_unit)(ibv_qp *qp) noexcept nogil                                        # soft_qp_write_unit
    bint (*terminated)(ibv_qp *qp, int *opcode, ibv_wc_status *status) noexcept nogil        # soft_qp_terminated
    const char *(*fault)(ibv_qp *qp) noexcept nogil                                          # soft_qp_fault
    # Appends the provider's own counters (soft_share_counters). context: of the device; NULL: there is none.
    void (*append_stats)(const soft_qp_counters *counts, ibv_context *context, stat_buf *out) noexcept nogil

cdef struct rdma_device:
    # constant after rdma_device_open
    verbs_port port
    const verbs_provider *provider   # port.provider
    transport_ops transport      # a copy: hot paths read it
    # The row's provider is the software provider, with calls of its own (soft_* in verbs/soft.pxd). The worker makes
    # the transfers, in turns of a channel in its epoll set (soft_channel_join), and completions make no events. Queue
    # pairs share receives, since the provider counts the receives of each (soft_qp_limit), and count for statistics
    # (soft_share_counters). False: the device makes the transfers, and the worker watches a channel of events.
    bint soft
    bint remote                  # queue pairs can be allowed to READ item memory and index
    ibv_pd *pd
    shm_endpoint endpoint
    rdma_limits limits           # no more than the device has
    unsigned int read_sges       # elements of a READ
    unsigned int write_sges      # elements of a WRITE
    pthread_mutex_t lock
    # written under lock, with release, and read without the lock, with acquire: an entry exists before an item can lie
    # in its extent, and does not change
    char *arena
    ibv_mr *extents[MAX_EXTENTS]
    ibv_mr *index[MAX_INDEX]     # the first `indexed` entries are set
    unsigned int indexed
    # under counting_lock
    pthread_mutex_t counting_lock
    counter_entry *counting      # the counters of every worker
    rdma_counters retired        # sums over the destroyed parts of workers
    soft_qp_counters retired_soft
    # atomic
    uint64_t inline_data         # bytes of inline data of a queue pair
    uint64_t queue_pairs
    uint64_t cm_queue_pairs      # queue pairs connected through rdma_cm
    uint64_t pins                # items with views of clients,
    uint64_t pinned_bytes        # ... and their bytes
    uint64_t extent_registrations
    uint64_t async_events
    uint64_t losses              # lost devices: this device, and its predecessors

# Makes a device of an open port, for server/devices. Takes over the port's context, also on failure: then NULL, with a
# line in why that names the device and the reason. endpoint: of a near transport, else NULL.
cdef rdma_device *rdma_device_open(const verbs_port *port, const transport_ops *transport, const rdma_limits *limits,
                                   const shm_endpoint *endpoint, char *why, size_t size) noexcept nogil
# Frees the device. All workers' parts and all queue pairs have been destroyed.
cdef void rdma_device_close(rdma_device *dev) noexcept nogil
# Constant while the device is open.
cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil

# --- item memory ---
# Registers an extent for local writes and, if rdma_device.remote, for READs by clients. server/devices calls it in any
# thread: for all item memory when the device is opened, and for each new extent before an item lies there. Extents come
# in rising order and are ARENA_EXTENT long, except the arena's last. Returns 0 or an errno value; ERANGE: beyond
# MAX_EXTENTS.
cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil
# Registers the next part of the index, for READs. Any thread. Returns 0 or an errno value; ERANGE: beyond MAX_INDEX.
cdef int rdma_device_add_index(rdma_device *dev, void *addr, size_t length) noexcept nogil
# The registration of the index or item memory at addr, for the command rdma_direct. NULL: none. Any thread.
cdef const ibv_mr *rdma_device_find_memory(rdma_device *dev, const void *addr) noexcept nogil
# For the exchange and `stats rdma`: the clients that get the items' memory ("own" or "all"), or why no client gets it
# (limits.direct_off). NULL: the transport is not near.
cdef const char *rdma_device_memory(const rdma_device *dev) noexcept nogil
# Tries to register `length` bytes, before the daemon has items: registers memory, and deregisters it. Returns 0 or an
# errno value.
cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil

cdef inline ibv_mr *extent_of(rdma_device *dev, const void *addr) noexcept nogil:
    """The registration of the item memory at addr. NULL: none. Any thread."""
    cdef size_t index = <size_t>(<const char *>addr - dev.arena) // ARENA_EXTENT
    return <ibv_mr *>load_acquire(&dev.extents[index]) if index < MAX_EXTENTS else NULL

# --- asynchronous events, and the loss of the device: the thread mc-rdma (server/devices) ---
# The descriptor of the events, to be watched for reading.
cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil
# Takes the asynchronous events so far. True, with a line in why: the device is lost. The caller destroys its queue
# pairs and its workers' parts, then the device.
cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil
# Adds the counts of a lost device to the counts of its successor. All workers' parts have been destroyed.
cdef void rdma_device_hand_over_counts(rdma_device *dev, rdma_device *successor) noexcept nogil

# --- queue pairs: any thread ---
# Counts a further queue pair, before it is made. False: limits.max_qps is reached, and nothing is counted.
cdef bint rdma_device_admit(rdma_device *dev) noexcept nogil
# Counts a queue pair less, after its end.
cdef void rdma_device_release(rdma_device *dev) noexcept nogil

# --- counters: any thread ---
# Enters the counters of a new worker's part, for the statistics.
cdef void rdma_device_enter_counters(rdma_device *dev, counter_entry *entry) noexcept nogil
# Takes the counters of an ending worker's part out, and keeps their counts in `retired`.
cdef void rdma_device_retire_counters(rdma_device *dev, counter_entry *entry) noexcept nogil

cdef inline unsigned int reads_answered(const rdma_device *dev, unsigned long wanted) noexcept nogil:
    """The READs that a queue pair answers at a time for its client: 1, the least, where clients may not READ."""
    return min(dev.limits.ird, <unsigned int>wanted) if dev.remote else 1

cdef inline void add_counts(void *total, const void *more, size_t size) noexcept nogil:
    """Adds a structure of uint64_t counters to another. Another thread may be writing `more`, but none uses `total`."""
    cdef uint64_t *sums = <uint64_t *>total
    cdef const uint64_t *terms = <const uint64_t *>more
    cdef size_t i
    for i in range(size // sizeof(uint64_t)):
        sums[i] += relaxed_load(&terms[i])
