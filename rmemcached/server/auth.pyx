"""The users of -Y, in memory without Python objects: workers look them up without the GIL."""

from rmemcached.server.authfile import load as load_file

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.linux cimport pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.sys.wipe cimport explicit_bzero


cdef void auth_init(auth_users *users) noexcept nogil:
    pthread_mutex_init(&users.lock, NULL)
    users.data = NULL
    users.length = 0
    users.entries = NULL
    users.count = 0


cdef void free_arrays(auth_users *users) noexcept nogil:
    """Frees the arrays, without the passwords."""
    if users.data != NULL:
        explicit_bzero(users.data, users.length)
    free(users.data)
    free(users.entries)


cdef void auth_destroy(auth_users *users) noexcept nogil:
    free_arrays(users)
    pthread_mutex_destroy(&users.lock)


cdef void do_replace(auth_users *users, auth_users *fresh) noexcept nogil:
    """Puts the new arrays into `users`, and the old arrays into `fresh`, for the caller to free."""
    assert_held(&users.lock)
    users.data, fresh.data = fresh.data, users.data
    users.length, fresh.length = fresh.length, users.length
    users.entries, fresh.entries = fresh.entries, users.entries
    users.count = fresh.count


cdef void auth_load(auth_users *users, path) except *:
    cdef auth_users fresh
    cdef auth_entry *entry
    cdef size_t at = 0
    found = load_file(path)
    text = b"".join(user + password for user, password in found)
    fresh.count = <unsigned int>len(found)
    fresh.length = len(text)
    fresh.data = <char *>malloc(fresh.length + 1)
    fresh.entries = <auth_entry *>calloc(fresh.count + 1, sizeof(auth_entry))
    if fresh.data == NULL or fresh.entries == NULL:
        free(fresh.data)
        free(fresh.entries)
        raise MemoryError()
    memcpy(fresh.data, <const char *>text, len(text))
    for index, (user, password) in enumerate(found):
        entry = &fresh.entries[<size_t>index]
        entry.user = fresh.data + at
        entry.nuser = len(user)
        entry.password = entry.user + entry.nuser
        entry.npassword = len(password)
        at += entry.nuser + entry.npassword
    pthread_mutex_lock(&users.lock)
    do_replace(users, &fresh)
    pthread_mutex_unlock(&users.lock)
    free_arrays(&fresh)


cdef bint same_bytes(const char *a, const char *b, size_t length) noexcept nogil:
    """memcmp whose duration does not depend on the place of the difference."""
    cdef unsigned char difference = 0
    cdef size_t i
    for i in range(length):
        difference |= <unsigned char>a[i] ^ <unsigned char>b[i]
    return difference == 0


cdef bint auth_check(auth_users *users, const char *user, size_t nuser, const char *password,
                     size_t npassword) noexcept nogil:
    cdef bint found = False
    cdef auth_entry *entry
    cdef unsigned int i
    pthread_mutex_lock(&users.lock)
    for i in range(users.count):
        entry = &users.entries[i]
        if (entry.nuser == nuser and entry.npassword == npassword and same_bytes(entry.user, user, nuser)
                and same_bytes(entry.password, password, npassword)):
            found = True
    pthread_mutex_unlock(&users.lock)
    return found
