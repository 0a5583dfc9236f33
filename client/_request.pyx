"""See _request.pxd."""

cimport cython

from rmemcached.client._commands cimport put_arithmetic, put_delete, put_fetch, put_store, put_touch
from rmemcached.client._reply cimport REPLY_EN, REPLY_HD, REPLY_NF
from rmemcached.client._retrieval cimport FETCH_VALUE, FETCH_VALUE_AND_CAS, MISS
from rmemcached.client._stream cimport Stream


@cython.freelist(64)
@cython.no_gc_clear
cdef class Request:
    pass


cdef int put_request(Connection c, Request r) except -1:
    cdef Stream s = c.stream
    if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
        put_fetch(s, r.encoded, r.with_flags, r.kind == REQUEST_GETS, r.expire)
        return s.put("\r\n", 2)
    if r.kind == REQUEST_STORE:
        put_store(s, r.mode, r.encoded, r.data, r.flags, r.expire, r.cas, False)
        return 0
    if r.kind == REQUEST_DELETE:
        return put_delete(s, r.encoded, False)
    if r.kind == REQUEST_ARITHMETIC:
        return put_arithmetic(s, r.encoded, r.sign, r.delta, False)
    return put_touch(s, r.encoded, b"0" if r.expire is None else r.expire, False)


cdef object take_answer(Storage client, Connection c, Request r, list errors):
    cdef Stream s = c.stream
    if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
        value = client._read_fetch(
            c, FETCH_VALUE_AND_CAS if r.kind == REQUEST_GETS else FETCH_VALUE, &r.found_flags, errors)
        r.found = value is not MISS
        return value if r.found else r.default
    if r.kind == REQUEST_STORE:
        return c.stored(errors)
    if r.kind == REQUEST_ARITHMETIC:
        return client.read_number(c, errors)
    if r.kind == REQUEST_DELETE and s.reply.code == REPLY_NF or r.kind == REQUEST_TOUCH and s.reply.code == REPLY_EN:
        return False
    if s.reply.code != REPLY_HD:
        c.refused(errors)
    return True
