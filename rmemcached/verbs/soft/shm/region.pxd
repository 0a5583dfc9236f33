"""soft_shm: regions in memfds, their offers to peers, and one-sided access to the peer's regions.

A region over memory allocated by this fabric has a slot in the context's registry. There all peers see whether the
region is still valid. When a peer names such a region and may access it, the owner offers its memory, and the peer maps
the memory: a window.
"""

cdef enum:
    SHM_OFFERS = 256
    SHM_OFFER_PRESENT = 1 << 26      # a region of up to so many octets is made resident when offered
    SHM_WINDOWS_MAX = 256            # mapped regions of a peer
    SHM_WINDOWS_SIZE = 2 * SHM_WINDOWS_MAX  # of the hash table; a power of two

cdef struct shm_context:             # soft_context.fabric_state
    # SHM_SLOTS entries in shared memory. A region gets a slot under soft_context.lock, and gives it back under the lock
    # of the region's shard.
    shm_generation *registry
    int registry_fd
    uint32_t next_slot               # guarded by soft_context.lock
    shm_generation next_generation   # guarded by soft_context.lock
    soft_shm_limits limits           # constant once a queue pair has a stream
    soft_shm_usage usage             # atomic
    shm_closer *closers[CLOSERS]     # NULL: the context trusts its peers; constant as the limits

cdef struct shm_region:              # soft_mr.fabric_state
    int memfd
    uint32_t slot                    # set before any peer knows the STag
    shm_generation generation        # atomic; first set with the slot. 0: no slot was free; the region is not shared

cdef struct shm_window:              # a region of the peer, mapped here; guarded by soft_qp.lock
    uint8_t *base                    # NULL: the entry is free again
    size_t length
    uint64_t addr                    # of the owner
    uint32_t stag
    uint32_t slot
    shm_generation generation
    uint32_t access
    bint used                        # now or before: a search goes on behind it

# A region mapped without rights, until its owner has sealed it and this process has examined its pages. Guarded by
# soft_qp.lock.
cdef struct shm_arrival:
    void *base                       # NULL: none
    int fd
    shm_record offer
    bint looking                     # the region is sealed, and examined slice by slice; read unlocked
    bint owes                        # the offer has no answer yet
    bint trusted                     # whether its owner is trusted
    size_t looked                    # octets known to be present from its start

# The shm_context of a context of soft_shm.
cdef shm_context *shm_context_of(const soft_context *context) noexcept nogil

# Entries of the fabric's table; fabric.pxd says what they do.
cdef bint shm_open_context(soft_context *context) noexcept nogil
cdef void shm_close_context(soft_context *context) noexcept nogil
cdef void *shm_alloc_memory(soft_context *context, size_t size, int access, void **state) noexcept nogil
cdef void shm_free_memory(void *memory, size_t size, void *state) noexcept nogil
cdef void shm_expose(soft_mr *mr) noexcept nogil
cdef void shm_withdraw(soft_mr *mr) noexcept nogil
cdef void shm_renew(soft_mr *mr) noexcept nogil
cdef uint64_t shm_written(const soft_qp *qp) noexcept nogil
cdef void shm_offer(soft_qp *qp, soft_mr *mr) noexcept nogil
cdef bint shm_is_direct(const soft_qp *qp, const tx_cursor *cur) noexcept nogil

# The functions below need soft_qp.lock.

# The next four carry out records, for shm_read_records, and take larger work off the share of this turn.
# Maps a region offered by the peer, or declines the offer. False: no correct peer makes this offer.
cdef bint shm_accept_offer(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil
# Declines an offer, and counts this. Also called if this process had no room for the offer's descriptor.
cdef void shm_decline_offer(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil
# The owner's side: the peer has answered the offer. If the peer has mapped the region, the owner seals it and tells the
# peer. False: no correct peer sends this record.
cdef bint shm_offer_answered(soft_qp *qp, const shm_record *record) noexcept nogil
# This end's side: the owner has sealed the region mapped here. Examines the region's pages, a large region's in
# shm_look_on, and then makes a window or declines. False: no correct peer sends this record.
cdef bint shm_offer_sealed(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil
# Examines the next slices of a large arrived region, as far as the share of this turn lasts. No later record is read
# before the region is a window, or declined.
cdef void shm_look_on(soft_qp *qp, uint32_t *share) noexcept nogil
# Unmaps all windows and the arrived region, at the end of the stream.
cdef void shm_close_windows(soft_qp *qp) noexcept nogil
# For shm_transmit_share, before it builds frames: carries out READs and WRITEs of windows, from the cursor on, as far
# as the share of this turn lasts. Stops at the first request that must go through the ring. False: the queue pair is in
# error.
cdef bint shm_execute_direct(soft_qp *qp, uint32_t *share) noexcept nogil
