"""See _gathered.pxd."""

import re

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc
from libc.string cimport memcpy

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

# Objects, pointers, functions, and ctypes' pointers to text: z, and Z, unless before the type of a complex number.
cdef object ADDRESSES = re.compile("[OP&Xz]|Z(?![fdg])")

cdef enum:
    LONG_COPY = 1 << 18      # bytes of a copy made without the GIL


cdef bint holds_addresses(str format):
    # Names of fields are between colons.
    return any([ADDRESSES.search(part) is not None for part in format.split(":")[::2]])


cdef class Gathered:
    """Gathered(parts): the bytes of several objects, one after the other, as a single value.

    A serde may return a Gathered as the value to store. The parts are sent in place; over "verbs", and up to 8 MB over
    "soft_shm", they are copied once, to memory for the server. parts: objects with a contiguous buffer, unchanged until
    the command is over. Raises TypeError, and BufferError for a part that is not contiguous or has Python objects.
    bytes(gathered) joins them.
    """

    def __cinit__(self, *arguments, **options):
        self.views = []

    def __init__(self, parts):
        cdef list views = [memoryview(part) for part in parts]
        cdef Py_ssize_t nbytes = 0
        for view in views:
            if not view.c_contiguous:
                raise BufferError("a part of a value is not contiguous")
            if holds_addresses(view.format):
                raise BufferError(f"a part of a value has Python objects or pointers (format {view.format!r})")
            nbytes += view.nbytes
        if self.views:
            # A request may name the present parts.
            raise TypeError("a Gathered has its parts already: make another one")
        self.views = views
        self.nbytes = nbytes

    def __len__(self):
        return self.nbytes

    def __bytes__(self):
        cdef bytes joined = PyBytes_FromStringAndSize(NULL, self.nbytes)
        self.copy_to(PyBytes_AS_STRING(joined))
        return joined

    cdef iovec *places(self) except NULL:
        cdef const Py_buffer *part
        cdef iovec *found = <iovec *>calloc(max(<Py_ssize_t>len(self.views), 1), sizeof(iovec))
        cdef Py_ssize_t i
        if found == NULL:
            raise MemoryError
        for i in range(len(self.views)):
            part = PyMemoryView_GET_BUFFER(self.views[i])
            found[i].iov_base = part.buf
            found[i].iov_len = part.len
        return found

    cdef int copy_to(self, char *to) except -1:
        cdef const Py_buffer *part
        for view in self.views:
            part = PyMemoryView_GET_BUFFER(view)
            if part.len < LONG_COPY:
                memcpy(to, part.buf, part.len)
            else:
                with nogil:
                    memcpy(to, part.buf, part.len)
            to += part.len
        return 0
