"""The state of a daemon, for the modules of this folder: server makes and ends it, listener accepts, stats reads.
Beside each field stands the thread or lock that owns it.

Failures in this folder: a `bint` is False, a pointer NULL. An int is 0 or an errno value, for callers that tell the
reason. A function with the argument `why` writes the reason there, in one line.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.flash.flash cimport flash
from rmemcached.logger cimport log_transport, logger
from rmemcached.protocol.conn cimport conn_hooks, protocol
from rmemcached.protocol.stats_prefix cimport stats_prefixes
from rmemcached.rdma.device cimport rdma_limits
from rmemcached.server.auth cimport auth_users
from rmemcached.server.devices cimport rdma_devices
from rmemcached.server.dumps cimport dumps
from rmemcached.server.handshakes cimport handshakes
from rmemcached.server.sasl cimport sasl_pool
from rmemcached.server.watchers cimport watchers
from rmemcached.server.worker cimport worker
from rmemcached.store.store cimport store
from rmemcached.streams.tls cimport tls_context, tls_mode, tls_options

cdef enum:
    MAIN_FDS = 3                 # descriptors of memcached's main thread, and of each worker
    WORKER_FDS = 5

# The settings of the command line, for code without the Python Settings object. The Settings object owns the text and
# outlives the server. Constant.
cdef struct settings:
    int port                     # -1: ephemeral
    int udpport                  # 0: no UDP
    int backlog
    const char *inter            # NULL: all addresses
    const char *socketpath       # NULL: TCP
    const char *memory_file      # NULL: none
    int access                   # of the UNIX socket
    const char *binding_protocol
    const char *auth_file        # NULL: no authentication in the text protocol
    bint sasl
    uint32_t maxconns
    bint maxconns_fast
    unsigned int inherited_fds   # descriptors open at the start; standard streams mostly
    unsigned int idle_timeout    # seconds; 0: none
    uint64_t read_buf_mem_limit  # bytes; 0: none
    unsigned int num_threads
    unsigned int num_threads_per_udp   # workers for each UDP socket
    unsigned int num_napi_ids
    unsigned int reqs_per_event
    bint flush_enabled
    bint dump_enabled
    uint32_t logger_buf_size          # bytes
    uint32_t logger_watcher_buf_size
    unsigned int hash_power      # 0: the store's default
    const char *hash_algorithm
    rdma_limits rdma_limits
    tls_options tls

cdef struct listener:            # a listening socket, or a UDP socket. Constant while the workers run
    int fd                       # owned by the Python Listener
    log_transport transport
    protocol prot                # of accepted connections
    bint stream_only             # no protocol: the socket is for the streams of queue pairs
    tls_mode tls                 # of accepted connections
    bint own_users               # peers must be processes of this daemon's user or root's

cdef struct server:
    # constant while the workers run
    settings settings
    logger *log
    watchers *watchers
    dumps *dumps
    sasl_pool *sasl              # NULL without -S
    tls_context *tls             # NULL: no TLS, as in the next
    handshakes *handshakes
    store *store
    flash *flash                 # NULL: no ext_path
    rdma_devices devices
    bint has_devices             # False: no transport was opened
    bint has_system_devices      # libibverbs is there: mc-rdma watches the system's device, or looks for a device
    worker *workers              # num_threads of them
    listener *listeners          # nlisteners of them
    unsigned int nlisteners
    uint32_t overflow_uid        # shown for users without an id in this user namespace; UINT32_MAX: there are none
    stats_prefixes *prefixes
    int epfd
    int signal_fd
    int timer_fd
    # any thread
    conn_hooks hooks             # constant except `verbose`, which is atomic
    auth_users users             # has a lock of its own
    # atomic
    uint64_t stop
    uint64_t curr_connections    # with listening and UDP sockets
    uint64_t turns_back          # turns used by sockets that became queue pairs' streams (worker/stream)
    uint64_t most_connections
    uint64_t total_connections
    uint64_t rejected_connections
    uint64_t listen_disabled     # nothing is accepted at the moment
    uint64_t listen_disabled_num
    uint64_t time_in_listen_disabled_us
    uint64_t unexpected_napi_ids
    uint64_t round_robin_fallback
    # the main thread's
    uint32_t owner               # its thread_id() from the start of `run` to its end; else 0
    unsigned int next_worker
    int64_t disabled_at          # when listen_disabled was set (now_ns)
    uint64_t disabled_with       # curr_connections then
    const char *disabled_why     # why listening was stopped; NULL: a connection was accepted since
    unsigned int napi_known      # workers with a napi_id
    # the devices' thread's
    unsigned int next_cm_worker
