# Memory regions: the table of STags of a context, and the checks made before each access to memory.

cdef enum:
    MR_SHARD_BITS = 4
    MR_SHARDS = 1 << MR_SHARD_BITS
    PAGE_SIZE = 4096

cdef struct mr_shard:                # a part of the table, chosen by the STag's hash
    pthread_rwlock_t lock            # guards the rest, the chains, and soft_mr.valid
    soft_mr **buckets
    uint32_t size                    # power of two
    uint32_t count

cdef struct soft_mr:
    ibv_mr ibv                       # lkey and rkey are the same STag
    soft_mr *next                    # hash chain; guarded by mr_shard.lock, as the next but one
    int access
    bint valid                       # false once a peer has invalidated the STag; read unlocked
    size_t mapped                    # octets at ibv.addr that soft_alloc_mr has mapped; 0: the program's memory
    void *fabric_state               # the fabric's own, for such memory; NULL if it keeps nothing
    uint32_t users                   # accesses under way, and streams that keep it; dereg_mr waits until there is none

cdef enum:                           # why mr_get refuses
    MR_STAG
    MR_STREAM                        # of another PD
    MR_ACCESS
    MR_BOUNDS
    MR_WRAP

# A hash of an STag. The table of regions uses its upper MR_SHARD_BITS and its lowest bits.
cdef uint32_t mr_hash(uint32_t stag) noexcept nogil

# The part of the table that has the STag.
cdef mr_shard *mr_shard_of(soft_context *context, uint32_t stag) noexcept nogil

# Whether [addr, addr + length) lies within the region.
cdef bint mr_covers(const soft_mr *mr, uint64_t addr, uint64_t length) noexcept nogil

# The region of the STag, if it covers [addr, addr + length), is of this PD and gives all rights in `access`. The region
# stays until mr_put. NULL: refused, *why says why. Any thread; takes the shard's lock for the lookup only.
cdef soft_mr *mr_get(soft_pd *pd, uint32_t stag, uint64_t addr, uint64_t length, int access, int *why) noexcept nogil
cdef void mr_put(soft_mr *mr) noexcept nogil

# Takes the STag out of use at the peer's request; the region stays until it is deregistered. False: it may not.
cdef bint mr_invalidate(soft_pd *pd, uint32_t stag) noexcept nogil

# For soft_fabric.alloc_memory and free_memory: memory of this process alone.
cdef void *mr_alloc_memory(soft_context *context, size_t size, int access, void **state) noexcept nogil
cdef void mr_free_memory(void *memory, size_t size, void *state) noexcept nogil

# For the provider's table.
cdef ibv_mr *soft_reg_mr(ibv_pd *pd, void *addr, size_t length, int access) noexcept nogil
cdef int soft_dereg_mr(ibv_mr *mr) noexcept nogil
