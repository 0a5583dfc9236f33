"""An open device."""

from rmemcached.verbs.objects.base cimport Base
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.verbs cimport ibv_context, verbs_provider


cdef class Context(Base):
    cdef const verbs_provider *p
    cdef ibv_context *context
    cdef verbs_port port             # the choice of route(); port.context is NULL before
    cdef readonly str name

    cdef ibv_context *handle(self) except NULL
    # The port and GID for joining queue pairs, chosen at the first call as daemon and client choose. Raises VerbsError.
    cdef const verbs_port *route(self) except NULL
    # Opens the provider's device of this name. False: no such device, or the provider is NULL. Raises VerbsError.
    cdef bint open(self, const verbs_provider *provider, str name) except -1
