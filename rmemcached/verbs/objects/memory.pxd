"""Protection domains, memory regions and memory windows."""

from libc.stdint cimport uint64_t

from rmemcached.verbs.objects.base cimport Base
from rmemcached.verbs.objects.device cimport Context
from rmemcached.verbs.verbs cimport ibv_mr, ibv_mw, ibv_pd, verbs_provider


cdef class PD(Base):
    cdef const verbs_provider *p
    cdef ibv_pd *pd
    cdef Context context

    cdef ibv_pd *handle(self) except NULL


cdef class MR(Base):
    cdef const verbs_provider *p
    cdef ibv_mr *mr
    cdef uint64_t start              # the first address in requests
    cdef bint zero_based
    cdef Py_buffer view              # of the program's object, if `held`
    cdef bint held
    cdef list parts                  # memoryviews of a list's memory, or None
    cdef int views                   # memoryviews of this region in use

    cdef ibv_mr *handle(self) except NULL
    # Sets `start` of a region registered at its memory's addresses, or with Access.ZERO_BASED.
    cdef void set_start(self, int access) noexcept


cdef class MW(Base):
    cdef ibv_mw *mw
    cdef set regions                 # of all binds: they outlive the window

    cdef ibv_mw *handle(self) except NULL
