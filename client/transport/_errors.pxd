"""Exceptions for return codes of C functions."""

from rmemcached.verbs.verbs cimport verbs_provider

# An OSError, or the subclass for the errno value. Its text begins with the failed operation.
cdef object os_error(str what, int error)
# The exception for a region of `length` bytes that could not be registered. The text names the limit on locked memory
# if this is the reason.
cdef object registration_error(const verbs_provider *provider, size_t length, int error)
