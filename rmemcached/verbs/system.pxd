"""The system provider: libibverbs, bound when it is first asked for."""

from rmemcached.verbs.verbs cimport verbs_provider

# The table, or NULL with a constant line in *why: the library is not there or is too old. Any thread; the library
# stays loaded. That there is no device is not an error: get_device_list gives an empty list.
cdef const verbs_provider *system_provider(const char **why) noexcept nogil
