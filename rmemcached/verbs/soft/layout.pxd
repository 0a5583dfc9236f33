"""Declarations shared by all parts: the names of their objects, the order of the locks, and the limits of the device.

Every object begins with the libibverbs struct that programs see. Each part declares its objects in its header, and
notes there the lock of each field. Reference counts (`users`) are atomic and need no lock.

"Read unlocked" marks a field with readers that do not hold its lock; an old value does them no harm. A writer holds the
lock and changes such a field atomically.
"""

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

# A thread takes locks in this order, and holds at most one lock of each rank. A debug build checks the order.
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
