"""Fabrics: kinds of software network. Each is a table of functions and has a device of its own.

The shared parts know no fabric. A context, its domains and its queue pairs point to the table, and the shared parts
call the fabric through it. A fabric's own data hangs off their `fabric_state` pointers.

A new fabric is a folder: public.pxd with its calls for programs, and parts; one part fills in the table. soft.pxd and
soft.pyx include the headers and parts, and list the table among the fabrics.
"""

cdef struct soft_device:
    ibv_device ibv
    # Drivers' libraries (libmlx5, libefa) compare the pointer behind any ibv_device with pointers of their own. NULL.
    const void *driver

# An entry marked optional may be NULL: the fabric has nothing to do there.
cdef struct soft_fabric:
    ibv_device *device
    # Descriptors reported by one epoll_wait of a poll, PROGRESS_BATCH at most. The domain serves all their queue pairs,
    # even if the turn ends meanwhile.
    int batch

    # Called when a context is opened and closed. False: errno is set, and nothing is left open.
    bint (*open_context)(soft_context *context) noexcept nogil               # optional
    void (*close_context)(soft_context *context) noexcept nogil              # optional

    # The entries of ibv_context.ops that differ by fabric. Programs call them without a detour through this table.
    int (*post_send)(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil
    int (*poll_cq)(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

    # Memory for soft_alloc_mr: whole pages of zeros. *state becomes the region's fabric_state. NULL: errno is set.
    void *(*alloc_memory)(soft_context *context, size_t size, int access, void **state) noexcept nogil
    void (*free_memory)(void *memory, size_t size, void *state) noexcept nogil
    # A region over such memory is registered: from now on the fabric may give peers access.
    void (*expose)(soft_mr *mr) noexcept nogil                               # optional
    # The region's STag has become invalid. mr_shard.lock is held for writing.
    void (*withdraw)(soft_mr *mr) noexcept nogil                             # optional
    # Takes the region back from peers that have mapped it; see soft_mr_renew.
    void (*renew)(soft_mr *mr) noexcept nogil                                # optional
    # Gives up the fabric's use counts of a region, after the region has left the table of STags.
    void (*release)(soft_mr *mr) noexcept nogil                              # optional

    # Called when a domain is made and destroyed. False: errno is set.
    bint (*open_domain)(soft_domain *domain) noexcept nogil                  # optional
    void (*close_domain)(soft_domain *domain) noexcept nogil                 # optional
    # Whether only a poll finds new work, without a signal from the descriptor. No lock is held.
    bint (*polls)(const soft_domain *domain) noexcept nogil                  # optional

    # The next six are called with soft_domain.progress held.
    # Receives and sends as much as possible without blocking. `waits`: the caller waits for the descriptor next.
    void (*progress)(soft_domain *domain, bint waits) noexcept nogil
    # Makes progress for the progress thread. `arm`: does the entry `arm`'s work, too. Returns whether there was work.
    bint (*serve)(soft_domain *domain, bint arm) noexcept nogil
    # From now on the descriptor signals new work. If work is there already, sets domain.work_pending.
    void (*arm)(soft_domain *domain) noexcept nogil                          # optional
    # epoll has reported these events for the queue pair's descriptor.
    void (*ready)(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil
    # epoll has reported EVENT_BELL for the queue pair.
    void (*rung)(soft_qp *qp, soft_domain *domain) noexcept nogil            # optional
    # The queue pair leaves the domain: the fabric forgets the queue pair there.
    void (*leave)(soft_domain *domain, soft_qp *qp) noexcept nogil           # optional

    # The next nine are called with soft_qp.lock held.
    # Sends until nothing is left, the stream is full, or the queue pair has had its turn.
    void (*transmit)(soft_qp *qp) noexcept nogil
    # Writes octets. Returns the number taken by the stream, or -1 with errno.
    ssize_t (*write)(soft_qp *qp, const iovec *iov, int count) noexcept nogil
    # tx.blocked has changed: a sender has begun or ceased to wait until the stream can be written.
    void (*want_writable)(soft_qp *qp) noexcept nogil                        # optional
    # Sets tx.mulpdu and tx.batch_bytes. Called when the stream opens, and before each message longer than one FPDU.
    void (*measure)(soft_qp *qp) noexcept nogil
    # Whether `transmit` carries out the request at the cursor without the stream.
    bint (*is_direct)(const soft_qp *qp, const tx_cursor *cursor) noexcept nogil   # optional
    # The peer has named a region in a READ or WRITE that passes all checks.
    void (*named_by_peer)(soft_qp *qp, soft_mr *mr) noexcept nogil           # optional
    # The fabric's deadline for an open stream has come. False: the stream cannot go on.
    bint (*deadline)(soft_qp *qp) noexcept nogil                             # optional
    # A Terminate was sent, and nothing follows.
    void (*end_writing)(soft_qp *qp) noexcept nogil                          # optional
    # The stream ends: closes its descriptor.
    void (*close)(soft_qp *qp) noexcept nogil

    # The next two answer soft_qp_wakeups and soft_qp_written. They take no lock, and need no lock. The caller does not
    # hold soft_qp.lock, but may hold locks of its own. qp.fabric_state is not NULL.
    uint32_t (*wakeups)(const soft_qp *qp) noexcept nogil                    # optional
    uint64_t (*written)(const soft_qp *qp) noexcept nogil                    # optional

    # Frees qp.fabric_state, which is not NULL and used by no thread any more.
    void (*free)(soft_qp *qp) noexcept nogil

# The fabric of a device. NULL: the device is none of ours.
cdef const soft_fabric *fabric_of(const ibv_device *device) noexcept nogil

# Fills in the device of a fabric. A CA has addresses as RoCE v2 has, an RNIC as iWARP.
cdef void fabric_device(ibv_device *device, const char *name, ibv_node_type kind) noexcept nogil

# Entries of the provider's table: libibverbs' ibv_* functions.
cdef ibv_device **soft_get_device_list(int *num_devices) noexcept nogil
cdef void soft_free_device_list(ibv_device **devices) noexcept nogil
cdef const char *soft_get_device_name(ibv_device *device) noexcept nogil
