"""See _classic.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp, strlen

from rmemcached.client.wire._modes cimport STORE_ADD, STORE_APPEND, STORE_CAS, STORE_PREPEND, STORE_REPLACE


cdef int put_text(Stream s, const char *text) except -1:
    return s.put(text, strlen(text))


cdef int put_words(Stream s, bytes text) except -1:
    # Puts a blank, and the text; for None a 0.
    s.put(" ", 1)
    if text is None:
        return s.put("0", 1)
    return s.put(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int put_classic_fetch(Stream s, bytes key, bint with_cas, bytes expire) except -1:
    if expire is None:
        put_text(s, b"gets" if with_cas else b"get")
    else:
        put_text(s, b"gats" if with_cas else b"gat")
        put_words(s, expire)
    return put_words(s, key)


cdef const char *name_of(store_mode mode) noexcept:
    if mode == STORE_ADD:
        return b"add"
    if mode == STORE_REPLACE:
        return b"replace"
    if mode == STORE_APPEND:
        return b"append"
    if mode == STORE_PREPEND:
        return b"prepend"
    return b"cas" if mode == STORE_CAS else b"set"


cdef int put_classic_store(Stream s, store_mode mode, bytes key, size_t length, bytes flags, bytes expire, bytes cas,
                           bint quiet) except -1:
    put_text(s, name_of(mode))
    put_words(s, key)
    put_words(s, flags)
    put_words(s, expire)
    s.put(" ", 1)
    s.put_number(length)
    if mode == STORE_CAS:
        put_words(s, cas)
    return put_text(s, b" noreply\r\n" if quiet else b"\r\n")


cdef int put_classic(Stream s, const char *command, bytes key, bytes number, bint quiet) except -1:
    put_text(s, command)
    put_words(s, key)
    if number is not None:
        put_words(s, number)
    return put_text(s, b" noreply\r\n" if quiet else b"\r\n")


cdef bint is_value_of(Stream s, bytes key) noexcept:
    cdef size_t end = 6 + PyBytes_GET_SIZE(key)
    return s.line_length > end and s.line[end] == c' ' and memcmp(s.line + 6, PyBytes_AS_STRING(key), end - 6) == 0
