"""The daemon: listener, workers, settings and statistics of one process."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.sys.linux cimport pthread_mutex_t
from rmemcached.logger cimport log_transport, logger
from rmemcached.protocol.conn cimport conn_hooks, protocol
from rmemcached.protocol.stats_prefix cimport stats_prefixes
from rmemcached.rdma_conn cimport rdma_limits
from rmemcached.server.devices cimport rdma_devices
from rmemcached.server.dumps cimport dumps
from rmemcached.server.watchers cimport watchers
from rmemcached.server.worker cimport worker
from rmemcached.store.store cimport store

cdef enum:
    AUTH_ENTRIES = 8
    MAIN_FDS = 3                 # descriptors that memcached's main thread and each of its workers have
    WORKER_FDS = 5

# What the command line said. Constant while the server runs.
cdef struct settings:
    int port                     # -1: an ephemeral one
    int udpport                  # 0: no UDP
    int backlog
    uint32_t maxconns
    bint maxconns_fast
    unsigned int inherited_fds   # descriptors that were open at the start; standard streams mostly
    unsigned int idle_timeout    # seconds; 0: none
    unsigned int num_napi_ids
    uint64_t read_buf_mem_limit  # bytes; 0: none
    const char *binding_protocol
    const char *auth_file        # NULL: no authentication
    bint dump_enabled
    unsigned int num_threads
    unsigned int num_threads_per_udp   # workers that serve one UDP socket
    unsigned int reqs_per_event
    int access                   # of the UNIX socket
    const char *inter            # owned by the Python Settings object, which outlives the server
    const char *socketpath       # NULL: TCP
    uint64_t maxbytes
    uint64_t item_size_max
    uint32_t slab_chunk_max
    uint32_t chunk_size
    double factor
    bint use_cas
    bint evict_to_free
    bint flush_enabled
    bint watch_enabled
    uint32_t logger_buf_size          # bytes
    uint32_t logger_watcher_buf_size
    unsigned int hash_power
    bint rdma
    rdma_limits rdma_limits

cdef struct listener:            # one listening socket, or a UDP one
    int fd                       # the Python object's
    log_transport transport
    protocol prot                # spoken on what is accepted
    bint stream_only             # nothing is: it is for the streams of queue pairs
    bint own_users               # for processes of this daemon's user and root's

cdef struct auth_entry:          # a user of -Y; the bytes are in server.auth_data
    const char *user
    size_t nuser
    const char *password
    size_t npassword

cdef struct server:
    settings settings
    conn_hooks hooks
    logger *log
    watchers *watchers
    dumps *dumps
    store *store
    rdma_devices devices         # none unless settings.rdma
    bint has_devices
    unsigned int next_cm_worker  # of the devices' thread
    bint look_after_devices      # the system may have or get one that is wanted
    worker *workers              # num_threads of them
    unsigned int next_worker     # the listener's
    int epfd
    int signal_fd
    int timer_fd
    int64_t started              # seconds since the epoch
    uint64_t stop                # atomic
    uint64_t curr_connections    # atomic; with listening sockets and UDP ones
    uint64_t most_connections    # atomic
    uint64_t total_connections   # atomic
    uint64_t rejected_connections  # atomic
    uint64_t listen_disabled     # atomic: nothing is accepted at the moment
    uint64_t listen_disabled_num         # atomic
    uint64_t time_in_listen_disabled_us  # atomic
    uint64_t unexpected_napi_ids         # atomic
    uint64_t round_robin_fallback        # atomic
    # the main thread's
    listener *listeners          # nlisteners of them; constant while the workers run
    unsigned int nlisteners
    uint64_t disabled_at         # when listen_disabled was set, in microseconds
    uint64_t disabled_with       # curr_connections then
    uint32_t strange_uid         # what users without a number here are seen as; UINT32_MAX: there are none
    unsigned int napi_known      # workers that have a napi_id
    # under auth_lock
    pthread_mutex_t auth_lock
    char *auth_data
    auth_entry auth_entries[AUTH_ENTRIES]
    unsigned int nauth
    stats_prefixes *prefixes
