"""The daemon's RDMA devices: opened at the start, closed when they fail, opened again when they are back.

Workers share a device, its protection domain and the registration of item memory. After the start a single thread,
`mc-rdma`, makes all changes to devices; it also takes the connections that come through rdma_cm.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.sys.linux cimport pthread_mutex_t, pthread_t, sockaddr, sockaddr_in6
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.rdma.wire cimport rdma_transport
from rmemcached.rdma.device cimport MAX_INDEX, RDMA_DEVICES, rdma_device, rdma_limits, shm_endpoint
from rmemcached.server.worker cimport worker
from rmemcached.store.store cimport store
from rmemcached.verbs.port cimport port_spec
from rmemcached.verbs.verbs cimport verbs_provider

cdef enum:
    CM_ADDRESSES = 64            # addresses of rdma_cm's listeners, at most

# Counts a new connection and chooses its worker. NULL: -c allows no more.
ctypedef worker *(*admit_fn)(void *arg) noexcept nogil

cdef struct cm_listener:
    sockaddr_in6 addr            # or a sockaddr_in
    uint32_t id
    bint listening               # False: its device is gone; listening is tried again every second

cdef struct rdma_devices:
    # constant once the first device is open
    rdma_limits limits
    port_spec spec               # the wanted device of the system
    store *store
    unsigned int cm_port         # where connections of rdma_cm are taken; 0: nowhere
    # constant while the thread runs
    worker *workers              # all of them run
    unsigned int nworkers
    pthread_t id
    int stop_fd                  # eventfd
    bint running
    admit_fn admit               # set before the thread's start
    void *admit_arg
    # the thread's, once running
    uint32_t owner               # its thread_id(); 0: no thread
    int cm_fd                    # of rdma_cm, with all listeners; -1: none
    int backlog
    cm_listener listeners[CM_ADDRESSES]
    unsigned int nlisteners
    # by transport; NULL: there is none. Software devices stay open. Changed by the thread under both locks. Others read
    # under either lock; the thread needs none.
    rdma_device *open[RDMA_DEVICES]
    pthread_mutex_t open_lock    # for a moment only: no registration of item memory. Taken after `lock`
    # under lock, which is held during the registration of item memory: this takes long
    pthread_mutex_t lock
    bint failing[RDMA_DEVICES]   # being closed: no more item memory is registered
    size_t missing               # bytes of item memory not registered with the system's device, by a failure
    int missing_error            # why: errno; 0: no failure
    char *arena_low              # item memory so far
    size_t arena_used
    char *index_low              # header and index of direct reads so far, in these parts
    size_t index_parts[MAX_INDEX]    # bytes
    unsigned int nindex

# Makes the locks, in the Server's constructor; no device is open yet.
cdef void devices_init(rdma_devices *d) noexcept nogil
# Opens a device and registers the present item memory. endpoint: of a near transport, else NULL. False, with a line in
# why: the device cannot be used. To be called before the thread runs, or by the thread.
cdef bint devices_open(rdma_devices *d, const verbs_provider *provider, const port_spec *spec, rdma_transport transport,
                       const shm_endpoint *endpoint, char *why, size_t size) noexcept nogil
# Listens on an address and port; connections of rdma_cm are taken from the thread's start on. 0 or an errno value;
# *opened: whether /dev/infiniband/rdma_cm could be opened. To be called before the thread runs.
cdef int devices_listen(rdma_devices *d, const sockaddr *addr, int backlog, bint *opened) noexcept nogil
# Prints device, port and GID of a transport with an open device to stderr. To be called
# before the thread runs, or by the thread.
cdef void devices_describe(rdma_devices *d, rdma_transport transport) noexcept nogil
# Starts the thread, after the workers' threads. 0 or an errno value.
cdef int devices_start(rdma_devices *d, worker *workers, unsigned int nworkers) noexcept nogil
# Ends the thread, and closes its descriptors. The workers must still run, because the thread may be waiting for them.
cdef void devices_stop(rdma_devices *d) noexcept nogil
# Frees everything; the workers have been destroyed.
cdef void devices_close(rdma_devices *d) noexcept nogil
# Registers new item memory with all devices: store_config.extent_added, in any thread whose store needs a new extent.
cdef void devices_extent_added(rdma_devices *d, void *addr, size_t length) noexcept nogil
# Registers a new part of the index for direct reads: store_config.index_added. Any thread.
cdef void devices_index_added(rdma_devices *d, void *addr, size_t length) noexcept nogil
# Appends the lines of `stats rdma`. Any thread.
cdef void devices_stats(rdma_devices *d, stat_buf *out) noexcept nogil
