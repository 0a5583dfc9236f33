"""Memory windows: STags for parts of a region, with fewer rights, bound by requests in a queue pair's send queue.

A window has an entry in the context's table of STags from its allocation on, and keeps the upper 24 bits of its STag.
A bind makes the entry valid. The entry becomes invalid by a bind of length 0 (type 1), and by LOCAL_INV, a peer's SEND
with invalidate, and the end of the queue pair (type 2).

Peers reach the memory through the stream only. soft_shm maps no memory of a memory window into a peer (shm/region.pxd):
the pages would have the region's rights.
"""

cdef struct soft_mw:
    ibv_mw ibv
    soft_mr region                   # the entry of the table

# Fills in a send queue entry for LOCAL_INV or BIND_MW. 0 or an errno value. Needs soft_qp.lock.
cdef int mw_fill(soft_qp *qp, soft_swqe *swqe, const ibv_send_wr *wr) noexcept nogil
# Carries out BIND_MW. May wait for the window's last users. False: refused. Needs soft_qp.lock; the caller uses no
# region.
cdef bint mw_bind(soft_qp *qp, const soft_swqe *swqe) noexcept nogil
# Unbinds the windows of a queue pair that is destroyed.
cdef void mw_unbind_all(soft_qp *qp) noexcept nogil

# Entries of ibv_context.ops.
cdef ibv_mw *soft_alloc_mw(ibv_pd *pd, ibv_mw_type kind) noexcept nogil
cdef int soft_bind_mw(ibv_qp *qp, ibv_mw *mw, ibv_mw_bind *bind) noexcept nogil
cdef int soft_dealloc_mw(ibv_mw *mw) noexcept nogil
