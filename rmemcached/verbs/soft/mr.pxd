"""Memory regions: a context's table of STags, and the checks before each access to memory.

The table also has the context's memory windows (mw.pxd), for peers alone.
"""

cdef enum:
    MR_SHARD_BITS = 4
    MR_SHARDS = 1 << MR_SHARD_BITS
    PAGE_SIZE = 4096
    PART_WINDOW = 1 << 16            # octets that hold MAX_SGE parts of a list at most; no fewer than an FPDU has

cdef struct mr_shard:                # a part of the table, chosen by the STag's hash
    pthread_rwlock_t lock            # guards the rest, soft_mr.next and soft_mr.valid
    soft_mr **buckets
    uint32_t size                    # power of two
    uint32_t count

cdef struct mr_part:                 # of a list of memory
    uint64_t end                     # offset in the region of the octet behind the part
    const uint8_t *data

cdef struct soft_mr:
    ibv_mr ibv                       # lkey and rkey are the same STag
    soft_mr *next                    # hash chain
    int access
    bint valid                       # false once a peer has invalidated the STag, and within rereg_mr; read unlocked
    uint64_t start                   # the first address in requests of this end and of peers
    uint64_t shift                   # the first octet's place in memory, minus `start`; wraps around
    mr_part *parts                   # of soft_reg_list; NULL: the region is one piece of memory, at ibv.addr
    uint32_t part_count
    size_t mapped                    # octets at ibv.addr allocated by soft_alloc_mr; 0: the program's memory
    void *fabric_state               # the fabric's own data on memory of soft_alloc_mr, or NULL
    uint32_t users                   # accesses under way, and streams holding the region; dereg_mr waits for 0
    uint32_t windows                 # bound to the region; atomic, raised with mr_shard.lock held for writing
    # The rest is a memory window's. Guarded by mr_shard.lock, and constant while there are users.
    int window                       # ibv_mw_type; 0: the region is no window
    soft_mr *parent                  # the region of the last bind, if the window is valid or has users
    soft_qp *owner                   # valid and of type 2: the only queue pair for peers' accesses

cdef enum:                           # why mr_get refuses
    MR_STAG                          # there is no such region, or its STag is invalidated
    MR_STREAM                        # the region belongs to another PD, or the window to another queue pair
    MR_ACCESS
    MR_BOUNDS
    MR_WRAP                          # the range wraps around the address space

# A hash of an STag's upper 24 bits: a window keeps them for life. The table of regions uses the hash's upper
# MR_SHARD_BITS and its lowest bits.
cdef uint32_t mr_hash(uint32_t stag) noexcept nogil

# The part of the table for an STag.
cdef mr_shard *mr_shard_of(soft_context *context, uint32_t stag) noexcept nogil

# The region of the STag, if the region covers [addr, addr + length), belongs to this queue pair's PD and gives all
# rights in `access`. The region stays in use until mr_put. NULL: refused, with the reason in *why. The caller holds
# soft_qp.lock.
cdef soft_mr *mr_get(soft_qp *qp, uint32_t stag, uint64_t addr, uint64_t length, int access, int *why) noexcept nogil
# Ends a use begun by mr_get. Needs no lock.
cdef void mr_put(soft_mr *mr) noexcept nogil
# Whether a region already in use by the queue pair also serves this access, without another mr_get. Needs no lock.
cdef bint mr_serves(const soft_mr *mr, uint32_t stag, uint64_t addr, uint64_t length, int access) noexcept nogil

# The memory at an address of a region in use, which is no list. Addresses in requests and frames belong to a region:
# only this function makes a pointer of an address.
cdef uint8_t *mr_at(const soft_mr *mr, uint64_t addr) noexcept nogil
# The octets at an address of a region in use. *length is lowered to the number of contiguous octets there.
cdef const uint8_t *mr_piece(const soft_mr *mr, uint64_t addr, uint32_t *length) noexcept nogil

# Invalidates the STag, for a peer's SEND with invalidation and for LOCAL_INV. A region stays until it is deregistered.
# False: refused, because this queue pair has no valid window of type 2 with the STag, and its PD has no such valid
# region with a right for peers and without windows.
cdef bint mr_invalidate(soft_qp *qp, uint32_t stag) noexcept nogil

# The rest is for mw.
# Sets the region's memory, and the first address that peers and keys' holders use. Nobody uses the region.
cdef void mr_place(soft_mr *mr, void *addr, size_t length, uint64_t start) noexcept nogil
# Enters a new region into the table, under a random STag. False: errno is set.
cdef bint mr_enter(soft_context *context, soft_mr *mr) noexcept nogil
# Takes the region out of the table, makes it invalid and waits for the end of all uses. False: windows are bound to it,
# and nothing has changed.
cdef bint mr_leave(soft_mr *mr) noexcept nogil
# The link of a chain pointing to the window with the STag's upper 24 bits, or to NULL. mr_shard.lock is held.
cdef soft_mr *mr_find_window(mr_shard *shard, uint32_t stag) noexcept nogil
# Makes a region invalid, and a window unbound. mr_shard.lock is held for writing.
cdef void mr_revoke(soft_mr *mr) noexcept nogil
# The region of the STag for a new window, counted in soft_mr.windows. Checks as mr_get. NULL: refused.
cdef soft_mr *mr_join(soft_qp *qp, uint32_t stag, uint64_t addr, uint64_t length, int access) noexcept nogil

# The entries alloc_memory and free_memory (fabric.pxd) of soft_iw's table. They map and unmap anonymous memory, which
# no other process can map. soft_shm also takes such memory, for regions that no peer may read.
cdef void *mr_alloc_memory(soft_context *context, size_t size, int access, void **state) noexcept nogil
cdef void mr_free_memory(void *memory, size_t size, void *state) noexcept nogil

# Entries of the provider's table: libibverbs' ibv_* functions. mr.pyx also defines soft_alloc_mr, soft_reg_mr_iova,
# soft_rereg_mr, soft_reg_list and soft_mr_renew, declared in soft.pxd.
cdef ibv_mr *soft_reg_mr(ibv_pd *pd, void *addr, size_t length, int access) noexcept nogil
cdef int soft_dereg_mr(ibv_mr *mr) noexcept nogil
