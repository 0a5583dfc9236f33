"""Completion channels, completion queues, and completions."""

from rmemcached.verbs.objects.base cimport Base
from rmemcached.verbs.verbs cimport ibv_comp_channel, ibv_cq, verbs_provider


cdef class CompChannel(Base):
    cdef const verbs_provider *p
    cdef ibv_comp_channel *channel

    cdef ibv_comp_channel *handle(self) except NULL


cdef class WC:
    cdef readonly object wr_id
    cdef readonly object status
    cdef readonly object opcode
    cdef readonly object byte_len
    cdef readonly object qp_num
    cdef readonly object invalidated_rkey


cdef class CQ(Base):
    cdef const verbs_provider *p
    cdef ibv_cq *cq                  # its cq_context is this object
    cdef CompChannel channel

    cdef ibv_cq *handle(self) except NULL
