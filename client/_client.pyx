"""The memcached client: pymemcache's methods over a Stream."""

import socket
import warnings

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADMSG, EINTR, EMSGSIZE, ENOMEM, ETIMEDOUT
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport strerror, strlen

from rmemcached.client._reply cimport (
    REPLY_EN,
    REPLY_EX,
    REPLY_HD,
    REPLY_MN,
    REPLY_NF,
    REPLY_NS,
    REPLY_VA,
)
from rmemcached.client._stream cimport Stream
from rmemcached.sys.linux cimport memmem, pthread_atfork

from rmemcached.client.connection import TRANSPORTS, open_stream
from rmemcached.client.exceptions import (
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from rmemcached.client.sockets import KeepaliveOpts, normalize_server

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    bint PyBuffer_IsContiguous(const Py_buffer *view, char order)


cdef enum:
    KEY_MAX = 250            # bytes
    SYNC_INTERVAL = 1024     # commands without a reply after which the client looks for error lines
    BODY_MAX = 0x7FFFFFFF    # bytes; a reply that announces more is not believed

cdef object MISS = object()

# Counts the forks that this process is behind: a connection belongs to the process that made it.
cdef unsigned int fork_generation = 0


cdef void after_fork_in_child() noexcept nogil:
    global fork_generation
    fork_generation += 1


pthread_atfork(NULL, NULL, after_fork_in_child)


def _to_bool(value):
    return int(value) != 0


def _to_float(value):
    return float(value.replace(b":", b"."))


def _to_yes(value):
    return value == b"yes"


def _to_umask(value):
    return int(value, 8)


# Statistics that are not integers: name -> conversion of the value's bytes.
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


class FunctionSerde:
    """A serde object of two functions: serializer(key, value) -> (value, flags), deserializer(key, value, flags)."""

    def __init__(self, serializer=None, deserializer=None):
        self._serializer = serializer
        self._deserializer = deserializer

    def serialize(self, key, value):
        return (value, 0) if self._serializer is None else self._serializer(key, value)

    def deserialize(self, key, value, flags):
        return value if self._deserializer is None else self._deserializer(key, value, flags)


cdef bytes checked_key(bytes key):
    # A key as memcached takes it, or MemcacheIllegalInputError.
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


cdef bytes integer_text(object value, str name):
    if not isinstance(value, int):
        raise MemcacheIllegalInputError(f"{name} must be integer, got bad value: {value!r}")
    return b"%d" % value


cdef int put_bytes(Stream s, bytes text) except -1:
    return s.put(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int put_text(Stream s, const char *text) except -1:
    return s.put(text, strlen(text))


cdef class Client:
    """A client of one memcached or rmemcached server, with pymemcache's methods.

    Args:
        server: (host, port), "host", "host:port", "[v6]:port", or the path of a UNIX socket ("/path" or "unix:/path").
            ``Client("host", port)`` is understood as well.
        serde: an object with ``serialize(key, value) -> (value, flags)`` and ``deserialize(key, value, flags)``.
        serializer, deserializer: the two as functions, where there is no serde.
        connect_timeout, timeout: seconds for connecting, and for each wait for the server. None: no limit.
        no_delay: TCP_NODELAY. True by default: a command behind one without a reply would wait for the server's ACK.
        ignore_exc: get, gets, gat, gats, get_many, gets_many and stats take every error for a miss.
        socket_module: only the standard library's is supported.
        socket_keepalive: a KeepaliveOpts, or None.
        key_prefix: bytes put before every key.
        default_noreply: what ``noreply`` is where a call does not say it (cas, incr and decr: False).
        allow_unicode_keys: str keys are sent as UTF-8; otherwise they must be ASCII.
        encoding: of str values (and of the text of other objects that are not bytes-like).
        tls_context: not supported, None only.
        transport: "verbs": RDMA on a device of the system (RMEMCACHED_RDMA_DEVICE names it, "none" forbids it),
            "soft_shm": shared memory with a server on this host, "soft_iw": RDMA (iWARP in software), "tcp": a plain
            connection, "auto": the first of these that both ends have; the logger rmemcached.client says which and
            why. Over a UNIX socket: "soft_shm" or "tcp". "rdma_cm": as "verbs", but connected through rdma_cm, without
            a TCP connection; iWARP devices too.
        spin: microseconds for which a wait polls before it blocks, while that pays. 0: never. None: the default of the
            transport (0 for tcp, 50 for others).
        rdma_cm_port: the server's port of rdma_cm (its -o rdma_cm_port=). With it "auto" tries rdma_cm first. None:
            "rdma_cm" takes the number of the TCP port.

    Values are bytes; any object with a contiguous buffer is sent from where it is, without a copy. The values of get
    are bytes objects into which the data was received.

    The connection is made by the first command, and anew by the next command after `close` or after an error that
    leaves it unusable. Not thread-safe: one thread at a time (a second one gets RuntimeError). After a fork, the child
    gets RuntimeError until it calls `close`, which leaves the parent's connection alone.

    Raises MemcacheClientError, MemcacheServerError, MemcacheUnknownCommandError, MemcacheUnknownError,
    MemcacheIllegalInputError, MemcacheUnexpectedCloseError, TimeoutError, OSError.
    """

    cdef readonly object server
    cdef readonly object serde
    cdef readonly object connect_timeout
    cdef readonly object timeout
    cdef readonly bint no_delay
    cdef readonly bint ignore_exc
    cdef readonly object socket_keepalive
    cdef readonly bytes key_prefix
    cdef readonly bint default_noreply
    cdef readonly bint allow_unicode_keys
    cdef readonly str encoding
    cdef readonly object spin
    cdef readonly object rdma_cm_port
    cdef str _wanted             # the transport argument
    cdef object _logged          # the transport that was last reported
    cdef Stream _stream
    cdef str _transport
    cdef bint _busy
    cdef unsigned int _generation
    cdef uint32_t _flags         # of the value that _fetch returned
    cdef bytes _cas

    def __init__(
        self,
        server,
        serde=None,
        serializer=None,
        deserializer=None,
        connect_timeout=None,
        timeout=None,
        no_delay=True,
        ignore_exc=False,
        socket_module=socket,
        socket_keepalive=None,
        key_prefix=b"",
        default_noreply=True,
        allow_unicode_keys=False,
        encoding="ascii",
        tls_context=None,
        *,
        transport="auto",
        spin=None,
        rdma_cm_port=None,
    ):
        if isinstance(serde, int) and not isinstance(serde, bool):
            server = (server, serde)
            serde = None
        self.server = normalize_server(server)
        if serde is None and (serializer is not None or deserializer is not None):
            serde = FunctionSerde(serializer, deserializer)
        self.serde = serde
        for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive seconds or None, not {seconds!r}")
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.no_delay = no_delay
        self.ignore_exc = ignore_exc
        if socket_module is not socket:
            raise ValueError("socket_module: only the standard library's socket module is supported")
        if socket_keepalive is not None and not isinstance(socket_keepalive, KeepaliveOpts):
            for name in ("idle", "intvl", "cnt"):
                if not hasattr(socket_keepalive, name):
                    raise ValueError("socket_keepalive must be a KeepaliveOpts object")
        self.socket_keepalive = socket_keepalive
        if isinstance(key_prefix, str):
            key_prefix = key_prefix.encode("ascii")
        if not isinstance(key_prefix, bytes):
            raise TypeError("key_prefix should be bytes.")
        self.key_prefix = key_prefix
        self.default_noreply = default_noreply
        self.allow_unicode_keys = allow_unicode_keys
        self.encoding = encoding
        if tls_context is not None:
            raise ValueError("tls_context: TLS is not supported")
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
        if transport not in ("auto", "soft_shm", "tcp") and isinstance(self.server, str):
            raise ValueError(f"transport {transport!r} needs a host and port, not the UNIX socket {self.server!r}")
        self._wanted = transport
        if spin is not None and not spin >= 0:
            raise ValueError(f"spin must be microseconds from 0 up, not {spin!r}")
        self.spin = spin
        if rdma_cm_port is not None and not 1 <= rdma_cm_port <= 65535:
            raise ValueError(f"rdma_cm_port must be from 1 to 65535, not {rdma_cm_port!r}")
        if rdma_cm_port is not None and isinstance(self.server, str):
            raise ValueError(f"rdma_cm_port needs a host and port, not the UNIX socket {self.server!r}")
        self.rdma_cm_port = rdma_cm_port

    def __del__(self):
        if self._stream is not None:
            if self._generation == fork_generation:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._drop()

    def __repr__(self):
        return f"<rmemcached.client.Client {self.server!r} transport={self._transport or self._wanted}>"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    @property
    def transport(self):
        """"rdma_cm", "verbs", "soft_shm", "soft_iw" or "tcp"; while there is no connection, the transport asked for."""
        return self._transport if self._stream is not None else self._wanted

    # --- the connection ---

    cdef Stream _enter(self, bint quiet=False):
        # The stream, connected, with an empty request; the client is busy until _busy is cleared. Unless the call is
        # quiet (waits for no answer), the request starts with a mn when commands without an answer precede it.
        cdef Stream s
        if self._busy:
            raise RuntimeError("this Client is in use, by another thread or its own serde; it takes one call at a time")
        s = self._stream
        if s is None:
            self._busy = True
            try:
                self._stream, self._transport, self._logged = open_stream(self, self._wanted, self._logged)
            finally:
                self._busy = False
            self._generation = fork_generation
            s = self._stream
        elif self._generation != fork_generation:
            raise RuntimeError(
                "this Client's connection belongs to the parent process: call close() first, or make a new Client"
            )
        self._busy = True
        s.begin()
        if s.noreplies and not quiet:
            s.put("mn\r\n", 4)
        return s

    cdef void _drop(self) noexcept:
        cdef Stream s = self._stream
        self._stream = None
        self._transport = None
        self._busy = False
        if s is not None:
            s.close()

    def close(self):
        """Closes the connection, if there is one. The next command makes a new one."""
        if self._busy:
            raise RuntimeError("close() while a call of this Client is under way")
        self._drop()

    disconnect_all = close

    cdef object _broken(self, Stream s, int code):
        # The exception for what a stream function returned. The connection is lost; the caller drops it.
        cdef str text
        if code == -ETIMEDOUT:
            return TimeoutError("timed out")
        if code == -EMSGSIZE or code == -EBADMSG:
            line = s.line[:min(s.line_length, <size_t>32)] if code == -EBADMSG else b"line too long"
            return MemcacheUnknownError(line)
        if code == -ENOMEM:
            return MemoryError()
        text = s.failure_text()
        if code == 0 or text:
            return MemcacheUnexpectedCloseError(text) if text else MemcacheUnexpectedCloseError()
        return OSError(-code, strerror(-code).decode())

    cdef int _interrupted(self, Stream s, int code) except -1:
        # After a stream function returned no success: 0 when it is to be repeated.
        if code != -EINTR:
            raise self._broken(s, code)
        return PyErr_CheckSignals()

    cdef int _exchange(self, Stream s) except -1:
        # Sends the request and reads the first line of the answer.
        cdef int r
        s.commit()
        with nogil:
            r = s.push()
            if r > 0:
                r = s.read_reply()
        while r <= 0:
            self._interrupted(s, r)
            with nogil:
                r = s.read_reply()
        return 0

    cdef int _next(self, Stream s) except -1:
        # Reads the next line.
        cdef int r
        if s.has_line():
            r = s.read_reply()
        else:
            with nogil:
                r = s.read_reply()
        while r <= 0:
            self._interrupted(s, r)
            with nogil:
                r = s.read_reply()
        return 0

    cdef int _send(self, Stream s) except -1:
        # Sends a request that has no answer.
        cdef int r
        s.commit()
        with nogil:
            r = s.drain()
        while r <= 0:
            self._interrupted(s, r)
            with nogil:
                r = s.drain()
        return 0

    cdef int _settle(self, Stream s) except -1:
        # The end of a call that sent values: none of them is needed any more.
        if s.iov_next < s.iov_count:
            # A value that is refused is answered before all of it was sent.
            self._send(s)
        return s.unexpose()

    cdef int _unanswered(self, Stream s, size_t commands) except -1:
        # Sends commands with the q flag or noreply. Error lines that come nevertheless are found and dropped later.
        self._send(s)
        s.noreplies += commands
        if s.noreplies >= SYNC_INTERVAL:
            s.begin()
            self._synchronise(s)
        return 0

    cdef int _synchronise(self, Stream s) except -1:
        # Sends the request with a mn at its end, and drops all that is answered before that.
        s.put("mn\r\n", 4)
        s.noreplies = 0
        self._exchange(s)
        while s.reply.code != REPLY_MN:
            self._next(s)
        return 0

    cdef bytes _value(self, Stream s):
        # The value behind a VA line.
        cdef size_t n = s.reply.length
        cdef bytes value
        cdef int r
        if s.reply.in_memory and s.sink_named:
            return s.take_sink(n)
        if s.reply.in_memory or n > BODY_MAX:
            raise MemcacheUnknownError(s.line[:min(s.line_length, <size_t>32)])
        if s.rend - s.rpos >= n + 2:
            value = PyBytes_FromStringAndSize(s.rbuf + s.rpos, n)
            s.dst_left = 0
            s.rpos += n
            r = s.read_body()
        else:
            value = PyBytes_FromStringAndSize(NULL, n)
            s.dst = PyBytes_AS_STRING(value)
            s.dst_left = n
            with nogil:
                r = s.read_body()
            if n > s.inline_limit:
                s.saw_length(n)
        while r <= 0:
            self._interrupted(s, r)
            with nogil:
                r = s.read_body()
        return value

    cdef object _error(self, Stream s, bytes name):
        # The exception for an error line. Raises it itself when the stream cannot be trusted any more.
        cdef bytes line = s.line[:s.line_length]
        if line.startswith(b"CLIENT_ERROR"):
            return MemcacheClientError(line[line.find(b" ") + 1:])
        if line.startswith(b"SERVER_ERROR"):
            return MemcacheServerError(line[line.find(b" ") + 1:])
        if line.startswith(b"ERROR"):
            raise MemcacheUnknownCommandError(name)
        raise MemcacheUnknownError(line[:32])

    # --- keys and values ---

    cdef bytes _key(self, object key):
        cdef const char *text
        cdef Py_ssize_t n
        cdef bytes encoded
        if isinstance(key, bytes):
            encoded = key
        elif isinstance(key, str):
            if not (self.allow_unicode_keys or PyUnicode_IS_ASCII(key)):
                raise MemcacheIllegalInputError(f"Non-ASCII key: {key!r}")
            text = PyUnicode_AsUTF8AndSize(key, &n)
            encoded = PyBytes_FromStringAndSize(text, n)
        else:
            raise TypeError(f"key must be str or bytes, not {type(key).__name__}")
        if PyBytes_GET_SIZE(self.key_prefix):
            encoded = self.key_prefix + encoded
        return checked_key(encoded)

    cdef object _data(self, object value):
        # bytes, or a contiguous memoryview, with what is to be sent for the value.
        cdef object view
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            try:
                return value.encode(self.encoding)
            except UnicodeEncodeError as error:
                raise MemcacheIllegalInputError(f"Data values must be binary-safe: {error}") from error
        try:
            view = memoryview(value)
        except TypeError:
            return self._data(str(value))
        if PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view), c'C'):
            return view
        return view.tobytes()

    cdef object _load(self, object key, bytes value, uint32_t flags):
        return value if self.serde is None else self.serde.deserialize(key, value, flags)

    # --- retrieval ---

    cdef int _put_fetch(self, Stream s, bytes key, bint with_cas, bytes expire) except -1:
        s.put("mg ", 3)
        put_bytes(s, key)
        s.put(" v", 2)
        if self.serde is not None:
            s.put(" f", 2)
        if with_cas:
            s.put(" c", 2)
        if expire is not None:
            s.put(" T", 2)
            put_bytes(s, expire)
        return 0

    cdef object _read_fetch(self, Stream s, bint with_cas, bytes name, list errors):
        # The value of one mg that has been answered with the line just read, or MISS.
        cdef bytes cas
        if s.reply.code == REPLY_VA:
            self._flags = s.reply.flags
            if with_cas:
                cas = s.line[s.reply.cas_offset:s.reply.cas_offset + s.reply.cas_length]
                self._cas = cas
            return self._value(s)
        if s.reply.code != REPLY_EN:
            errors.append(self._error(s, name))
        return MISS

    cdef object _fetch(self, bytes key, bint with_cas, bytes expire, bytes name):
        cdef Stream s = self._enter()
        cdef list errors = []
        try:
            self._put_fetch(s, key, with_cas, expire)
            if s.remote:
                s.put_sink()
            s.put("\r\n", 2)
            self._exchange(s)
            value = self._read_fetch(s, with_cas, name, errors)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return value

    cdef object _get(self, object key, object default, object expire, bytes name):
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
        try:
            value = self._fetch(encoded, False, seconds, name)
            if value is not MISS:
                return self._load(key, value, self._flags)
        except Exception:
            if not self.ignore_exc:
                raise
        return default

    cdef object _gets(self, object key, object default, object cas_default, object expire, bytes name):
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
        try:
            value = self._fetch(encoded, True, seconds, name)
            if value is not MISS:
                cas = self._cas
                return self._load(key, value, self._flags), cas
        except Exception:
            if not self.ignore_exc:
                raise
        return default, cas_default

    cdef dict _get_many(self, object keys, bint with_cas, bytes name):
        cdef list names = list(keys)
        cdef list encoded = [self._key(key) for key in names]
        if not names:
            return {}
        try:
            return self._fetch_many(names, encoded, with_cas, name)
        except Exception:
            if not self.ignore_exc:
                raise
        return {}

    cdef dict _fetch_many(self, list names, list encoded, bint with_cas, bytes name):
        cdef Stream s = self._enter()
        cdef list errors = []
        cdef list flags = []
        cdef dict found = {}
        cdef bint first = True
        cdef bytes key
        try:
            for key in encoded:
                self._put_fetch(s, key, with_cas, None)
                s.put("\r\n", 2)
            for given in names:
                if first:
                    self._exchange(s)
                    first = False
                else:
                    self._next(s)
                value = self._read_fetch(s, with_cas, name, errors)
                if value is MISS:
                    continue
                if self.serde is not None:
                    flags.append((given, self._flags))
                found[given] = (value, self._cas) if with_cas else value
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        for given, number in flags:
            value = found[given]
            if with_cas:
                found[given] = (self._load(given, value[0], number), value[1])
            else:
                found[given] = self._load(given, value, number)
        return found

    def get(self, key, default=None):
        """The value of key, or default."""
        return self._get(key, default, None, b"get")

    def gets(self, key, default=None, cas_default=None):
        """(value, cas) of key, or (default, cas_default). cas is bytes, for `cas`."""
        return self._gets(key, default, cas_default, None, b"gets")

    def gat(self, key, expire=0, default=None):
        """Like `get`, and sets the expiry of the item to expire seconds from now (0: never)."""
        return self._get(key, default, expire, b"gat")

    def gats(self, key, expire=0, default=None, cas_default=None):
        """Like `gets`, and sets the expiry of the item to expire seconds from now (0: never)."""
        return self._gets(key, default, cas_default, expire, b"gats")

    def get_many(self, keys):
        """{key: value} of those of the keys that exist. One round trip."""
        return self._get_many(keys, False, b"get")

    def gets_many(self, keys):
        """{key: (value, cas)} of those of the keys that exist. One round trip."""
        return self._get_many(keys, True, b"gets")

    get_multi = get_many

    # --- storage ---

    cdef bint _put_store(self, Stream s, bytes key, object data, bytes options, bint noreply) except -1:
        # Appends one ms command. True when the server will read the value from memory: there is an answer then.
        cdef const char *address
        cdef size_t length
        cdef Py_buffer *view
        cdef uint64_t remote_address = 0
        cdef uint32_t remote_key = 0
        if isinstance(data, bytes):
            address = PyBytes_AS_STRING(data)
            length = PyBytes_GET_SIZE(data)
        else:
            view = PyMemoryView_GET_BUFFER(data)
            address = <const char *>view.buf
            length = view.len
        s.put("ms ", 3)
        put_bytes(s, key)
        s.put(" ", 1)
        s.put_number(length)
        put_bytes(s, options)
        if s.remote and length > s.inline_limit and s.expose(address, length, &remote_address, &remote_key):
            s.put(" @", 2)
            s.put_hex(remote_address)
            s.put(":", 1)
            s.put_hex(remote_key)
            s.put("\r\n", 2)
            return True
        if noreply:
            s.put(" q\r\n", 4)
        else:
            s.put("\r\n", 2)
        s.put_reference(address, length)
        s.put("\r\n", 2)
        return False

    cdef object _read_store(self, Stream s, bytes name, list errors):
        # True, False or None as pymemcache has it, for the line just read.
        if s.reply.code == REPLY_HD:
            return True
        if s.reply.code == REPLY_NS or s.reply.code == REPLY_EX:
            return False
        if s.reply.code != REPLY_NF:
            errors.append(self._error(s, name))
        return None

    cdef object _serialize(self, object key, object value, object flags, list options):
        # What is sent for a value. Its flags go to options, as a piece of the request.
        cdef object number = 0
        if self.serde is not None:
            value, number = self.serde.serialize(key, value)
        if flags is not None:
            number = flags
        options.append(b" F" + integer_text(number, "flags") if number != 0 else b"")
        return self._data(value)

    cdef object _store(self, bytes name, bytes mode, object key, object value, object expire, object noreply,
                       object flags, bytes cas):
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = integer_text(expire, "expire")
        cdef list options = []
        cdef list errors = []
        cdef bint quiet = self.default_noreply if noreply is None else noreply
        cdef bint exposed
        cdef object data = self._serialize(key, value, flags, options)
        cdef bytes option = options[0] + mode
        cdef object result = True
        cdef Stream s
        if seconds != b"0":
            option += b" T" + seconds
        if cas is not None:
            option += b" C" + cas
        s = self._enter(quiet)
        try:
            exposed = self._put_store(s, encoded, data, option, quiet)
            if not quiet:
                self._exchange(s)
                result = self._read_store(s, name, errors)
            elif exposed:
                # The value must stay where it is until the server has it.
                self._synchronise(s)
            else:
                self._unanswered(s, 1)
            self._settle(s)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return result

    def set(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value under key. expire: seconds, 0 for never. Returns True."""
        return self._store(b"set", b"", key, value, expire, noreply, flags, None)

    def add(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key does not exist. True, or False when it does."""
        return self._store(b"add", b" ME", key, value, expire, noreply, flags, None)

    def replace(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key exists. True, or False when it does not."""
        return self._store(b"replace", b" MR", key, value, expire, noreply, flags, None)

    def append(self, key, value, expire=0, noreply=None, flags=None):
        """Adds value behind the one there. True, or False when there is none. expire and flags have no effect."""
        return self._store(b"append", b" MA", key, value, expire, noreply, flags, None)

    def prepend(self, key, value, expire=0, noreply=None, flags=None):
        """Puts value before the one there. True, or False when there is none. expire and flags have no effect."""
        return self._store(b"prepend", b" MP", key, value, expire, noreply, flags, None)

    def cas(self, key, value, cas, expire=0, noreply=False, flags=None):
        """Stores value if the item's cas is still the one given. True; False: it changed; None: there is no item."""
        if isinstance(cas, (int, str)):
            try:
                cas = str(cas).encode(self.encoding)
            except UnicodeEncodeError:
                raise MemcacheIllegalInputError(f"non-ASCII cas value: {cas!r}") from None
        elif not isinstance(cas, bytes):
            raise MemcacheIllegalInputError(f"cas must be integer, string, or bytes, got bad value: {cas!r}")
        if not cas.isdigit():
            raise MemcacheIllegalInputError(f"cas must only contain values in 0-9, got bad value: {cas!r}")
        return self._store(b"cas", b"", key, value, expire, bool(noreply), flags, cas)

    def set_many(self, values, expire=0, noreply=None, flags=None):
        """Stores the values of a dict, all in one round trip. Returns the keys that were not stored."""
        cdef bytes seconds = integer_text(expire, "expire")
        cdef bint quiet = self.default_noreply if noreply is None else noreply
        cdef list names = []
        cdef list encoded = []
        cdef list data = []
        cdef list options = []
        cdef list failed = []
        cdef list errors = []
        cdef bint exposed = False
        cdef Py_ssize_t i
        cdef Stream s
        for key, value in values.items():
            names.append(key)
            encoded.append(self._key(key))
            data.append(self._serialize(key, value, flags, options))
        if not names:
            return []
        seconds = b"" if seconds == b"0" else b" T" + seconds
        s = self._enter(quiet)
        try:
            for i in range(len(names)):
                exposed |= self._put_store(s, encoded[i], data[i], options[i] + seconds, quiet)
            if exposed and quiet:
                self._synchronise(s)
            elif quiet:
                self._unanswered(s, len(names))
            else:
                for i in range(len(names)):
                    if i == 0:
                        self._exchange(s)
                    else:
                        self._next(s)
                    if not self._read_store(s, b"set", errors):
                        failed.append(names[i])
            self._settle(s)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return failed

    set_multi = set_many

    # --- the rest ---

    def delete(self, key, noreply=None):
        """Removes key. True, or False when it was not there."""
        cdef bint quiet = self.default_noreply if noreply is None else noreply
        cdef bytes encoded = self._key(key)
        cdef list errors = []
        cdef Stream s = self._enter(quiet)
        cdef bint deleted = True
        try:
            s.put("md ", 3)
            put_bytes(s, encoded)
            if quiet:
                s.put(" q\r\n", 4)
                self._unanswered(s, 1)
            else:
                s.put("\r\n", 2)
                self._exchange(s)
                deleted = s.reply.code == REPLY_HD
                if not deleted and s.reply.code != REPLY_NF:
                    errors.append(self._error(s, b"delete"))
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return deleted

    def delete_many(self, keys, noreply=None):
        """Removes the keys, all in one round trip. Returns True."""
        cdef bint quiet = self.default_noreply if noreply is None else noreply
        cdef list encoded = [self._key(key) for key in keys]
        cdef list errors = []
        cdef bytes name
        cdef Py_ssize_t i
        cdef Stream s
        if not encoded:
            return True
        s = self._enter(quiet)
        try:
            for name in encoded:
                s.put("md ", 3)
                put_bytes(s, name)
                if quiet:
                    s.put(" q", 2)
                s.put("\r\n", 2)
            if quiet:
                self._unanswered(s, len(encoded))
            else:
                for i in range(len(encoded)):
                    if i == 0:
                        self._exchange(s)
                    else:
                        self._next(s)
                    if s.reply.code != REPLY_HD and s.reply.code != REPLY_NF:
                        errors.append(self._error(s, b"delete"))
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return True

    delete_multi = delete_many

    cdef object _arithmetic(self, bytes name, const char *mode, object key, object value, bint noreply):
        cdef bytes encoded = self._key(key)
        cdef bytes delta = integer_text(value, "value")
        cdef list errors = []
        cdef object result = None
        cdef Stream s
        if not 0 <= value < 1 << 64:
            # What the server would say to it.
            raise MemcacheClientError(b"invalid numeric delta argument")
        s = self._enter(noreply)
        try:
            s.put("ma ", 3)
            put_bytes(s, encoded)
            put_text(s, mode)
            put_bytes(s, delta)
            if noreply:
                s.put(" q\r\n", 4)
                self._unanswered(s, 1)
            else:
                s.put(" v\r\n", 4)
                self._exchange(s)
                if s.reply.code == REPLY_VA:
                    result = int(self._value(s))
                elif s.reply.code != REPLY_NF:
                    errors.append(self._error(s, name))
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return result

    def incr(self, key, value, noreply=False):
        """Adds value to the number that is stored. The new number, None when there is no item (or with noreply)."""
        return self._arithmetic(b"incr", " D", key, value, bool(noreply))

    def decr(self, key, value, noreply=False):
        """Subtracts value, down to 0. The new number, None when there is no item (or with noreply)."""
        return self._arithmetic(b"decr", " MD D", key, value, bool(noreply))

    def touch(self, key, expire=0, noreply=None):
        """Sets the expiry of key to expire seconds from now (0: never). True, or False when there is no item."""
        cdef bint quiet = self.default_noreply if noreply is None else noreply
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = integer_text(expire, "expire")
        cdef list errors = []
        cdef bint touched = True
        cdef Stream s = self._enter(quiet)
        try:
            if quiet:
                # mg answers hits in spite of q.
                put_bytes(s, b"touch %b %b noreply\r\n" % (encoded, seconds))
                self._unanswered(s, 1)
            else:
                put_bytes(s, b"mg %b T%b\r\n" % (encoded, seconds))
                self._exchange(s)
                touched = s.reply.code == REPLY_HD
                if not touched and s.reply.code != REPLY_EN:
                    errors.append(self._error(s, b"touch"))
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if errors:
            raise errors[0]
        return touched

    cdef bytes _command(self, bytes command, bytes name):
        # Sends one line and returns the line of the answer.
        cdef Stream s = self._enter()
        cdef object error = None
        cdef bytes line
        try:
            put_bytes(s, command)
            self._exchange(s)
            line = s.line[:s.line_length]
            if line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
                error = self._error(s, name)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if error is not None:
            raise error
        return line

    def stats(self, *args):
        """{name: value} of the statistics; args as in memcached's stats command. Names are bytes, values converted."""
        cdef list words = [checked_key(arg.encode("ascii") if isinstance(arg, str) else arg) for arg in args]
        cdef dict result
        try:
            result = self._stats(words)
        except Exception:
            if not self.ignore_exc:
                raise
            return {}
        for name, value in result.items():
            try:
                result[name] = STAT_TYPES.get(name, int)(value)
            except ValueError:
                pass
        return result

    cdef dict _stats(self, list words):
        cdef Stream s = self._enter()
        cdef object error = None
        cdef dict result = {}
        cdef bytes line
        try:
            put_bytes(s, b" ".join([b"stats", *words]) + b"\r\n")
            self._exchange(s)
            while True:
                line = s.line[:s.line_length]
                if line in (b"END", b"OK", b"RESET"):
                    break
                parts = line.split()
                if line.startswith(b"STAT ") and len(parts) > 1:
                    result[parts[1]] = parts[2] if len(parts) > 2 else b""
                elif line.startswith(b"ITEM ") and len(parts) > 1:
                    result[parts[1]] = b" ".join(parts[2:])
                else:
                    error = self._error(s, b"stats")
                    break
                self._next(s)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if error is not None:
            raise error
        return result

    def version(self):
        """The server's version, as bytes."""
        cdef bytes line = self._command(b"version\r\n", b"version")
        before, _, after = line.partition(b" ")
        if before != b"VERSION":
            raise MemcacheUnknownError(f"Received unexpected response: {line!r}")
        return after

    def flush_all(self, delay=0, noreply=None):
        """Invalidates all items, after delay seconds. Returns True."""
        cdef bytes command = b"flush_all " + integer_text(delay, "delay")
        cdef Stream s
        if not (self.default_noreply if noreply is None else noreply):
            return self._command(command + b"\r\n", b"flush_all") == b"OK"
        s = self._enter(True)
        try:
            put_bytes(s, command + b" noreply\r\n")
            self._unanswered(s, 1)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        return True

    def cache_memlimit(self, memlimit):
        """Sets the server's memory limit, in megabytes. Returns True."""
        self._command(b"cache_memlimit " + integer_text(memlimit, "memlimit") + b"\r\n", b"cache_memlimit")
        return True

    def raw_command(self, command, end_tokens="\r\n"):
        """Sends a command line and returns the bytes of the answer up to end_tokens. What follows them is dropped."""
        cdef str encoding = "utf8" if self.allow_unicode_keys else "ascii"
        cdef bytes line = command.encode(encoding) if isinstance(command, str) else command
        cdef bytes token = end_tokens.encode(encoding) if isinstance(end_tokens, str) else end_tokens
        cdef object error = None
        cdef char *found
        cdef int r
        cdef bytes answer
        cdef Stream s = self._enter()
        try:
            put_bytes(s, line + b"\r\n")
            self._exchange(s)
            s.rpos = s.line - s.rbuf
            while True:
                found = <char *>memmem(s.rbuf + s.rpos, s.rend - s.rpos, PyBytes_AS_STRING(token), len(token))
                if found != NULL:
                    break
                with nogil:
                    r = s.fill()
                if r <= 0:
                    self._interrupted(s, r)
            answer = (s.rbuf + s.rpos)[:found - (s.rbuf + s.rpos)]
            s.rpos = s.rend
            if answer.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
                s.line = <char *>PyBytes_AS_STRING(answer)
                s.line_length = len(answer)
                error = self._error(s, line)
        except BaseException:
            self._drop()
            raise
        self._busy = False
        if error is not None:
            raise error
        return answer

    def quit(self):
        """Tells the server that the connection ends, and closes it."""
        cdef Stream s = self._enter(True)
        try:
            s.put("quit\r\n", 6)
            self._send(s)
        finally:
            self._drop()

    def shutdown(self, graceful=False):
        """Ends the server, where it was started with -A (--enable-shutdown)."""
        try:
            self._command(b"shutdown graceful\r\n" if graceful else b"shutdown\r\n", b"shutdown")
        except MemcacheUnexpectedCloseError:
            pass

    # --- as a dict ---

    def __setitem__(self, key, value):
        self.set(key, value, noreply=True)

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __delitem__(self, key):
        self.delete(key, noreply=True)
