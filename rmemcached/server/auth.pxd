"""The users of -Y. Any thread; a reload replaces all users at once, under the lock."""

from libc.stddef cimport size_t

from rmemcached.sys.linux cimport pthread_mutex_t

cdef struct auth_entry:          # the bytes are in auth_users.data
    const char *user
    size_t nuser
    const char *password
    size_t npassword

cdef struct auth_users:
    pthread_mutex_t lock
    # under lock
    char *data                   # malloc'd: `length` bytes
    size_t length
    auth_entry *entries          # malloc'd; `count` of them
    unsigned int count

# Makes the lock, in the Server's constructor; there are no users yet.
cdef void auth_init(auth_users *users) noexcept nogil
# Frees all, in the Server's destructor.
cdef void auth_destroy(auth_users *users) noexcept nogil
# Replaces the users by the users in the file: the main thread, at the start and at SIGHUP. Raises AuthFileError or
# MemoryError, and then the present users stay.
cdef void auth_load(auth_users *users, path) except *
# Whether there is such a user with this password. Any worker, through conn_hooks.authenticate.
cdef bint auth_check(auth_users *users, const char *user, size_t nuser, const char *password,
                     size_t npassword) noexcept nogil
