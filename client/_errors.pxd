"""Exceptions for what C functions return."""

from rmemcached.verbs.verbs cimport verbs_provider

# An OSError, or the subclass that goes with the errno value, whose text begins with what failed.
cdef object os_error(str what, int error)
# For a region of so many bytes that could not be registered. It names the limit on locked memory where that is why.
cdef object registration_error(const verbs_provider *provider, size_t length, int error)
