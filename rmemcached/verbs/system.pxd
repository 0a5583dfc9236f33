"""The system provider: libibverbs, loaded by the first call of system_provider()."""

from rmemcached.verbs.verbs cimport verbs_provider

# The table, or NULL with a constant line in *why when the library is missing or too old. Any thread. The library stays
# loaded. No device is no error: get_device_list then returns an empty list.
cdef const verbs_provider *system_provider(const char **why) noexcept nogil
