# The fabrics, kinds of software network, each a table of functions and a device of its own.
#
# The shared parts know no fabric: they call it through the table that a context, its domains and its queue pairs point
# to. What a fabric keeps for itself hangs off their `fabric_state` pointers. A fabric is a folder with its calls for
# programs in public.pxd, and parts that end in the filling of its table; soft.pyx lists the tables.
#
# An entry that is marked optional is NULL where a fabric has nothing to do.

cdef struct soft_fabric:
    ibv_device *device

    # Contexts. False: errno says why, and nothing is left open.
    bint (*open_context)(soft_context *context) noexcept nogil               # optional
    void (*close_context)(soft_context *context) noexcept nogil              # optional

    # The data calls of ibv_context.ops that a fabric has of its own, so that no further call is taken through a table.
    int (*post_send)(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil
    int (*poll_cq)(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

    # Memory for soft_alloc_mr: whole pages, zeroed. *state becomes the region's fabric_state. NULL: errno says why.
    void *(*alloc_memory)(soft_context *context, size_t size, int access, void **state) noexcept nogil
    void (*free_memory)(void *memory, size_t size, void *state) noexcept nogil
    # The region over such memory has its STag: peers may be given access.
    void (*expose)(soft_mr *mr) noexcept nogil                               # optional
    # The STag is not valid any more. The shard's lock is held for writing.
    void (*withdraw)(soft_mr *mr) noexcept nogil                             # optional
    # The region cannot be found any more: the fabric gives up the use counts that it keeps.
    void (*release)(soft_mr *mr) noexcept nogil                              # optional

    # Domains.
    bint (*open_domain)(soft_domain *domain) noexcept nogil                  # optional; False with errno
    void (*close_domain)(soft_domain *domain) noexcept nogil                 # optional
    # Those from here to `leave` are called with soft_domain.progress held.
    # Receives and sends what is possible without blocking. `waits`: the caller waits for the descriptor next.
    void (*progress)(soft_domain *domain, bint waits) noexcept nogil
    # The same for the progress thread, with arm if so asked. Whether there was something to do.
    bint (*serve)(soft_domain *domain, bint arm) noexcept nogil
    # From now on the descriptor tells of everything that comes. Sets domain.work_pending if something is there already.
    void (*arm)(soft_domain *domain) noexcept nogil                          # optional
    # The queue pair's descriptor in the epoll set has these events.
    void (*ready)(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil
    void (*leave)(soft_domain *domain, soft_qp *qp) noexcept nogil           # optional
    # Whether something is found by polling alone, so that the descriptor does not tell of it. No lock is held.
    bint (*polls)(const soft_domain *domain) noexcept nogil                  # optional

    # Queue pairs and their streams. All but `free` are called with soft_qp.lock held.
    # Sends what may be sent, until there is nothing more, or the stream is full or has had its turn.
    void (*transmit)(soft_qp *qp) noexcept nogil
    # Writes octets of one FPDU or of a few. Gives those that the stream has taken, or -1 with errno.
    ssize_t (*write)(soft_qp *qp, const iovec *iov, int count) noexcept nogil
    # tx.blocked has changed: whether the stream's being writable matters.
    void (*want_writable)(soft_qp *qp) noexcept nogil                        # optional
    # Sets tx.mulpdu and tx.batch_bytes. Called when the stream opens and before each message longer than one FPDU.
    void (*measure)(soft_qp *qp) noexcept nogil
    # Whether the request at the cursor is carried out without the stream, by transmit.
    bint (*is_direct)(const soft_qp *qp, const tx_cursor *cursor) noexcept nogil   # optional
    # The peer has named a region that it may access in this way.
    void (*named)(soft_qp *qp, soft_mr *mr) noexcept nogil                   # optional
    # The deadline that the fabric has set for an open stream is there. False: the stream cannot go on.
    bint (*deadline)(soft_qp *qp) noexcept nogil                             # optional
    # A Terminate has been sent: nothing else will be.
    void (*end_writing)(soft_qp *qp) noexcept nogil                          # optional
    # The stream ends; its descriptor is closed next.
    void (*close)(soft_qp *qp) noexcept nogil
    # Frees qp.fabric_state, which is not NULL. No thread uses it any more.
    void (*free)(soft_qp *qp) noexcept nogil

# The fabric that this is the device of; NULL: none.
cdef const soft_fabric *fabric_of(const ibv_device *device) noexcept nogil

# Fills in a fabric's device.
cdef void fabric_device(ibv_device *device, const char *name) noexcept

# For the provider's table.
cdef ibv_device **soft_get_device_list(int *num_devices) noexcept nogil
cdef void soft_free_device_list(ibv_device **devices) noexcept nogil
cdef const char *soft_get_device_name(ibv_device *device) noexcept nogil
