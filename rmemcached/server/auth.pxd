"""Users and passwords of -Y."""

from rmemcached.server.layout cimport server


# Reads the file. Raises AuthFileError; what was read before stays.
cdef void load_authentication(server *s) except *
cdef void reload_authentication(server *s) noexcept
# conn_hooks.authenticate; arg is a server. Any worker.
cdef bint hook_authenticate(void *arg, const char *user, size_t nuser, const char *password,
                            size_t npassword) noexcept nogil
