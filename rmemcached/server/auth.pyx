"""Users and passwords of -Y."""

import os
import sys

from rmemcached.server.authfile import AuthFileError
from rmemcached.server.authfile import load as load_authfile

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from rmemcached.server.layout cimport AUTH_ENTRIES, auth_entry, server
from rmemcached.sys.linux cimport pthread_mutex_lock, pthread_mutex_unlock


cdef bint same_bytes(const char *a, const char *b, size_t length) noexcept nogil:
    """memcmp that takes the same time wherever the difference is."""
    cdef unsigned char difference = 0
    cdef size_t i
    for i in range(length):
        difference |= <unsigned char>a[i] ^ <unsigned char>b[i]
    return difference == 0


cdef bint hook_authenticate(void *arg, const char *user, size_t nuser, const char *password,
                            size_t npassword) noexcept nogil:
    cdef server *s = <server *>arg
    cdef bint found = False
    cdef auth_entry *entry
    cdef unsigned int i
    pthread_mutex_lock(&s.auth_lock)
    for i in range(s.nauth):
        entry = &s.auth_entries[i]
        if (entry.nuser == nuser and entry.npassword == npassword and same_bytes(entry.user, user, nuser)
                and same_bytes(entry.password, password, npassword)):
            found = True
    pthread_mutex_unlock(&s.auth_lock)
    return found


cdef void load_authentication(server *s) except *:
    """Reads the file of -Y. Raises AuthFileError; what was read before stays."""
    cdef auth_entry entries[AUTH_ENTRIES]
    cdef size_t length, at = 0
    cdef unsigned int n = 0
    found = load_authfile(os.fsdecode(s.settings.auth_file))
    text = b"".join(user + password for user, password in found)
    length = len(text)
    data = <char *>malloc(length + 1)
    if data == NULL:
        raise MemoryError()
    memcpy(data, <const char *>text, length)
    for user, password in found:
        entries[n].user = data + at
        entries[n].nuser = len(user)
        at += entries[n].nuser
        entries[n].password = data + at
        entries[n].npassword = len(password)
        at += entries[n].npassword
        n += 1
    pthread_mutex_lock(&s.auth_lock)
    free(s.auth_data)
    s.auth_data = data
    memcpy(s.auth_entries, entries, sizeof(entries))
    s.nauth = n
    pthread_mutex_unlock(&s.auth_lock)


cdef void reload_authentication(server *s) noexcept:
    try:
        load_authentication(s)
    except (AuthFileError, MemoryError) as error:
        print(f"{error}: the users there were stay", file=sys.stderr)
