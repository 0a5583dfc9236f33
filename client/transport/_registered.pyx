"""See _registered.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from rmemcached.client.transport._buffers cimport count_registration
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.sys.debug cimport LIVE_CLIENT_BUFFER, assert_that, live_sub
from rmemcached.verbs.verbs cimport IBV_ACCESS_REMOTE_READ

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)

cdef enum:
    WASTED_MOST = 4          # registrations in vain, after which
    WASTED_RETRY = 64        # ... only one in so many is made


cdef class Registration:
    """An object's registration."""


cdef class Registrations:
    """The registrations of a queue pair."""

    def __init__(self, QueuePair queue not None):
        self.provider = queue.provider
        self.pd = queue.pd
        self.kept = {}
        self.seen = {}

    def __len__(self):
        return len(self.kept)

    cpdef Registration take(self, bytes value):
        lock_state(&shared_state)
        try:
            return self.taken(value)
        finally:
            unlock_state(&shared_state)

    cdef Registration taken(self, bytes value):
        cdef Registration one = self.kept.pop(id(value), None)
        if one is not None:
            # Further uses of the same object tell nothing about the rest of the objects.
            if not one.found:
                self.wasted = 0
            one.found = True
        elif self.is_worth(value) and self.make_room(PyBytes_GET_SIZE(value)):
            one = Registration.__new__(Registration)
            one.mr = self.provider.reg_mr(
                self.pd, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), IBV_ACCESS_REMOTE_READ)
            if one.mr == NULL:
                # The limit of locked memory may be too low.
                return None
            count_registration()
            one.value = value
            self.registered += 1
            self.size += PyBytes_GET_SIZE(value)
        else:
            return None
        self.kept[id(value)] = one
        one.transfers += 1
        return one

    cpdef int give(self, Registration one) except -1:
        lock_state(&shared_state)
        assert_that(one.transfers > 0)
        one.transfers -= 1
        unlock_state(&shared_state)
        return 0

    cpdef int close(self) except -1:
        cdef Registration one
        lock_state(&shared_state)
        try:
            for one in list(self.kept.values()):
                self.drop(one)
            self.seen.clear()
        finally:
            unlock_state(&shared_state)
        return 0

    cdef bint is_worth(self, bytes value) except -1:
        # Registers an object at its second use: many objects come only once. An object in the same place and of the
        # same size is taken for the same object.
        if <size_t>PyBytes_GET_SIZE(value) > REGISTERED_BYTES:
            return False
        if self.seen.get(id(value)) != PyBytes_GET_SIZE(value):
            self.seen.pop(id(value), None)
            if len(self.seen) >= REGISTERED_SEEN:
                del self.seen[next(iter(self.seen))]
            self.seen[id(value)] = PyBytes_GET_SIZE(value)
            return False
        if self.wasted >= WASTED_MOST:
            self.skipped += 1
            if self.skipped % WASTED_RETRY:
                return False
        del self.seen[id(value)]
        return True

    cdef bint make_room(self, size_t length) except -1:
        cdef Registration one
        # Objects owned by this cache alone go first.
        for one in list(self.kept.values()):
            if one.transfers == 0 and Py_REFCNT(<PyObject *>one.value) == 1:
                self.drop(one)
        for one in list(self.kept.values()):
            if self.size + length <= REGISTERED_BYTES and len(self.kept) < REGISTERED_MOST:
                break
            if one.transfers == 0:
                self.drop(one)
        return self.size + length <= REGISTERED_BYTES and len(self.kept) < REGISTERED_MOST

    cdef int drop(self, Registration one) except -1:
        assert_that(one.transfers == 0)
        if not one.found:
            self.wasted += 1
        del self.kept[id(one.value)]
        self.size -= PyBytes_GET_SIZE(one.value)
        self.provider.dereg_mr(one.mr)
        one.mr = NULL
        one.value = None
        live_sub(LIVE_CLIENT_BUFFER)
        return 0
