# RDMA devices as a source of the worker (worker/source): devices come and go, their queue pairs have turns, and the
# worker polls for requests. The worker's thread.
#
# The epoll set has the descriptors of the software devices' queue pairs, and completion channels of the system's
# device. A worker that expects a request soon polls instead of sleeping, since a wake-up costs more than most
# transfers. soft_shm's rings are memory, without a descriptor: the worker looks into the rings while awake, and asks
# for a wake-up before sleeping.

cdef struct rdma_source:
    source base                  # first. Active from the first queue pair until the work of the last is done
    rdma_device **devices        # the server's, by transport. Set before rdma_source_init, the only user
    worker *w                    # constant
    # the worker's own
    rdma_thread *threads[RDMA_DEVICES]   # the worker's part of each device; NULL: there is no such device
    unsigned int queue_pairs     # connections with a queue pair
    unsigned int found           # bit per device: has something to serve in this turn
    unsigned int left            # bit per device: the last serving has left something
    int soft_left                # the first of epoll's events of software devices not reached in the last turn
    int64_t came                 # when this turn's events of software devices came (now_ns()); 0: there were none
    uint32_t setups_checked      # store time of the last look for queue pairs without READY
    bint setups_late             # a turn could not end all queue pairs without READY
    polling polling              # `gap_max` and `share` are set before rdma_source_init
    unsigned int expecting       # the device of the expected request

# Enters the source into the worker's table, with the worker's part of each device. False: errno.
cdef bint rdma_source_init(worker *w) noexcept nogil
# Frees the worker's parts of the devices. worker_destroy calls it in the main thread, after the worker's join, when the
# connections and their lanes have ended.
cdef void rdma_source_destroy(rdma_source *r) noexcept nogil
# Takes or gives up a device, as the devices' thread has ordered; lowers change.pending, and signals at 0.
cdef void change_device(worker *w, device_change *change) noexcept nogil
# Whether there is any device to agree on a queue pair with.
cdef bint has_device(const rdma_source *r) noexcept nogil
# Enters a connection's new queue pair, after the exchange or an accept of rdma_cm; the source becomes active.
cdef void connection_paired(connection *cn, rdma_conn *rc) noexcept nogil
