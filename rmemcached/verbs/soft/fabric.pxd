"""Fabrics: kinds of software network. Each is a table of functions and has a device of its own.

The shared parts know no fabric. They call it through the table, to which a context, its domains and its queue pairs
point. A fabric's own data hangs off their `fabric_state` pointers.

A new fabric is a folder: public.pxd with its calls for programs, and parts, one of which fills in the table. Besides
it needs its includes and an entry in the list of fabrics, all in soft.pxd and soft.pyx.
"""

# An entry that is marked optional may be NULL: the fabric has nothing to do there.
cdef struct soft_fabric:
    ibv_device *device
    # Descriptors that a poll takes from epoll at a time, PROGRESS_BATCH at most. All of these queue pairs are served,
    # also when the turn is over meanwhile.
    int batch

    # Called when a context is opened and closed. False: errno says why, and nothing is left open.
    bint (*open_context)(soft_context *context) noexcept nogil               # optional
    void (*close_context)(soft_context *context) noexcept nogil              # optional

    # The entries of ibv_context.ops that differ by fabric. Programs call them without a detour through this table.
    int (*post_send)(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil
    int (*poll_cq)(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

    # Memory for soft_alloc_mr: whole pages of zeros. *state becomes the region's fabric_state. NULL: errno says why.
    void *(*alloc_memory)(soft_context *context, size_t size, int access, void **state) noexcept nogil
    void (*free_memory)(void *memory, size_t size, void *state) noexcept nogil
    # A region over such memory is registered: from now on peers may be given access.
    void (*expose)(soft_mr *mr) noexcept nogil                               # optional
    # The region's STag is not valid any more. mr_shard.lock is held for writing.
    void (*withdraw)(soft_mr *mr) noexcept nogil                             # optional
    # Gives up the use counts that the fabric keeps of a region, which nobody can find any more.
    void (*release)(soft_mr *mr) noexcept nogil                              # optional

    # Called when a domain is made and destroyed. False: errno says why.
    bint (*open_domain)(soft_domain *domain) noexcept nogil                  # optional
    void (*close_domain)(soft_domain *domain) noexcept nogil                 # optional
    # Whether polling alone finds something: the descriptor does not tell of it. No lock is held.
    bint (*polls)(const soft_domain *domain) noexcept nogil                  # optional

    # The next six are called with soft_domain.progress held.
    # Receives and sends what is possible without blocking. `waits`: the caller waits for the descriptor next.
    void (*progress)(soft_domain *domain, bint waits) noexcept nogil
    # The same for the progress thread. `arm`: as `arm` below, too. Whether there was something to do.
    bint (*serve)(soft_domain *domain, bint arm) noexcept nogil
    # From now on the descriptor tells of whatever comes. If something is there already, sets domain.work_pending.
    void (*arm)(soft_domain *domain) noexcept nogil                          # optional
    # epoll has reported these events for the queue pair's descriptor.
    void (*ready)(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil
    # epoll has reported EVENT_BELL for the queue pair.
    void (*rung)(soft_qp *qp, soft_domain *domain) noexcept nogil            # optional
    # The queue pair leaves the domain.
    void (*leave)(soft_domain *domain, soft_qp *qp) noexcept nogil           # optional

    # The next nine are called with soft_qp.lock held.
    # Sends until nothing is left, the stream is full, or the queue pair has had its turn.
    void (*transmit)(soft_qp *qp) noexcept nogil
    # Writes octets. Gives the number that the stream has taken, or -1 with errno.
    ssize_t (*write)(soft_qp *qp, const iovec *iov, int count) noexcept nogil
    # tx.blocked has changed, and with it whether somebody waits until the stream can be written.
    void (*want_writable)(soft_qp *qp) noexcept nogil                        # optional
    # Sets tx.mulpdu and tx.batch_bytes. Called when the stream opens, and before each message longer than one FPDU.
    void (*measure)(soft_qp *qp) noexcept nogil
    # Whether `transmit` carries out the request at the cursor without the stream.
    bint (*is_direct)(const soft_qp *qp, const tx_cursor *cursor) noexcept nogil   # optional
    # The peer has named a region in a READ or WRITE that passes all checks.
    void (*named_by_peer)(soft_qp *qp, soft_mr *mr) noexcept nogil           # optional
    # The deadline that the fabric has set for an open stream has come. False: the stream cannot go on.
    bint (*deadline)(soft_qp *qp) noexcept nogil                             # optional
    # A Terminate was sent, and nothing will be sent after it.
    void (*end_writing)(soft_qp *qp) noexcept nogil                          # optional
    # The stream ends: closes its descriptor.
    void (*close)(soft_qp *qp) noexcept nogil

    # Frees qp.fabric_state, which is not NULL. No thread uses it any more.
    void (*free)(soft_qp *qp) noexcept nogil

# The fabric of a device. NULL: the device is none of ours.
cdef const soft_fabric *fabric_of(const ibv_device *device) noexcept nogil

# Fills in the device of a fabric.
cdef void fabric_device(ibv_device *device, const char *name) noexcept

# Entries of the provider's table.
cdef ibv_device **soft_get_device_list(int *num_devices) noexcept nogil
cdef void soft_free_device_list(ibv_device **devices) noexcept nogil
cdef const char *soft_get_device_name(ibv_device *device) noexcept nogil
