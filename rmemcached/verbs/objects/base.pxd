"""The common base of all objects of the verbs interface: their failures, and how they are closed.

An object with a handle of the provider follows these rules:

- It holds its parent strongly and its children weakly. `close()` closes the children first, because a provider refuses
  to destroy an object in use (EBUSY).
- The handle is NULL before `__init__` has succeeded and after `release()`; `handle()` then raises ValueError.
- It is `no_gc_clear`: the collector must not drop the parent before `__dealloc__` has destroyed the handle.
"""

from rmemcached.verbs.verbs cimport verbs_provider


# A VerbsError for the caller to raise: `what` names the failed call, `error` is its errno value.
cdef object failure(str what, int error)
# Raises VerbsError (EOPNOTSUPP) unless the provider is soft_provider().
cdef int need_soft(const verbs_provider *provider, str what) except -1

cdef class Base:
    cdef object __weakref__
    cdef Base parent
    cdef object children             # a WeakSet of Base

    # Makes this object the parent of the child.
    cdef void adopt(self, Base child)
    # Destroys the handle, if any. Subclasses override it; called with no children open.
    cdef int release(self) except -1
