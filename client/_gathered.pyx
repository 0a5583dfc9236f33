"""See _gathered.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc
from libc.string cimport memcpy

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef enum:
    LONG_COPY = 1 << 18      # bytes that are copied without the GIL


cdef class Gathered:
    """Gathered(parts): the bytes of several objects, one after the other, as one value.

    A serde may return it as the value to be stored. The parts are sent from where they are; over "verbs", and up to
    8 MB over "soft_shm", they are copied once, to memory that the server reads. parts: objects with a contiguous
    buffer, which must not be changed before the command is over. Raises TypeError, BufferError. bytes(gathered) joins
    them.
    """

    def __init__(self, parts):
        self.views = [memoryview(part) for part in parts]
        for view in self.views:
            if not view.c_contiguous:
                raise BufferError("a part of a value is not contiguous")
            self.nbytes += view.nbytes

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
