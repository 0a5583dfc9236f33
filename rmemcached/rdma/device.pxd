"""A device on the server's side: its port and limits, the registrations of item memory, the queue pairs on it.

A daemon has at most one rdma_device for each transport, and all workers share it. No worker takes `lock` while it
serves: it is for item memory that grows, and registration takes long. `counting_lock` is held for a moment only, by
workers that take the device or give it up, and for statistics.

Workers are the layer above. A device knows them by the counter_entry that they embed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.rdma.wire cimport RDMA_HOST_MAX, RDMA_TRANSPORTS, rdma_transport
from rmemcached.store.store cimport ARENA_EXTENT
from rmemcached.sys.atomics cimport load_acquire, relaxed_load
from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.soft cimport soft_qp_counters
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef enum:
    RDMA_DEVICES = RDMA_TRANSPORTS   # a server has at most one for each
    RDMA_PATH_MAX = 128
    MAX_EXTENTS = 16384          # 1 TiB of item memory
    # Parts of the index before it, which has a bucket of 128 bytes for each 960 of it (direct_bytes): of 2 MB, then of
    # twice as much, up to an extent each, with a few that are shorter.
    MAX_INDEX = MAX_EXTENTS * 2 // 15 + 16

cdef enum:
    RDMA_LANE_BYTES = 16 * 1024  # of a lane's payload, that this end keeps

# What every queue pair takes of its device.
cdef enum:
    SEND_BUFFERS = 16            # messages that are under way
    BULK_DEPTH = 48              # send queue entries for READs and WRITEs
    SEND_DEPTH = SEND_BUFFERS + BULK_DEPTH
    BULK_SGES = 8                # extents of one item in one READ or WRITE, if the device takes as many
    INLINE_MOST = 256            # bytes of a SEND that is copied when it is posted, if the device takes as many,
    INLINE_LEAST = 32            # ... or half as many, and so on

cdef enum direct_clients:       # as DIRECT_READERS in settings.py
    DIRECT_NOBODY
    DIRECT_OWN
    DIRECT_ALL

cdef struct rdma_limits:
    unsigned int credits         # receives posted for each queue pair
    unsigned int msgsize         # bytes of each
    unsigned int eager           # values of up to this many bytes travel in SENDs
    unsigned int ird
    unsigned int ord
    unsigned int max_qps
    unsigned int lanes           # of a queue pair
    unsigned int workers         # that share the device
    unsigned int ready_timeout   # seconds from the exchange to READY
    unsigned int peer_memory     # MB of clients' memory that soft_shm maps, in all
    unsigned int views           # items that clients may have views of, in all; 0: none. item.refcount has 16 bits
    uint64_t view_bytes          # ... and their bytes
    unsigned int spin            # microseconds of the longest gap between requests that a worker polls through
    unsigned int spin_share      # percent of its time that it polls, at most
    uint32_t nobody              # the user id of peers that have none in this user namespace; UINT32_MAX: no such
    bint crc
    direct_clients direct        # who reads items over soft_shm (docs/direct-reads.md)
    unsigned int direct_linger   # seconds after the last of them in which their index stays
    const char *direct_off       # why nobody does, as `stats rdma` says it; NULL: somebody does
    bint remote                  # clients READ items (docs/direct-reads.md)

# Where clients open the second connection of soft_shm, and which of them can get there.
cdef struct shm_endpoint:
    char host[RDMA_HOST_MAX + 1]
    unsigned long netns          # the network namespace that the path belongs to; 0: any
    char path[RDMA_PATH_MAX]     # as in the exchange: a path, or @ and an abstract name. Empty: the lifeline's socket

# Written by one worker with counter_add, read by any thread. uint64_t only: they are added up as an array.
cdef struct rdma_counters:
    uint64_t exchanges
    uint64_t exchange_errors
    uint64_t unready             # queue pairs whose READY has not come yet
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
    uint64_t input_bytes         # of buffers that lanes have now
    uint64_t wakeups
    uint64_t completions
    uint64_t doorbells
    uint64_t polled_ns           # nanoseconds that workers have polled for requests
    uint64_t total_views
    uint64_t refused_views       # for limits.views and limits.view_bytes

# The counters of one worker, in dev.counting.
cdef struct counter_entry:
    const rdma_counters *counters
    const soft_qp_counters *soft     # of all its queue pairs, if the device is of the software provider
    counter_entry *next          # under dev.counting_lock

cdef struct rdma_device:
    # constant after rdma_device_open
    verbs_port port
    const verbs_provider *provider   # port.provider
    rdma_transport transport
    bint software                # of the software provider: it has counters, and a stream for each queue pair
    bint same_host               # for clients on this host alone
    bint remote                  # queue pairs can be allowed to READ item memory and index
    ibv_pd *pd
    shm_endpoint endpoint
    rdma_limits limits           # no more than the device has
    unsigned int read_sges       # elements of a READ
    unsigned int write_sges      # of a WRITE
    pthread_mutex_t lock
    # written under lock, with release, and read without, with acquire: an entry exists before an item can lie in its
    # extent, and does not change
    char *arena
    ibv_mr *extents[MAX_EXTENTS]
    ibv_mr *index[MAX_INDEX]     # the first `indexed` are there
    unsigned int indexed
    # under counting_lock
    pthread_mutex_t counting_lock
    counter_entry *counting      # the counters of every worker
    rdma_counters retired        # sums over workers' parts that were destroyed
    soft_qp_counters retired_soft
    # atomic
    uint64_t inline_data         # what queue pairs can have of it
    uint64_t queue_pairs
    uint64_t cm_queue_pairs      # those of them that are connected through rdma_cm
    uint64_t pins                # items that clients have views of,
    uint64_t pinned_bytes        # ... and their bytes
    uint64_t extent_registrations
    uint64_t async_events
    uint64_t losses              # lost devices: this one, and those whose counts it has taken over

# Takes over the port's context, also when it fails: then NULL, with a constant line in *error. endpoint: for soft_shm,
# else NULL.
cdef rdma_device *rdma_device_open(const verbs_port *port, rdma_transport transport, const rdma_limits *limits,
                                   const shm_endpoint *endpoint, const char **error) noexcept nogil
# Frees the device. All workers' parts and all queue pairs have been destroyed.
cdef void rdma_device_close(rdma_device *dev) noexcept nogil
# Constant as long as the device is open.
cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil

# --- item memory ---
# Registers an extent, for local writes and, if the device is remote, READs. Any thread; extents come in rising order
# and are ARENA_EXTENT long or the arena's last. 0, or -1 with errno.
cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil
# Registers a part of what lies before the arena, for READs. 0, or -1 with errno.
cdef int rdma_device_add_index(rdma_device *dev, void *addr, size_t length) noexcept nogil
# The registration that addr is in. NULL: none. Any thread.
cdef const ibv_mr *rdma_device_find_memory(rdma_device *dev, const void *addr) noexcept nogil
# Which clients get the memory to read it themselves, own or all; or why none does. NULL: it is not of soft_shm.
cdef const char *rdma_device_memory(const rdma_device *dev) noexcept nogil
# Whether so much memory can be registered at all: registers some and gives it back. 0 or an errno value.
cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil

cdef inline ibv_mr *extent_of(rdma_device *dev, const void *addr) noexcept nogil:
    """The registration of the item memory at addr. NULL: there is none. Any thread."""
    cdef size_t index = <size_t>(<const char *>addr - dev.arena) // ARENA_EXTENT
    return <ibv_mr *>load_acquire(&dev.extents[index]) if index < MAX_EXTENTS else NULL

# --- asynchronous events, and the loss of the device: one thread ---
# To be watched for reading.
cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil
# Takes the asynchronous events that have come. True, with one line in why: the device is lost. The caller destroys its
# queue pairs and its workers' parts, then the device.
cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil
# Adds what a device without workers has counted to what another one counts.
cdef void rdma_device_hand_over_counts(rdma_device *dev, rdma_device *successor) noexcept nogil

# --- queue pairs: any thread ---
# Counts one more. False: limits.max_qps is reached.
cdef bint rdma_device_admit(rdma_device *dev) noexcept nogil
cdef void rdma_device_release(rdma_device *dev) noexcept nogil

# --- counters: any thread ---
cdef void rdma_device_enter_counters(rdma_device *dev, counter_entry *entry) noexcept nogil
# Keeps what they have counted.
cdef void rdma_device_retire_counters(rdma_device *dev, counter_entry *entry) noexcept nogil

cdef inline unsigned int reads_answered(const rdma_device *dev, unsigned long wanted) noexcept nogil:
    """READs of a queue pair's client that are answered at a time. One that must not READ keeps nothing for them."""
    return min(dev.limits.ird, <unsigned int>wanted) if dev.remote else 1

cdef inline void add_counts(void *total, const void *more, size_t size) noexcept nogil:
    """Adds up structures of uint64_t counters. Another thread may be writing `more`, none reads `total`."""
    cdef uint64_t *sums = <uint64_t *>total
    cdef const uint64_t *terms = <const uint64_t *>more
    cdef size_t i
    for i in range(size // sizeof(uint64_t)):
        sums[i] += relaxed_load(&terms[i])
