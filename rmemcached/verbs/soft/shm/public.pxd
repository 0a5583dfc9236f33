"""What programs call on soft_shm0 beyond libibverbs: a queue pair gets its stream; windows have limits."""

# Attaches the UNIX stream socket to the queue pair. Both ends do so, in any order. ird and ord are as in
# soft_iw_options. If the peer does not do so within 10 s, or is none, the queue pair moves to ERR.
cdef int soft_shm_attach(ibv_qp *qp, int fd, uint16_t ird, uint16_t ord) noexcept nogil

# How often this side has had to wake the peer up. One that counts further with a post was asleep, and so will take
# longer to answer. Waits for no lock. 0: not a queue pair of soft_shm, or it has had no stream.
cdef uint32_t soft_shm_rings(ibv_qp *qp) noexcept nogil

# How far the peer has come with the WRITE that it is, or was last, copying to a region of soft_alloc_mr: the address
# behind the octets that are there. A peer that lies says what it likes. 0: nothing was written. Nobody destroys the
# queue pair meanwhile.
cdef uint64_t soft_shm_written(ibv_qp *qp) noexcept nogil

# Takes a region of soft_alloc_mr back from all peers that have mapped it, without deregistering it: no READ completes
# through such a mapping any more, and no WRITE begins. A WRITE that is in the middle of a copy ends it. Whoever names
# the region on a queue pair that has its stream is offered it anew. Regions of other devices stay as they are: their
# queue pairs reach nothing when they are destroyed.
cdef void soft_shm_renew(ibv_mr *mr) noexcept nogil

# What a context maps of its peers' memory, at most. An offer that would go beyond is declined: READs and WRITEs of that
# region go through the ring.
cdef struct soft_shm_limits:
    uint32_t pair_regions            # of one queue pair; at most 256
    uint32_t regions                 # of all
    uint64_t pair_bytes              # of one queue pair; at most 2^40
    uint64_t bytes                   # of all; at most 2^46
    # Only memory whose pages the peer has touched itself and has sealed, so that it cannot take them back and no access
    # of this process allocates any. A region that the peer may write is then mapped for writing by one queue pair
    # only, the first that gets it. Regions of other users than this one and root have less than 16 MB where the kernel
    # has no cachestat (before 6.5). Such a context has threads that close what peers pass; soft_shm_attach fails with
    # EBUSY while they have too much to wait for.
    bint paid
    # The user id of peers that have none here (kernel.overflowuid), if there are such. Bells of other users than this
    # one and root are not rung: a peer could make that take as long as it likes.
    uint32_t nobody

cdef struct soft_shm_usage:
    uint64_t regions                 # mapped now, as the next
    uint64_t bytes
    uint64_t declined                # offers, since the context was opened

# Sets the limits, before a queue pair of the context gets its stream. -1 with EBUSY: something is mapped already; with
# EINVAL: another device, or limits that are too high. Without a call `nobody` is UINT32_MAX, and they are 256 regions
# and 2^36 octets for each queue pair, and 16384 and 2^40 for all.
cdef int soft_shm_limit(ibv_context *context, const soft_shm_limits *limits) noexcept nogil
cdef int soft_shm_query(ibv_context *context, soft_shm_usage *out) noexcept nogil
