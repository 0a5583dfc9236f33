"""See base.pxd."""

import weakref

from libc.errno cimport EOPNOTSUPP
from libc.string cimport strerror

from rmemcached.verbs.soft cimport soft_provider
from rmemcached.verbs.verbs cimport verbs_provider


class VerbsError(OSError):
    """A failed verbs call (`errno`), or a failed work request (`status`)."""

    status = None


cdef object failure(str what, int error):
    return VerbsError(error, f"{what}: {strerror(error).decode()}")


cdef int need_soft(const verbs_provider *provider, str what) except -1:
    if provider != soft_provider():
        raise failure(f"{what}: a device of the system", EOPNOTSUPP)
    return 0


cdef class Base:
    """An object that is closed once, after the objects made from it."""

    def __cinit__(self):
        self.children = weakref.WeakSet()

    cdef void adopt(self, Base child):
        child.parent = self
        self.children.add(child)

    cdef int release(self) except -1:
        return 0

    def close(self):
        """Closes the objects made from this object, then the object itself."""
        for child in list(self.children):
            child.close()
        self.release()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
