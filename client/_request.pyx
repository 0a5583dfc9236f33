"""See _request.pxd."""

cimport cython

from rmemcached.client._commands cimport (
    cas_text,
    delta_text,
    expire_text,
    put_arithmetic,
    put_delete,
    put_fetch,
    put_store,
    put_touch,
    seconds_text,
)
from rmemcached.client._modes cimport STORE_CAS
from rmemcached.client._reply cimport REPLY_EN, REPLY_HD, REPLY_NF
from rmemcached.client._retrieval cimport FETCH_VALUE, FETCH_VALUE_AND_CAS, MISS
from rmemcached.client._stream cimport Stream


@cython.freelist(64)
@cython.no_gc_clear
cdef class Request:

    cdef bint wanted(self):
        return self.group is not None or self.future is not None and not self.future.done()


cdef Request new_request(Storage client, request_kind kind, bytes name, object key):
    cdef Request r = Request.__new__(Request)
    r.kind = kind
    r.name = name
    r.key = key
    r.encoded = client.encoded_key(key)
    return r


cdef Request get_request(Storage client, request_kind kind, bytes name, object key, object default, object expire):
    cdef Request r = new_request(client, kind, name, key)
    r.default = default
    r.ignores = True
    r.with_flags = client.serde is not None
    if expire is not None:
        r.expire = seconds_text(expire, "expire")
    return r


cdef Request store_request(Storage client, store_mode mode, bytes name, object key, object value, object expire,
                           object flags, object cas):
    cdef Request r = new_request(client, REQUEST_STORE, name, key)
    cdef list numbers = []
    r.mode = mode
    r.expire = expire_text(expire)
    if mode == STORE_CAS:
        r.cas = cas_text(cas, client.encoding)
    r.data = client._serialize(key, value, flags, numbers)
    r.flags = numbers[0]
    return r


cdef Request arithmetic_request(Storage client, bytes name, object key, object value):
    cdef Request r = new_request(client, REQUEST_ARITHMETIC, name, key)
    r.sign = b" MD D" if name == b"decr" else b" D"
    r.delta = delta_text(value)
    return r


cdef Request touch_request(Storage client, object key, object expire):
    cdef Request r = new_request(client, REQUEST_TOUCH, b"touch", key)
    r.expire = seconds_text(expire, "expire")
    return r


cdef Request delete_request(Storage client, object key):
    return new_request(client, REQUEST_DELETE, b"delete", key)


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
    return put_touch(s, r.encoded, r.expire, False)


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
    if s.reply.code == REPLY_NF or r.kind == REQUEST_TOUCH and s.reply.code == REPLY_EN:
        return False
    if s.reply.code != REPLY_HD:
        c.refused(errors)
    return True
