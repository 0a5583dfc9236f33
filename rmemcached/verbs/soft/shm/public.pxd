"""Calls for programs on soft_shm0 beyond libibverbs: a queue pair gets its stream; windows have limits."""

# Attaches the UNIX stream socket to the queue pair. Both ends do so, in any order. ird and ord are as in
# soft_iw_options. If the peer sends no valid HELLO within 10 s, the queue pair moves to ERR.
cdef int soft_shm_attach(ibv_qp *qp, int fd, uint16_t ird, uint16_t ord) noexcept nogil

# Limits of a context for mappings of its peers' memory. The context declines an offer beyond them: READs and WRITEs of
# the region then go through the ring.
cdef struct soft_shm_limits:
    uint32_t pair_regions            # of one queue pair; at most 256
    uint32_t regions                 # of all
    uint64_t pair_bytes              # of one queue pair; at most 2^40
    uint64_t bytes                   # of all; at most 2^46
    # Map only memory whose pages the peer has touched itself and has sealed: so the peer cannot take them back, and no
    # access by this process allocates a page. A region writable by the peer is then mapped for writing by one queue
    # pair only, the first to get it. Regions of users except this user and root have less than 16 MB where the
    # kernel has no cachestat (before 6.5). Such a context has threads for closing the descriptors of peers;
    # soft_shm_attach fails with EBUSY while they are stuck.
    bint paid
    # The kernel shows this user id (kernel.overflowuid) for peers without a user id here. This process rings no bells
    # of users except its own and root: any other peer could make ringing take as long as the peer likes.
    uint32_t nobody

cdef struct soft_shm_usage:
    uint64_t regions                 # mapped now, as the next
    uint64_t bytes
    uint64_t declined                # offers, since the context was opened

# Sets the limits, before a queue pair of the context gets its stream. 0 or an errno value. EBUSY: a region is mapped
# already. EINVAL: another device, or limits that are too high. EAGAIN, ENOMEM: the threads of `paid` do not start.
# By default `nobody` is UINT32_MAX, and the limits are 256 regions and 2^36 octets for each queue pair, and 16384 and
# 2^40 for all.
cdef int soft_shm_limit(ibv_context *context, const soft_shm_limits *limits) noexcept nogil
# The regions mapped now, for display. Any thread. 0, or EINVAL: another device.
cdef int soft_shm_query(ibv_context *context, soft_shm_usage *out) noexcept nogil
