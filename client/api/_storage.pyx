"""See _storage.pxd."""

from rmemcached.client.api._connection cimport AHEAD_WITH_VALUES, Connection
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport (
    delta_text,
    expire_text,
    integer_text,
    put_arithmetic,
    put_delete,
    put_store,
    put_touch,
)
from rmemcached.client.wire._modes cimport STORE_SET
from rmemcached.client.wire._reply cimport REPLY_EN, REPLY_HD, REPLY_NF


cdef bint are_plain(Session session, list names, list values):
    # Whether all keys and values are sent unchanged: then none needs a check before the first is sent.
    cdef Py_ssize_t i
    if session.serde is not None:
        return False
    for i in range(len(names)):
        if type(values[i]) is not bytes or session.sendable_key(names[i]) is not names[i]:
            return False
    return True


cdef tuple prepared(Session session, dict values, object flags):
    cdef list names = []
    cdef list data = []
    cdef list numbers = []
    cdef list encoded = names
    for key, value in values.items():
        names.append(key)
        data.append(value)
    if flags is not None or not are_plain(session, names, data):
        encoded = [session.sendable_key(key) for key in names]
        data = [session.serialize(names[i], data[i], flags, numbers) for i in range(len(names))]
    return names, encoded, data, numbers


cdef list store_prepared(Session session, tuple values, bytes seconds, bint quiet):
    cdef list names = values[0]
    cdef list encoded = values[1]
    cdef list data = values[2]
    cdef list numbers = values[3]
    cdef list failed = []
    cdef list errors = []
    cdef bint exposed = False
    cdef Py_ssize_t i
    cdef Connection c = session.enter(quiet, b"set_many")
    try:
        for i in range(len(names)):
            exposed |= put_store(
                c.stream, STORE_SET, encoded[i], data[i], numbers[i] if numbers else None, seconds, None, quiet)
            c.ahead(i + 1, AHEAD_WITH_VALUES)
        if exposed and quiet:
            c.synchronise()
        elif quiet:
            c.unanswered(len(names))
        else:
            for i in range(len(names)):
                c.read_answer(i == 0)
                if not c.stored(errors):
                    failed.append(names[i])
        c.values_sent()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return failed


cdef object store(Session session, store_mode mode, bytes name, object key, object value, object expire,
                  object noreply, object flags, bytes cas):
    cdef object encoded = session.sendable_key(key)
    cdef bytes seconds = expire_text(expire)
    cdef list numbers = []
    cdef list errors = []
    cdef bint quiet = session.is_quiet(noreply)
    cdef bint exposed
    cdef object data = session.serialize(key, value, flags, numbers)
    cdef object result = True
    cdef Connection c = session.enter(quiet, name)
    try:
        exposed = put_store(c.stream, mode, encoded, data, numbers[0], seconds, cas, quiet)
        if not quiet:
            c.exchange()
            result = c.stored(errors)
        elif exposed:
            # The value must stay in place until the server has read it.
            c.synchronise()
        else:
            c.unanswered(1)
        c.values_sent()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return result


cdef object arithmetic(Session session, bytes name, bytes mode, object key, object value, bint quiet):
    cdef bytes encoded = session.encoded_key(key)
    cdef bytes delta = delta_text(value, "value")
    cdef list errors = []
    cdef object result = None
    cdef Connection c
    cdef Stream s
    c = session.enter(quiet, name)
    s = c.stream
    try:
        put_arithmetic(s, encoded, mode, delta, quiet)
        if quiet:
            c.unanswered(1)
        else:
            c.exchange()
            result = c.number(errors)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return result


cdef list store_many(Session session, object values, object expire, object noreply, object flags):
    cdef dict given = values if type(values) is dict else dict(values.items())
    cdef bytes seconds = expire_text(expire)
    if not given:
        return []
    return store_prepared(session, prepared(session, given, flags), seconds, session.is_quiet(noreply))


cdef bint delete(Session session, object key, object noreply) except -1:
    cdef bint quiet = session.is_quiet(noreply)
    cdef bytes encoded = session.encoded_key(key)
    cdef list errors = []
    cdef Connection c = session.enter(quiet, b"delete")
    cdef Stream s = c.stream
    cdef bint deleted = True
    try:
        put_delete(s, encoded, quiet)
        if quiet:
            c.unanswered(1)
        else:
            c.exchange()
            deleted = c.reply.code == REPLY_HD
            if not deleted and c.reply.code != REPLY_NF:
                c.refused(errors)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return deleted


cdef bint delete_many(Session session, object keys, object noreply) except -1:
    cdef bint quiet = session.is_quiet(noreply)
    cdef list encoded = [session.encoded_key(key) for key in keys]
    cdef list errors = []
    cdef bytes name
    cdef Py_ssize_t i
    cdef Connection c
    cdef Stream s
    if not encoded:
        return True
    c = session.enter(quiet, b"delete_many")
    s = c.stream
    try:
        for name in encoded:
            put_delete(s, name, quiet)
        if quiet:
            c.unanswered(len(encoded))
        else:
            for i in range(len(encoded)):
                c.read_answer(i == 0)
                if c.reply.code != REPLY_HD and c.reply.code != REPLY_NF:
                    c.refused(errors)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return True


cdef bint touch(Session session, object key, object expire, object noreply) except -1:
    cdef bint quiet = session.is_quiet(noreply)
    cdef bytes encoded = session.encoded_key(key)
    cdef bytes seconds = integer_text(expire, "expire")
    cdef list errors = []
    cdef bint touched = True
    cdef Connection c = session.enter(quiet, b"touch")
    cdef Stream s = c.stream
    try:
        put_touch(s, encoded, seconds, quiet)
        if quiet:
            c.unanswered(1)
        else:
            c.exchange()
            touched = c.reply.code == REPLY_HD
            if not touched and c.reply.code != REPLY_EN and c.reply.code != REPLY_NF:
                c.refused(errors)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return touched
