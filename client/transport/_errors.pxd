"""Exceptions for return codes of C functions."""

from rmemcached.verbs.verbs cimport verbs_provider

# Returns an OSError, or its subclass for the errno value, for the caller to raise. `what`, the failed operation, begins
# the text.
cdef object os_error(str what, int error)
# Returns the OSError for a region of `length` bytes that could not be registered. If the limit on locked memory is the
# reason, the text names the limit.
cdef object registration_error(const verbs_provider *provider, size_t length, int error)
