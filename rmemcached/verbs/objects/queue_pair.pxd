"""Queue pairs, shared receive queues, and the requests posted to them."""

from libc.stdint cimport uint32_t

from rmemcached.verbs.objects.base cimport Base
from rmemcached.verbs.objects.completion cimport CQ
from rmemcached.verbs.objects.device cimport Context
from rmemcached.verbs.verbs cimport ibv_qp, ibv_srq, verbs_provider


cdef class SRQ(Base):
    cdef const verbs_provider *p
    cdef ibv_srq *srq                # its srq_context is this object

    cdef ibv_srq *handle(self) except NULL


cdef class QP(Base):
    cdef const verbs_provider *p
    cdef ibv_qp *qp                  # its qp_context is this object
    cdef readonly CQ send_cq
    cdef readonly CQ recv_cq
    cdef Context context
    cdef readonly SRQ srq
    cdef uint32_t psn                # of the first packet sent after join()

    cdef ibv_qp *handle(self) except NULL
