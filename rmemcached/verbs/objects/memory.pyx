"""Protection domains, memory regions and memory windows."""

import enum

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc cimport errno
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from posix.uio cimport iovec

from rmemcached.verbs.objects.base cimport Base, failure, need_soft
from rmemcached.verbs.objects.device cimport Context
from rmemcached.verbs.soft cimport (
    SOFT_ACCESS_SCRATCH, soft_alloc_mr, soft_mr_renew, soft_reg_list, soft_reg_mr_iova, soft_rereg_mr,
)
from rmemcached.verbs.verbs cimport *

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)


class Access(enum.IntFlag):
    LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE
    REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE
    REMOTE_READ = IBV_ACCESS_REMOTE_READ
    REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC
    MW_BIND = IBV_ACCESS_MW_BIND
    ZERO_BASED = IBV_ACCESS_ZERO_BASED
    ON_DEMAND = IBV_ACCESS_ON_DEMAND
    HUGETLB = IBV_ACCESS_HUGETLB
    RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING
    SCRATCH = SOFT_ACCESS_SCRATCH


@cython.no_gc_clear
cdef class PD(Base):
    """A protection domain."""

    def __init__(self, Context context not None):
        self.p = context.p
        self.context = context
        self.pd = self.p.alloc_pd(context.handle())
        if self.pd == NULL:
            raise failure("alloc_pd", errno.errno)
        context.adopt(self)

    cdef int release(self) except -1:
        cdef int error
        if self.pd != NULL:
            error = self.p.dealloc_pd(self.pd)
            if error:
                raise failure("dealloc_pd", error)
            self.pd = NULL
        return 0

    def __dealloc__(self):
        if self.pd != NULL:
            self.p.dealloc_pd(self.pd)

    def close(self):
        """Closes the memory windows, then the other objects made from the domain, then the domain."""
        for child in list(self.children):
            if isinstance(child, MW):
                child.close()
        Base.close(self)

    cdef ibv_pd *handle(self) except NULL:
        if self.pd == NULL:
            raise ValueError("the protection domain is closed")
        return self.pd


@cython.no_gc_clear
cdef class MR(Base):
    """A memory region over an object with a contiguous buffer. The region holds the object until close().

    With Access.LOCAL_WRITE the buffer must be writable. `sge(offset, length)` names a part of the region for a work
    request. A region is itself a buffer: memoryview(mr). close() raises BufferError while such a view is in use.

    Requests name the memory by addresses from `addr` on: the memory's own addresses, addresses from iova on (software
    devices only), or addresses from 0 on with Access.ZERO_BASED.
    """

    def __init__(self, PD pd not None, buffer, int access=IBV_ACCESS_LOCAL_WRITE, *, iova=None):
        if self.held:
            raise RuntimeError("already registered")
        PyObject_GetBuffer(buffer, &self.view, PyBUF_WRITABLE if access & IBV_ACCESS_LOCAL_WRITE else PyBUF_SIMPLE)
        self.held = True
        self.p = pd.p
        if iova is None:
            self.mr = self.p.reg_mr(pd.handle(), self.view.buf, <size_t> self.view.len, access)
        else:
            need_soft(pd.p, "reg_mr_iova")
            self.mr = soft_reg_mr_iova(pd.handle(), self.view.buf, <size_t> self.view.len, iova, access)
        if self.mr == NULL:
            raise failure("reg_mr", errno.errno)
        self.set_start(access)
        if iova is not None and not self.zero_based:
            self.start = iova
        pd.adopt(self)

    cdef void set_start(self, int access) noexcept:
        self.zero_based = access & IBV_ACCESS_ZERO_BASED != 0
        self.start = 0 if self.zero_based else <uintptr_t> self.mr.addr

    @staticmethod
    def alloc(PD pd not None, size_t length, int access=IBV_ACCESS_LOCAL_WRITE):
        """A region of a software device over zeroed memory of its own, accessible by memoryview(mr)."""
        cdef MR self = MR.__new__(MR)
        need_soft(pd.p, "alloc_mr")
        self.p = pd.p
        self.mr = soft_alloc_mr(pd.handle(), length, access)
        if self.mr == NULL:
            raise failure("alloc_mr", errno.errno)
        self.set_start(access)
        pd.adopt(self)
        return self

    @staticmethod
    def of_list(PD pd not None, buffers):
        """A region of a software device over the memory of several objects: one range, for READs by peers only.

        The objects have contiguous buffers, held by the region until close().
        """
        cdef MR self = MR.__new__(MR)
        cdef iovec *memory
        cdef Py_buffer *view
        need_soft(pd.p, "reg_list")
        self.p = pd.p
        self.parts = [memoryview(one) for one in buffers]
        memory = <iovec *> calloc(max(<Py_ssize_t> len(self.parts), 1), sizeof(iovec))
        if memory == NULL:
            raise MemoryError
        for i in range(len(self.parts)):
            view = PyMemoryView_GET_BUFFER(self.parts[i])
            memory[i].iov_base = view.buf
            memory[i].iov_len = view.len
        self.mr = soft_reg_list(pd.handle(), memory, <uint32_t> len(self.parts))
        free(memory)
        if self.mr == NULL:
            raise failure("reg_list", errno.errno)
        self.set_start(0)
        pd.adopt(self)
        return self

    def rereg(self, *, PD pd=None, buffer=None, access=None):
        """Changes a region of a software device, which keeps its keys: domain, memory, rights, or several of them."""
        cdef int flags = 0
        cdef int rights = 0
        cdef ibv_mr *mr = self.handle()
        cdef ibv_pd *domain = NULL
        cdef Py_buffer view
        cdef void *memory = NULL
        cdef size_t length = 0
        cdef int error
        need_soft(self.p, "rereg_mr")
        if self.views:
            raise BufferError("views of the memory region are in use")
        if pd is not None:
            flags |= IBV_REREG_MR_CHANGE_PD
            domain = pd.handle()
        if access is not None:
            flags |= IBV_REREG_MR_CHANGE_ACCESS
            rights = access
        if buffer is not None:
            flags |= IBV_REREG_MR_CHANGE_TRANSLATION
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
            memory = view.buf
            length = <size_t> view.len
        with nogil:
            error = soft_rereg_mr(mr, flags, domain, memory, length, rights)
        if error:
            error = errno.errno
            if buffer is not None:
                PyBuffer_Release(&view)
            raise failure("rereg_mr", error)
        if buffer is not None:
            PyBuffer_Release(&self.view)
            self.view = view
        if buffer is not None or access is not None and (self.zero_based or rights & IBV_ACCESS_ZERO_BASED):
            self.set_start(rights if access is not None else IBV_ACCESS_ZERO_BASED * self.zero_based)
        if pd is not None:
            self.parent.children.discard(self)
            pd.adopt(self)

    def renew(self):
        """Takes the region back from peers that have mapped it (soft_shm). The region stays registered."""
        need_soft(self.p, "renew")
        soft_mr_renew(self.handle())

    def __getbuffer__(self, Py_buffer *out, int flags):
        cdef ibv_mr *mr = self.handle()
        if self.parts is not None:
            raise BufferError("the memory of a list is in several places")
        PyBuffer_FillInfo(out, self, mr.addr, <Py_ssize_t> mr.length, self.held and self.view.readonly, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *out):
        self.views -= 1

    cdef int release(self) except -1:
        cdef int error
        if self.views:
            raise BufferError("views of the memory region are in use")
        if self.mr != NULL:
            with nogil:
                error = self.p.dereg_mr(self.mr)
            if error:
                raise failure("dereg_mr", error)
            self.mr = NULL
        self.parts = None
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)
        return 0

    def __dealloc__(self):
        if self.mr != NULL:
            self.p.dereg_mr(self.mr)
        if self.held:
            PyBuffer_Release(&self.view)

    cdef ibv_mr *handle(self) except NULL:
        if self.mr == NULL:
            raise ValueError("the memory region is closed")
        return self.mr

    @property
    def addr(self):
        self.handle()
        return self.start

    @property
    def length(self):
        return self.handle().length

    @property
    def lkey(self):
        return self.handle().lkey

    @property
    def rkey(self):
        return self.handle().rkey

    def sge(self, offset=0, length=None):
        """(address, length, lkey) of a part of the region."""
        if length is None:
            length = self.length - offset
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"[{offset}, {offset + length}) is not in the region's {self.length} bytes")
        return self.addr + offset, length, self.lkey


@cython.no_gc_clear
cdef class MW(Base):
    """A memory window of type 1 (bound by QP.bind_mw) or 2 (bound by SendWR.bind_mw)."""

    def __init__(self, PD pd not None, int kind=IBV_MW_TYPE_1):
        self.regions = set()
        self.mw = ibv_alloc_mw(pd.handle(), <ibv_mw_type> kind)
        if self.mw == NULL:
            raise failure("alloc_mw", errno.errno)
        pd.adopt(self)

    cdef int release(self) except -1:
        cdef int error
        if self.mw != NULL:
            with nogil:
                error = ibv_dealloc_mw(self.mw)
            if error:
                raise failure("dealloc_mw", error)
            self.mw = NULL
        self.regions = None
        return 0

    def __dealloc__(self):
        if self.mw != NULL:
            ibv_dealloc_mw(self.mw)

    cdef ibv_mw *handle(self) except NULL:
        if self.mw == NULL:
            raise ValueError("the memory window is closed")
        return self.mw

    @property
    def rkey(self):
        """The key of the last bind_mw. Type 2: the key at first; binds may change its lower 8 bits."""
        return self.handle().rkey
