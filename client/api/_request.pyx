"""See _request.pxd."""

cimport cython

from rmemcached.client.api._connection cimport FETCH_VALUE, FETCH_VALUE_AND_CAS, MISS
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport (
    answer,
    cas_text,
    delta_text,
    expire_text,
    integer_text,
    is_error,
    put_arithmetic,
    put_bytes,
    put_delete,
    put_fetch,
    put_meta_store,
    put_sink,
    put_store,
    put_touch,
)
from rmemcached.client.wire._modes cimport STORE_CAS
from rmemcached.client.wire._reply cimport REPLY_EN, REPLY_HD, REPLY_NF, REPLY_VA

from rmemcached.client.exceptions import MemcacheUnknownCommandError, MemcacheUnknownError


@cython.freelist(64)
@cython.no_gc_clear
cdef class Request:

    cdef bint wanted(self):
        return self.group is not None or self.future is not None and not self.future.done()


cdef Request new_request(Session session, request_kind kind, bytes name, object key):
    cdef Request r = Request.__new__(Request)
    r.kind = kind
    r.name = name
    r.key = key
    r.encoded = session.encoded_key(key)
    return r


cdef Request get_request(Session session, request_kind kind, bytes name, object key, object default, object expire):
    cdef Request r = new_request(session, kind, name, key)
    r.default = default
    r.ignores = True
    r.with_flags = session.serde is not None
    if expire is not None:
        r.expire = integer_text(expire, "expire")
    return r


cdef Request store_request(Session session, store_mode mode, bytes name, object key, object value, object expire,
                           object flags, object cas):
    cdef Request r = new_request(session, REQUEST_STORE, name, key)
    cdef list numbers = []
    r.mode = mode
    r.expire = expire_text(expire)
    if mode == STORE_CAS:
        r.cas = cas_text(cas, session.encoding)
    r.data = session.serialize(key, value, flags, numbers)
    r.flags = numbers[0]
    return r


cdef Request arithmetic_request(Session session, bytes name, object key, object value):
    cdef Request r = new_request(session, REQUEST_ARITHMETIC, name, key)
    r.sign = b" MD D" if name == b"decr" else b" D"
    r.delta = delta_text(value, "value")
    return r


cdef Request touch_request(Session session, object key, object expire):
    cdef Request r = new_request(session, REQUEST_TOUCH, b"touch", key)
    r.expire = integer_text(expire, "expire")
    return r


cdef Request delete_request(Session session, object key):
    return new_request(session, REQUEST_DELETE, b"delete", key)


cdef int put_request(Connection c, Request r) except -1:
    cdef Stream s = c.stream
    if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
        put_fetch(s, r.encoded, r.with_flags, r.kind == REQUEST_GETS, r.expire)
        return s.put("\r\n", 2)
    if r.kind == REQUEST_STORE:
        put_store(s, r.mode, r.encoded, r.data, r.flags, r.expire, r.cas, False)
        return 0
    if r.kind == REQUEST_META:
        put_meta(c, r, False)
        return 0
    if r.kind == REQUEST_DELETE:
        return put_delete(s, r.encoded, False)
    if r.kind == REQUEST_ARITHMETIC:
        return put_arithmetic(s, r.encoded, r.sign, r.delta, False)
    return put_touch(s, r.encoded, r.expire, False)


cdef object no_meta():
    return MemcacheUnknownCommandError("the server knows no meta commands")


cdef bint put_meta(Connection c, Request r, bint sink) except -1:
    cdef Stream s = c.stream
    if s.classic:
        raise c.named(no_meta())
    if r.data is not None:
        return put_meta_store(s, r.line, r.flags, r.data)
    put_bytes(s, r.line)
    if sink and r.sized and r.ignores and s.remote:
        # Only mg takes a sink: `ignores` tells mg from ma.
        put_sink(s, False)
    s.put("\r\n", 2)
    return False


cdef object read_meta(Connection c, Request r, bytes line, bytes value):
    try:
        result = r.parse(line, value)
    except ValueError:
        raise c.named(MemcacheUnknownError(line[:32])) from None
    r.found = r.ignores and result is not None and result.value is not None
    return result


cdef object take_meta(Connection c, Request r, list errors):
    cdef Stream s = c.stream
    cdef bytes line = answer(s)
    cdef bytes value = None
    if is_error(line):
        c.refused(errors)
        return None
    if c.reply.code == REPLY_VA:
        if not r.sized:
            raise c.named(MemcacheUnknownError(line[:32]))
        r.found_flags = c.reply.flags
        value = c.value()
    return read_meta(c, r, line, value)


cdef object load_result(Session session, Request r, object result):
    if r.kind == REQUEST_GETS:
        return session.load(r.key, result[0], r.found_flags), result[1]
    if r.kind == REQUEST_META:
        return result._replace(value=session.load(r.key, result.value, r.found_flags))
    return session.load(r.key, result, r.found_flags)


cdef object take_answer(Connection c, Request r, list errors):
    if r.kind == REQUEST_GET or r.kind == REQUEST_GETS:
        value = c.fetched(
            r.encoded, FETCH_VALUE_AND_CAS if r.kind == REQUEST_GETS else FETCH_VALUE, &r.found_flags, errors)
        r.found = value is not MISS
        return value if r.found else r.default
    if r.kind == REQUEST_STORE:
        return c.stored(errors)
    if r.kind == REQUEST_ARITHMETIC:
        return c.number(errors)
    if r.kind == REQUEST_META:
        return take_meta(c, r, errors)
    if c.reply.code == REPLY_NF or r.kind == REQUEST_TOUCH and c.reply.code == REPLY_EN:
        return False
    if c.reply.code != REPLY_HD:
        c.refused(errors)
    return True
