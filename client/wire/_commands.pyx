"""See _commands.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from rmemcached.client.transport._gathered cimport Gathered, holds_addresses
from rmemcached.client.transport._lane_memory cimport memory_name
from rmemcached.client.transport._rdma cimport RdmaStream, memory_of
from rmemcached.client.transport._stream cimport COPY_LIMIT
from rmemcached.client.wire._classic cimport put_classic, put_classic_fetch, put_classic_store
from rmemcached.client.wire._modes cimport STORE_ADD, STORE_APPEND, STORE_PREPEND, STORE_REPLACE

from rmemcached.client.exceptions import (
    FULL,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    authentication_wanted,
    is_unauthenticated,
    too_many_connections,
)

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyNumber_Index(object value)
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    bint PyObject_CheckBuffer(object value)
    bint PyBuffer_IsContiguous(const Py_buffer *view, char order)

cdef enum:
    NAMED_MOST = 0x7FFFFFFF  # bytes of memory named in a request
    NUMBER_MAX = 20          # digits of 2**64 - 1

cdef uint64_t HIGHEST_BITS = 0x8080808080808080ULL
cdef uint64_t LOWEST = 0x2121212121212121ULL   # in each byte: the lowest character that needs no further check


# --- keys, values and numbers ---

cdef bytes checked_key(bytes key):
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(key)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t i
    if n > KEY_MAX:
        raise MemcacheIllegalInputError(f"Key is too long: {key!r}")
    if n == 0:
        raise MemcacheIllegalInputError("Key is empty")
    for i in range(n):
        if p[i] <= 32:
            if p[i] == 32 or 9 <= p[i] <= 13:
                raise MemcacheIllegalInputError(f"Key contains whitespace: {key!r}")
            if p[i] == 0:
                raise MemcacheIllegalInputError(f"Key contains null: {key!r}")
    return key


cdef const char *text_of(object key, size_t *length) noexcept:
    # The key is a result of sendable_key.
    if type(key) is bytes:
        length[0] = PyBytes_GET_SIZE(key)
        return PyBytes_AS_STRING(key)
    length[0] = PyUnicode_GET_LENGTH(key)
    return <const char *>PyUnicode_DATA(key)


cdef bytes bytes_of_key(object key):
    cdef size_t length
    cdef const char *text = text_of(key, &length)
    return text[:length]


cdef inline bint is_plain(const char *text, Py_ssize_t length) noexcept:
    # Whether the text is a key without bytes of whitespace or null.
    cdef uint64_t eight
    cdef Py_ssize_t i = 0
    if length == 0 or length > KEY_MAX:
        return False
    while i + 8 <= length:
        memcpy(&eight, text + i, 8)
        # The subtraction sets the highest bit of a byte below 33.
        if (eight - LOWEST) & ~eight & HIGHEST_BITS:
            return False
        i += 8
    while i < length:
        if <unsigned char>text[i] <= 32:
            return False
        i += 1
    return True


cdef object sendable_key(object key, bytes prefix, bint unicode_keys):
    if (type(key) is str and PyUnicode_IS_COMPACT_ASCII(key) and PyBytes_GET_SIZE(prefix) == 0
            and is_plain(<const char *>PyUnicode_DATA(key), PyUnicode_GET_LENGTH(key))):
        return key
    return encode_key(key, prefix, unicode_keys)


cdef bytes encode_key(object key, bytes prefix, bint unicode_keys):
    cdef const char *text
    cdef Py_ssize_t n
    cdef bytes encoded
    if type(key) is bytes:
        encoded = key
    elif isinstance(key, bytes):
        encoded = exact_bytes(key)
    elif isinstance(key, str):
        if not (unicode_keys or PyUnicode_IS_ASCII(key)):
            raise MemcacheIllegalInputError(f"Non-ASCII key: {key!r}")
        text = PyUnicode_AsUTF8AndSize(key, &n)
        encoded = PyBytes_FromStringAndSize(text, n)
    else:
        raise TypeError(f"key must be str or bytes, not {type(key).__name__}")
    if PyBytes_GET_SIZE(prefix):
        encoded = prefix + encoded
    return checked_key(encoded)


cdef bytes exact_bytes(object value):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))


cdef object encode_value(object value, str encoding):
    cdef object view
    if isinstance(value, (bytes, Gathered)):
        return value
    if isinstance(value, str):
        try:
            return value.encode(encoding)
        except UnicodeEncodeError as error:
            raise MemcacheIllegalInputError(f"Data values must be binary-safe: {error}") from error
    # Numbers and dates of NumPy have a buffer, too, but are stored as text.
    if not PyObject_CheckBuffer(value) or getattr(value, "ndim", None) == 0:
        # The pieces of a value, as get_view returns them.
        if type(value) is list and value and all([isinstance(piece, memoryview) for piece in value]):
            return Gathered(value)
        return encode_value(str(value), encoding)
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        raise MemcacheIllegalInputError(
            f"a {type(value).__name__} that does not give its bytes cannot be stored ({error}): store its tobytes(), or"
            " use a serde") from error
    if view.ndim == 0:
        return encode_value(str(value), encoding)
    if holds_addresses(view.format):
        raise MemcacheIllegalInputError(
            f"a {type(value).__name__} of Python objects or pointers (format {view.format!r}) cannot be stored: use a"
            " serde")
    if PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view), c'C'):
        return view
    return view.tobytes()


cdef object integer_of(object value, str name, str kinds="integer"):
    # The value as an int. A bool is refused: its text would be a word.
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return PyNumber_Index(value)
    except TypeError:
        raise MemcacheIllegalInputError(f"{name} must be {kinds}, got bad value: {value!r}") from None


cdef bytes integer_text(object value, str name):
    return b"%d" % integer_of(value, name)


cdef bytes number_text(object value, str name):
    value = integer_of(value, name)
    return None if value == 0 else b"%d" % value


cdef bytes expire_text(object expire):
    expire = integer_of(expire, "expire")
    if not -1 << 31 <= expire < 1 << 31 and -1 << 63 < expire < 1 << 63:
        expire = ((expire + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    return None if expire == 0 else b"%d" % expire


cdef bytes delta_text(object value, str name):
    value = integer_of(value, name)
    if not 0 <= value < 1 << 64:
        # The client raises the server's error of incr and decr for such a delta, and sends no request.
        raise MemcacheClientError(b"invalid numeric delta argument")
    return b"%d" % value


cdef bytes cas_text(object cas, str encoding):
    if isinstance(cas, str):
        try:
            cas = cas.encode(encoding)
        except UnicodeEncodeError:
            raise MemcacheIllegalInputError(f"non-ASCII cas value: {cas!r}") from None
    elif not isinstance(cas, bytes):
        cas = b"%d" % integer_of(cas, "cas", "integer, string, or bytes")
    if not cas.isdigit():
        raise MemcacheIllegalInputError(f"cas must only contain values in 0-9, got bad value: {cas!r}")
    return exact_bytes(cas)


# --- requests ---

cdef int put_bytes(Stream s, bytes text) except -1:
    return s.put(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int put_end(Stream s, bint quiet) except -1:
    return s.put(" q\r\n", 4) if quiet else s.put("\r\n", 2)


cdef int put_mark(Stream s) except -1:
    return s.put("version\r\n", 9) if s.classic else s.put("mn\r\n", 4)


cdef int put_fetch(Stream s, object key, bint with_flags, bint with_cas, bytes expire) except -1:
    cdef size_t length
    cdef const char *text = text_of(key, &length)
    cdef char *to
    if s.classic:
        return put_classic_fetch(s, text[:length], with_cas, expire)
    to = s.room(length + 5)
    memcpy(to, "mg ", 3)
    memcpy(to + 3, text, length)
    memcpy(to + 3 + length, " v", 2)
    s.wlen += length + 5
    if with_flags:
        s.put(" f", 2)
    if with_cas:
        s.put(" c", 2)
    if expire is not None:
        s.put(" T", 2)
        put_bytes(s, expire)
    return 0


cdef int put_store_mode(Stream s, store_mode mode) except -1:
    if mode == STORE_ADD:
        return s.put(" ME", 3)
    if mode == STORE_REPLACE:
        return s.put(" MR", 3)
    if mode == STORE_APPEND:
        return s.put(" MA", 3)
    if mode == STORE_PREPEND:
        return s.put(" MP", 3)
    return 0


cdef int put_flag(Stream s, const char *flag, bytes text) except -1:
    if text is None:
        return 0
    s.put(flag, 2)
    return put_bytes(s, text)


cdef bint put_store(Stream s, store_mode mode, object key, object data, bytes flags, bytes expire, bytes cas,
                    bint quiet) except -1:
    cdef size_t length, key_length
    cdef const char *address = bytes_of(data, &length)
    cdef const char *text = text_of(key, &key_length)
    cdef char *to
    if s.classic:
        put_classic_store(s, mode, text[:key_length], length, flags, expire, cas, quiet)
        put_bytes_of(s, data, address, length)
        return False
    to = s.room(key_length + 4)
    memcpy(to, "ms ", 3)
    memcpy(to + 3, text, key_length)
    to[3 + key_length] = c' '
    s.wlen += key_length + 4
    s.put_number(length)
    put_flag(s, " F", flags)
    put_store_mode(s, mode)
    put_flag(s, " T", expire)
    put_flag(s, " C", cas)
    return put_value(s, data, address, length, quiet)


cdef bint put_meta_store(Stream s, bytes line, bytes flags, object data) except -1:
    cdef size_t length
    cdef const char *address = bytes_of(data, &length)
    put_bytes(s, line)
    s.put(" ", 1)
    s.put_number(length)
    put_bytes(s, flags)
    return put_value(s, data, address, length, False)


cdef inline const char *bytes_of(object data, size_t *length):
    # The bytes of a value: bytes, or a contiguous memoryview. NULL: data is Gathered.
    cdef Py_buffer *view
    if isinstance(data, Gathered):
        length[0] = (<Gathered>data).nbytes
        return NULL
    if isinstance(data, bytes):
        length[0] = PyBytes_GET_SIZE(data)
        return PyBytes_AS_STRING(data)
    view = PyMemoryView_GET_BUFFER(data)
    length[0] = view.len
    return <const char *>view.buf


cdef int put_bytes_of(Stream s, object data, const char *address, size_t length) except -1:
    cdef const Py_buffer *part
    if address != NULL:
        s.put_reference(address, length)
    else:
        for view in (<Gathered>data).views:
            part = PyMemoryView_GET_BUFFER(view)
            s.put_reference(<const char *>part.buf, part.len)
    return s.put("\r\n", 2)


cdef int put_name(Stream s, const memory_name *name) except -1:
    s.put(" @", 2)
    s.put_hex(name.address)
    s.put(":", 1)
    return s.put_hex(name.key)


cdef int put_place(Stream s, const memory_name *name) except -1:
    put_name(s, name)
    s.put(":", 1)
    return s.put_hex(min(name.size, <size_t>NAMED_MOST))


cdef int put_sink(Stream s, bint lends) except -1:
    cdef memory_name name
    if memory_of(s).name_sink(lends, &name):
        put_place(s, &name)
    return 0


cdef int put_target(Stream s, char *to, size_t size) except -1:
    cdef memory_name name
    if memory_of(s).name_target(to, size, &name):
        put_place(s, &name)
    return 0


cdef bint expose(RdmaStream s, object data, const char *address, size_t length, memory_name *name) except -1:
    return not s.goes_in_messages(length) and s.memory.expose(data, address, length, name)


cdef bint put_value(Stream s, object data, const char *address, size_t length, bint quiet) except -1:
    # Puts the end of ms, and the value or the name of the value's memory. Returns the same as put_store.
    cdef memory_name name
    cdef char *to
    if not quiet and address != NULL and length <= min(s.inline_limit, <size_t>COPY_LIMIT):
        to = s.room(length + 4)
        memcpy(to, "\r\n", 2)
        memcpy(to + 2, address, length)
        memcpy(to + 2 + length, "\r\n", 2)
        s.wlen += length + 4
        return False
    if s.remote and length > s.inline_limit and expose(s, data, address, length, &name):
        put_name(s, &name)
        s.put("\r\n", 2)
        return True
    put_end(s, quiet)
    put_bytes_of(s, data, address, length)
    return False


cdef int put_delete(Stream s, bytes key, bint quiet) except -1:
    if s.classic:
        return put_classic(s, "delete", key, None, quiet)
    s.put("md ", 3)
    put_bytes(s, key)
    return put_end(s, quiet)


cdef int put_arithmetic(Stream s, bytes key, bytes mode, bytes delta, bint quiet) except -1:
    if s.classic:
        return put_classic(s, "incr" if mode == b" D" else "decr", key, delta, quiet)
    s.put("ma ", 3)
    put_bytes(s, key)
    put_bytes(s, mode)
    put_bytes(s, delta)
    return s.put(" q\r\n", 4) if quiet else s.put(" v\r\n", 4)


cdef int put_touch(Stream s, bytes key, bytes seconds, bint quiet) except -1:
    if quiet or s.classic:
        # A quiet touch is no mg, because mg answers hits in spite of q.
        return put_classic(s, "touch", key, seconds, quiet)
    return put_bytes(s, b"mg %b T%b\r\n" % (key, seconds))


# --- answers ---

cdef bytes answer(Stream s):
    return s.line[:s.line_length]


cdef bint is_error(bytes line):
    return line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"))


cdef bint is_refusal(bytes line):
    return line.startswith((b"BUSY ", b"BADCLASS "))


cdef object error_of(bytes line, bytes name):
    if is_unauthenticated(line):
        return authentication_wanted(line)
    if line.startswith(b"CLIENT_ERROR"):
        return MemcacheClientError(line[line.find(b" ") + 1:])
    if line.startswith(b"SERVER_ERROR"):
        return MemcacheServerError(line[line.find(b" ") + 1:])
    if line == b"ERROR":
        return MemcacheUnknownCommandError(name)
    if line == FULL:
        return too_many_connections()
    if line.startswith(b"ERROR "):
        return MemcacheServerError(line[6:])
    if is_refusal(line):
        return MemcacheServerError(line[line.find(b" ") + 1:])
    return MemcacheUnknownError(line[:32])


cdef object number_of(bytes text):
    text = text.rstrip(b" ")
    return int(text) if text.isdigit() and PyBytes_GET_SIZE(text) <= NUMBER_MAX else None


cdef bint read_statistic(bytes line, dict found) except -1:
    parts = line.split()
    if len(parts) < 2:
        return False
    if line.startswith(b"STAT "):
        found[parts[1]] = parts[2] if len(parts) > 2 else b""
        return True
    if line.startswith(b"ITEM "):
        found[parts[1]] = b" ".join(parts[2:])
        return True
    return False


def _to_bool(value):
    return int(value) != 0


def _to_float(value):
    return float(value.replace(b":", b"."))


def _to_yes(value):
    return value == b"yes"


def _to_umask(value):
    return int(value, 8)


# Statistics other than integers: name -> conversion of the value's bytes.
cdef dict STAT_TYPES = {
    b"version": bytes,
    b"rusage_user": _to_float,
    b"rusage_system": _to_float,
    b"hash_is_expanding": _to_bool,
    b"slab_reassign_running": _to_bool,
    b"inter": bytes,
    b"growth_factor": float,
    b"stat_key_prefix": bytes,
    b"umask": _to_umask,
    b"detail_enabled": _to_bool,
    b"cas_enabled": _to_bool,
    b"auth_enabled_sasl": _to_yes,
    b"maxconns_fast": _to_bool,
    b"slab_reassign": _to_bool,
    b"slab_automove": _to_bool,
}


cdef int convert_statistics(dict found) except -1:
    for name, value in found.items():
        try:
            found[name] = STAT_TYPES.get(name, int)(value)
        except ValueError:
            # The value stays bytes, as with pymemcache.
            continue
    return 0
