"""See _retrieval.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADMSG
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from rmemcached.client.api._connection cimport FETCH_VALUE, FETCH_VALUE_AND_CAS, FETCH_VIEW, MISS, Connection
from rmemcached.client.api._fetches cimport Fetches, new_fetches
from rmemcached.client.api._reads cimport read_values
from rmemcached.client.api._views cimport Pin, Pins, new_pins
from rmemcached.client.transport._buffers cimport Buffer, find_buffer, new_buffer, register_memory
from rmemcached.client.transport._direct cimport DirectMemory, DirectReader, cas_bytes, direct_want
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._rdma cimport RdmaStream, memory_of
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport (
    answer,
    integer_text,
    is_error,
    put_fetch,
    put_mark,
    put_sink,
    put_target,
    text_of,
)
from rmemcached.client.wire._reply cimport REPLY_EN, REPLY_VA
from rmemcached.direct cimport DIRECT_FOUND, direct_hit, direct_prefault

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    bint PyObject_CheckBuffer(object value)

cdef enum:
    SMALL_TARGET = 4096      # bytes of memory up to which values are asked for together
    LOOK_AT_ONCE = 64 << 20  # bytes of memory copied to between two looks for Ctrl-C


cdef QueuePair queue_of(Stream s):
    # The queue pair of a stream. None: the connection is a plain socket.
    return (<RdmaStream>s).queue if isinstance(s, RdmaStream) else None


cdef object view_of(object memory):
    # A memoryview of an object with the buffer protocol, or DLPack (torch, JAX, CuPy; in the processor's memory).
    if PyObject_CheckBuffer(memory) or not hasattr(memory, "__dlpack__"):
        return memoryview(memory)
    try:
        from numpy import from_dlpack
    except ImportError:
        raise TypeError(f"a {type(memory).__name__} has no buffer protocol, and DLPack needs numpy") from None
    try:
        return memoryview(from_dlpack(memory))
    except (RuntimeError, ValueError) as error:
        raise BufferError(f"the memory of a {type(memory).__name__} cannot be used: {error}") from error


cdef object target_view(object buffer):
    cdef object view = view_of(buffer)
    if view.readonly or not view.c_contiguous:
        raise BufferError("a value is received into a writable, contiguous buffer")
    return view


cdef char *target_of(object view, offset, Py_ssize_t *length) except? NULL:
    # The memory behind offset, and its length.
    cdef const Py_buffer *memory = PyMemoryView_GET_BUFFER(view)
    if not isinstance(offset, int) or not 0 <= offset <= memory.len:
        raise ValueError(f"offset must be from 0 to {memory.len}, the bytes of the buffer, not {offset!r}")
    length[0] = memory.len - <Py_ssize_t>offset
    return <char *>memory.buf + <Py_ssize_t>offset


cdef bint is_lost(const char *to, Py_ssize_t length):
    # Whether a server may still write to this memory of a Buffer.
    cdef Buffer found = find_buffer(NULL, to, length)
    return found is not None and found.lost


cdef Py_ssize_t copy_known(bytes value, char *to, Py_ssize_t length):
    # Copies the value if it has at most `length` bytes. Returns the length of the value.
    if PyBytes_GET_SIZE(value) <= length:
        memcpy(to, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return PyBytes_GET_SIZE(value)


cdef object too_long(object key, Py_ssize_t size, Py_ssize_t length):
    return ValueError(f"the value of {key!r} has {size} bytes, and the buffer {length}")


cdef object fetch_on(Session session, Connection c, object key, fetch_form form, bytes expire, uint32_t *flags):
    # Fetches a value, or MISS, on the entered connection. Leaves or drops c.
    cdef Stream s = c.stream
    cdef list errors = []
    cdef list known = None
    try:
        if s.remote and expire is None:
            known = read_values(c, [key])
        if known is not None and known[0] is not None:
            value, flags[0], cas = known[0]
            if form == FETCH_VALUE_AND_CAS:
                value = value, cas_bytes(cas)
            elif form == FETCH_VIEW:
                value = memoryview(value)
        else:
            put_fetch(s, key, session.serde is not None, form == FETCH_VALUE_AND_CAS, expire)
            if s.remote:
                put_sink(s, form == FETCH_VIEW)
                if form != FETCH_VIEW:
                    memory_of(s).copy_early()
            s.put("\r\n", 2)
            c.exchange()
            value = c.fetched(key, form, flags, errors)
            c.release_sink()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return value


cdef object fetch(Session session, object key, fetch_form form, bytes expire, bytes name, uint32_t *flags):
    return fetch_on(session, session.enter(False, name), key, form, expire, flags)


cdef bytes look(Session session, object key, uint32_t *flags, uint64_t *cas):
    # The value, by a direct read. None: the client must ask the server.
    cdef DirectReader reader = session.reader()
    cdef size_t length
    cdef const char *text
    cdef bytes value
    if reader is None:
        return None
    text = text_of(key, &length)
    value = reader.read(text, length, flags, cas)
    session.tell_late(reader)
    return value


cdef Py_ssize_t look_into(Session session, bytes key, char *to, Py_ssize_t length) except -2:
    # The length of the value, by a direct read. -1: the client must ask the server.
    cdef DirectReader reader = session.reader()
    cdef Py_ssize_t size
    if reader is None or is_lost(to, length):
        return -1
    size = reader.read_into(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), to, length)
    session.tell_late(reader)
    return size


cdef int look_all(Session session, list given, list results) except -1:
    # Puts the lengths of values found by direct reads into results. given: encoded keys, memoryviews, keys.
    cdef DirectReader reader = session.reader()
    cdef direct_want *wants
    cdef Py_ssize_t length, room, i
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t last = 0
    if reader is None or not given:
        return 0
    wants = <direct_want *>calloc(len(given), sizeof(direct_want))
    if wants == NULL:
        raise MemoryError
    try:
        for i in range(len(given)):
            key, view, _ = given[i]
            wants[i].text = PyBytes_AS_STRING(key)
            wants[i].text_length = PyBytes_GET_SIZE(key)
            wants[i].to = target_of(view, 0, &length)
            wants[i].room = length
            if is_lost(wants[i].to, length):
                return 0
        while first < len(given):
            room = 0
            while last < len(given) and room < LOOK_AT_ONCE:
                room += wants[last].room
                last += 1
            reader.read_all(&wants[first], last - first)
            for i in range(first, last):
                if wants[i].size >= 0:
                    results[i] = wants[i].size
                if wants[i].answer == DIRECT_FOUND:
                    reader.note(&wants[i].hit)
                session.tell_late(reader)
            first = last
            PyErr_CheckSignals()
    finally:
        free(wants)
    return 0


cdef object view_again(Session session, object key, uint32_t *flags):
    # Views of a pinned item, if still the key's item. None: the client must ask the server.
    cdef DirectReader reader = session.reader()
    cdef direct_hit hit
    cdef size_t length
    cdef const char *text
    cdef list found = None
    cdef Pins pins
    cdef Pin pin
    if reader is None:
        return None
    text = text_of(key, &length)
    lock_state(&shared_state)
    try:
        # With the lock nobody makes or releases pins: a pin found here is older than this look-up, and the server still
        # keeps its item. So the place has had no other item since.
        pins = None
        if reader.find(text, length, &hit) == DIRECT_FOUND:
            pins = session.pins_with(reader.memory, hit.place)
        if pins is not None:
            pin = pins.places[hit.place]
            flags[0] = pin.flags
            found = pins.views_of(pin)
    finally:
        unlock_state(&shared_state)
    if found is not None:
        reader.note(&hit)
        session.tell_late(reader)
    return found


cdef object pin_value(Session session, object key, uint32_t *flags):
    # Views of the item's memory in a list, or MISS; over a stream without views, the value of get(copy=False).
    # None: the server gave no views, and the caller must ask for the value.
    cdef Connection c = session.enter(False, b"get_view")
    cdef Stream s = c.stream
    cdef size_t length
    cdef const char *text = text_of(key, &length)
    cdef object found = None
    cdef Pin pin
    if c.pins is None:
        c.pins = new_pins(s, session._releases)
    if c.pins is None:
        return fetch_on(session, c, key, FETCH_VIEW, None, flags)
    try:
        s.put("rdma_view ", 10)
        s.put(text, length)
        s.put("\r\n", 2)
        c.exchange()
        if c.reply.code == REPLY_EN:
            found = MISS
        elif not is_error(answer(s)):
            pin = c.pins.take(s)
            if pin is None:
                raise c.broken(-EBADMSG)
            flags[0] = pin.flags
            found = c.pins.views_of(pin)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, None)
    return found


cdef object get_value(Session session, object key, object default, object expire, fetch_form form, bytes name):
    cdef object encoded = session.sendable_key(key)
    cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
    cdef uint32_t flags = 0
    cdef uint64_t cas = 0
    try:
        if session.views and form == FETCH_VALUE:
            form = FETCH_VIEW
        if session._reader is not None and seconds is None:
            value = look(session, encoded, &flags, &cas)
            if value is not None:
                return session.load(key, memoryview(value) if form == FETCH_VIEW else value, flags)
        value = fetch(session, encoded, form, seconds, name, &flags)
        if value is not MISS:
            return session.load(key, value, flags)
    except Exception:
        if not session.ignore_exc:
            raise
    return default


cdef object get_with_cas(Session session, object key, object default, object cas_default, object expire, bytes name):
    cdef bytes encoded = session.encoded_key(key)
    cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
    cdef uint32_t flags = 0
    cdef uint64_t cas = 0
    try:
        if session._reader is not None and seconds is None:
            value = look(session, encoded, &flags, &cas)
            if value is not None:
                return session.load(key, value, flags), cas_bytes(cas)
        found = fetch(session, encoded, FETCH_VALUE_AND_CAS, seconds, name, &flags)
        if found is not MISS:
            return session.load(key, found[0], flags), found[1]
    except Exception:
        if not session.ignore_exc:
            raise
    return default, cas_default


cdef dict get_values(Session session, object keys, bint with_cas, object expire, bytes name):
    cdef list names = list(keys)
    cdef list encoded = [session.sendable_key(key) for key in names]
    cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
    if not names:
        return {}
    try:
        if session._reader is not None and seconds is None:
            return look_many(session, names, encoded, with_cas, name)
        return fetch_many(session, names, encoded, with_cas, seconds, name)
    except Exception:
        if not session.ignore_exc:
            raise
    return {}


cdef dict look_many(Session session, list names, list encoded, bint with_cas, bytes name):
    # Gets values by direct reads, and the rest by requests.
    cdef list values = []
    cdef list numbers = []
    cdef list left = []
    cdef list left_encoded = []
    cdef dict found = {}
    cdef dict rest = {}
    cdef DirectReader reader = session.reader()
    cdef size_t length
    cdef const char *text
    cdef uint32_t flags = 0
    cdef uint64_t cas = 0
    cdef Py_ssize_t i
    for i in range(len(names)):
        value = None
        if reader is not None:
            text = text_of(encoded[i], &length)
            value = reader.read(text, length, &flags, &cas)
            session.tell_late(reader)
        if value is None:
            left.append(names[i])
            left_encoded.append(encoded[i])
        values.append(value)
        if with_cas or session.serde is not None:
            numbers.append((flags, cas))
    if left:
        rest = fetch_many(session, left, left_encoded, with_cas, None, name)
    if len(left) == len(names):
        return rest
    for i in range(len(names)):
        value = values[i]
        if value is None:
            value = rest.get(names[i], MISS)
            if value is MISS:
                continue
        elif with_cas or session.serde is not None:
            flags, cas = numbers[i]
            value = session.load(names[i], value, flags)
            if with_cas:
                value = (value, cas_bytes(cas))
        found[names[i]] = value
    return found


cdef dict fetch_many(Session session, list names, list encoded, bint with_cas, bytes expire, bytes name):
    cdef Connection c = session.enter(False, name)
    cdef Stream s = c.stream
    cdef list errors = []
    cdef dict loads = {}
    cdef dict found = {}
    cdef uint32_t flags = 0
    cdef list known = None
    cdef list wanted = encoded
    cdef Fetches fetches
    cdef Py_ssize_t i
    try:
        if s.remote and expire is None:
            known = read_values(c, encoded)
        if known is not None:
            wanted = [encoded[i] for i in range(len(encoded)) if known[i] is None]
        fetches = new_fetches(c, wanted, session.serde is not None, with_cas, expire)
        fetches.ask()
        for i in range(len(names)):
            if known is not None and known[i] is not None:
                value, flags, cas = known[i]
                if with_cas:
                    value = value, cas_bytes(cas)
            else:
                fetches.answer()
                value = c.fetched(encoded[i], FETCH_VALUE_AND_CAS if with_cas else FETCH_VALUE, &flags, errors)
            if value is MISS:
                continue
            given = names[i]
            if session.serde is not None:
                loads[given] = flags
            found[given] = value
        c.release_sink()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    # The serde is called after `leave`, since it may call this client.
    for given, number in loads.items():
        value = found[given]
        if with_cas:
            found[given] = (session.load(given, value[0], number), value[1])
        else:
            found[given] = session.load(given, value, number)
    return found


cdef Py_ssize_t fetch_into(Session session, bytes key, char *to, Py_ssize_t length) except -2:
    # Fetches a value into memory. Returns its length; -1: no item. A longer value is not copied.
    cdef Connection c = session.enter(False, b"get_into")
    cdef Stream s = c.stream
    cdef list errors = []
    cdef list known = None
    cdef Py_ssize_t size = -1
    if s.remote and is_lost(to, length):
        # Nothing was sent, so the connection is in order.
        session.leave(c, None)
        raise BufferError("a server that did not answer in time may still write to this Buffer")
    try:
        if s.remote:
            known = read_values(c, [key])
        if known is not None and known[0] is not None:
            size = copy_known(known[0][0], to, length)
        else:
            put_fetch(s, key, False, False, None)
            if s.remote and length > <Py_ssize_t>s.inline_limit:
                put_target(s, to, length)
            s.put("\r\n", 2)
            c.exchange()
            size = read_into(c, key, to, length, errors)
            c.release_sink()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return size


cdef Py_ssize_t read_into(Connection c, bytes key, char *to, Py_ssize_t length, list errors) except -2:
    # The answer to a fetch, with results as of fetch_into.
    if c.reply.code == REPLY_VA:
        c.check_value(key, False)
        return c.value_into(to, length)
    if c.reply.code != REPLY_EN:
        c.refused(errors)
    return -1


cdef object fetch_small(Session session, list given, list which, list results):
    # Called by get_many_into for given[i], with each i in `which`: sends the requests together, and puts the lengths of
    # the values into results. Returns the exception for a too long value, or None.
    cdef Connection c = session.enter(False, b"get_many_into")
    cdef list errors = []
    cdef list known = None
    cdef list wanted = [given[i][0] for i in which]
    cdef object problem = None
    cdef Py_ssize_t length, size, i, at
    cdef bint first = True
    cdef char *to
    try:
        if c.stream.remote:
            known = read_values(c, wanted)
        for at in range(len(wanted)):
            if known is None or known[at] is None:
                put_fetch(c.stream, wanted[at], False, False, None)
                c.stream.put("\r\n", 2)
        for at, i in enumerate(which):
            key, view, name = given[i]
            to = target_of(view, 0, &length)
            if known is not None and known[at] is not None:
                size = copy_known(known[at][0], to, length)
            else:
                c.read_answer(first)
                first = False
                size = read_into(c, key, to, length, errors)
            problem = problem or (too_long(name, size, length) if size > length else None)
            results[i] = size if size >= 0 else None
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return problem


cdef object get_view(Session session, object key, object default):
    cdef object encoded = session.sendable_key(key)
    cdef uint32_t flags = 0
    cdef uint64_t cas = 0
    try:
        found = None
        if session._reader is not None:
            found = view_again(session, encoded, &flags)
        if found is None:
            found = pin_value(session, encoded, &flags)
        if found is None and session._reader is not None:
            # The server gives no view of the item. The client may still read the value directly.
            found = look(session, encoded, &flags, &cas)
            found = None if found is None else memoryview(found)
        if found is None:
            found = fetch(session, encoded, FETCH_VIEW, None, b"get_view", &flags)
        elif isinstance(found, list):
            if len(found) == 1:
                found = found[0]
            elif session.serde is not None:
                found = memoryview(b"".join(found))
        if found is not MISS:
            return session.load(key, found, flags)
    except Exception:
        if not session.ignore_exc:
            raise
    return default


cdef object prefault(Session session):
    cdef DirectMemory memory = session.memory()
    cdef uint64_t at = 0
    cdef uint64_t mapped = 0
    cdef bint more = True
    cdef Connection c
    if memory is None:
        # Only a request shows whether the connection's server still runs.
        c = session.enter(False, b"prefault")
        try:
            put_mark(c.stream)
            c.exchange()
        except BaseException:
            session.drop(c)
            raise
        session.leave(c, None)
        memory = session.memory()
    while more and memory is not None:
        with nogil:
            more = direct_prefault(&memory.memory, &at, &mapped)
        PyErr_CheckSignals()
    return mapped


cdef object make_buffer(Session session, object size):
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"a Buffer has at least one byte, not {size!r}")
    cdef Connection c = session.enter(True, b"buffer")
    try:
        return new_buffer(queue_of(c.stream), size)
    finally:
        session.leave(c, None)


cdef object register_object(Session session, object memory):
    cdef object view = view_of(memory)
    cdef Connection c = session.enter(True, b"register")
    try:
        return register_memory(queue_of(c.stream), view)
    finally:
        session.leave(c, None)


cdef object get_into(Session session, object key, object buffer, object offset, object default):
    cdef bytes encoded = session.encoded_key(key)
    cdef object view = target_view(buffer)
    cdef Py_ssize_t length
    cdef char *to = target_of(view, offset, &length)
    cdef Py_ssize_t size = look_into(session, encoded, to, length) if session._reader is not None else -1
    if size < 0:
        size = fetch_into(session, encoded, to, length)
    if size < 0:
        return default
    if size > length:
        raise too_long(key, size, length)
    return size


cdef list get_many_into(Session session, object pairs):
    cdef list given = [(session.encoded_key(key), target_view(buffer), key) for key, buffer in pairs]
    cdef list results = [None] * len(given)
    cdef list small = []
    cdef Py_ssize_t length, size, i
    cdef char *to
    cdef object problem = None
    if session._reader is not None:
        look_all(session, given, results)
    for i in range(len(given)):
        key, view, name = given[i]
        to = target_of(view, 0, &length)
        size = -1 if results[i] is None else results[i]
        if size < 0 and length <= SMALL_TARGET:
            small.append(i)
            continue
        if size < 0:
            size = fetch_into(session, key, to, length)
        problem = problem or (too_long(name, size, length) if size > length else None)
        results[i] = size if size >= 0 else None
    if small:
        problem = fetch_small(session, given, small, results) or problem
    if problem is not None:
        raise problem
    return results
