# What all parts share: the names of their objects, the order of the locks, and the limits of the device.
#
# Every object starts with the libibverbs struct that programs see. Each part declares its objects in its header, with
# the lock that guards each field. A debug build checks that every thread takes the locks in the order of lock_rank, at
# most one of each rank. Reference counts (`users`) are changed atomically, without a lock.
#
# "Read unlocked", in the headers, marks a field that is also read without its lock, where an old value does no harm.
# Whoever holds the lock and changes it does so atomically.

cdef struct soft_fabric
cdef struct soft_context
cdef struct soft_pd
cdef struct soft_mr
cdef struct soft_domain
cdef struct soft_cq
cdef struct soft_qp
cdef struct soft_swqe
cdef struct tx_cursor
cdef struct rx_target

cdef enum lock_rank:
    RANK_THREAD                      # soft_context.thread_lock
    RANK_DOMAIN                      # soft_domain.progress, or soft_context.lock
    RANK_QP                          # soft_qp.lock
    RANK_QUEUE                       # soft_cq.lock, soft_srq.lock, or mr_shard.lock
    RANK_EVENTS                      # soft_domain.events, or soft_context.async_lock

cdef enum:                           # limits of the device
    MAX_SGE = 16
    MAX_QP_WR = 16384
    MAX_SRQ_WR = 1 << 18
    MAX_CQE = 1 << 22
    MAX_INLINE = 1024
    MAX_READS = 128                  # IRD and ORD
    MAX_MESSAGE = 0x80000000U
