"""The memcached client: pymemcache's methods, each of which is a call on a Session."""

import socket
import warnings

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t

from rmemcached.client._commands cimport (
    answer,
    cas_text,
    checked_key,
    convert_statistics,
    encode_key,
    encode_value,
    error_of,
    integer_text,
    is_error,
    put_arithmetic,
    put_bytes,
    put_delete,
    put_fetch,
    put_store,
    put_touch,
    read_statistic,
    read_stored,
)
from rmemcached.client._reply cimport REPLY_EN, REPLY_HD, REPLY_NF, REPLY_VA
from rmemcached.client._session cimport Session
from rmemcached.client._stream cimport Stream
from rmemcached.sys.linux cimport memmem

from rmemcached.client.exceptions import MemcacheClientError, MemcacheUnexpectedCloseError, MemcacheUnknownError

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef object MISS = object()


class FunctionSerde:
    """A serde object of two functions: serializer(key, value) -> (value, flags), deserializer(key, value, flags)."""

    def __init__(self, serializer=None, deserializer=None):
        self._serializer = serializer
        self._deserializer = deserializer

    def serialize(self, key, value):
        """What is stored for a value: (value, flags)."""
        return (value, 0) if self._serializer is None else self._serializer(key, value)

    def deserialize(self, key, value, flags):
        """The value, from the bytes and flags that were stored for it."""
        return value if self._deserializer is None else self._deserializer(key, value, flags)


cdef class Client(Session):
    """A client of one memcached or rmemcached server, with pymemcache's methods.

    Args:
        server: (host, port), "host", "host:port", "[v6]:port", or the path of a UNIX socket ("/path" or "unix:/path").
            ``Client("host", port)`` is understood as well.
        serde: an object with ``serialize(key, value) -> (value, flags)`` and ``deserialize(key, value, flags)``.
        serializer, deserializer: the two as functions, where there is no serde.
        connect_timeout, timeout: seconds for connecting, and for each wait for the server. None: no limit.
        no_delay: TCP_NODELAY. True by default: a command behind one without a reply would wait for the server's ACK.
        ignore_exc: get, gets, gat, gats, get_many, gets_many and stats return what a miss does in place of raising.
        socket_module: only the standard library's is supported.
        socket_keepalive: a KeepaliveOpts, or None.
        key_prefix: bytes put before every key.
        default_noreply: the value of ``noreply`` for calls that do not give it (cas, incr and decr: False).
        allow_unicode_keys: str keys are sent as UTF-8; otherwise they must be ASCII.
        encoding: of str values (and of the text of other objects that are not bytes-like).
        tls_context: not supported, None only.
        transport: "verbs": RDMA on a device of the system (RMEMCACHED_RDMA_DEVICE names it, "none" forbids it),
            "soft_shm": shared memory with a server on this host, "tcp": a plain connection, "auto": the first of these
            that both ends have; the logger rmemcached.client says which and why. "soft_iw": RDMA (iWARP in software),
            which "auto" does not choose, since plain TCP is faster for requests with pauses between them. Over a UNIX
            socket: "soft_shm" or "tcp". "rdma_cm": as "verbs", but connected through rdma_cm, without a TCP connection;
            iWARP devices too.
        spin: microseconds for which a wait polls before it blocks, while that pays. 0: never. None: the default of the
            transport (0 for tcp, 50 for others).
        rdma_cm_port: the server's port of rdma_cm (its -o rdma_cm_port=). With it "auto" tries rdma_cm first. None:
            "rdma_cm" takes the number of the TCP port.

    Keys are str or bytes: 1 to 250 bytes with the prefix, without white space and NUL. Values are bytes; any object
    with a contiguous buffer is sent from where it is, without a copy. The values of get are bytes objects into which
    the data was received. With ``noreply`` a call does not wait for the server: it returns as if it had succeeded, and
    errors of the server are not raised.

    The first command makes the connection. After `close`, or after an error that leaves the connection unusable, the
    next command makes a new one. Not thread-safe: one thread at a time (a second one gets RuntimeError). After a fork,
    the child gets RuntimeError until it calls `close`, which leaves the parent's connection alone.

    Every command raises, where its own text says nothing else:

    - MemcacheIllegalInputError, and TypeError for a key: the arguments cannot be sent. Nothing was sent.
    - MemcacheClientError, MemcacheServerError: the server's error line. The connection stays.
    - MemcacheUnknownCommandError, MemcacheUnknownError: the answer is ERROR, or none of memcached's. The connection is
      closed, as by those that follow.
    - MemcacheUnexpectedCloseError, OSError: the connection has ended, or cannot be made. TimeoutError: the server does
      not answer within the time limit.
    - RuntimeError: another call is under way, or the connection is the parent process's.
    """

    cdef readonly object serde
    cdef readonly bint ignore_exc
    cdef readonly bytes key_prefix
    cdef readonly bint default_noreply
    cdef readonly bint allow_unicode_keys
    cdef readonly str encoding
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
        """Takes the options of the class. Raises ValueError, or TypeError for a key_prefix, and does not connect."""
        if isinstance(serde, int) and not isinstance(serde, bool):
            server = (server, serde)
            serde = None
        self.configure(server, connect_timeout, timeout, no_delay, socket_keepalive, transport, spin, rdma_cm_port)
        if serde is None and (serializer is not None or deserializer is not None):
            serde = FunctionSerde(serializer, deserializer)
        self.serde = serde
        self.ignore_exc = ignore_exc
        if socket_module is not socket:
            raise ValueError("socket_module: only the standard library's socket module is supported")
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

    def __del__(self):
        if self._stream is not None:
            if not self.foreign():
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.drop()

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

    def close(self):
        """Closes the connection, if there is one. The next command makes a new one.

        Raises RuntimeError while a call is under way in another thread.
        """
        if self._busy:
            raise RuntimeError("close() while a call of this Client is under way")
        self.drop()

    disconnect_all = close

    cdef bytes _key(self, object key):
        return encode_key(key, self.key_prefix, self.allow_unicode_keys)

    cdef bint _quiet(self, object noreply) except -1:
        return self.default_noreply if noreply is None else noreply

    # --- retrieval ---

    cdef object _load(self, object key, bytes value, uint32_t flags):
        return value if self.serde is None else self.serde.deserialize(key, value, flags)

    cdef object _read_fetch(self, Stream s, bint with_cas, bytes name, list errors):
        # The value of the mg that the line just read answers, or MISS. Its flags are in _flags, its cas in _cas.
        if s.reply.code == REPLY_VA:
            self._flags = s.reply.flags
            if with_cas:
                self._cas = s.line[s.reply.cas_offset:s.reply.cas_offset + s.reply.cas_length]
            return self.value(s)
        if s.reply.code != REPLY_EN:
            errors.append(error_of(answer(s), name))
        return MISS

    cdef object _fetch(self, bytes key, bint with_cas, bytes expire, bytes name):
        cdef Stream s = self.enter(False)
        cdef list errors = []
        try:
            put_fetch(s, key, self.serde is not None, with_cas, expire)
            if s.remote:
                s.put_sink()
            s.put("\r\n", 2)
            self.exchange(s)
            value = self._read_fetch(s, with_cas, name, errors)
            s.release_sink()
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return value

    def _buffer(self, size_t size):
        # Memory for values, which a server takes from there and puts there without a copy where that can be.
        cdef Stream s = self.enter(True)
        try:
            return s.make_buffer(size)
        finally:
            self.leave([])

    def _get_into(self, key, buffer, default=None):
        # The number of bytes of the value, which is in the buffer, or default. ValueError: it does not fit.
        cdef bytes encoded = self._key(key)
        cdef list errors = []
        cdef object result = default
        cdef object view = memoryview(buffer)
        cdef Py_buffer *memory = PyMemoryView_GET_BUFFER(view)
        cdef Stream s
        if view.readonly or not view.c_contiguous:
            raise BufferError("a value is received into a writable, contiguous buffer")
        s = self.enter(False)
        try:
            s.check_target(<char *>memory.buf, memory.len)
        except BaseException:
            self.leave([])
            raise
        try:
            put_fetch(s, encoded, False, False, None)
            if s.remote and memory.len > <Py_ssize_t>s.inline_limit:
                s.put_target(<char *>memory.buf, memory.len)
            s.put("\r\n", 2)
            self.exchange(s)
            if s.reply.code == REPLY_VA:
                result = self.value_into(s, <char *>memory.buf, memory.len)
            elif s.reply.code != REPLY_EN:
                errors.append(error_of(answer(s), b"get"))
            s.release_sink()
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        if result is not default and result > memory.len:
            raise ValueError(f"the value has {result} bytes, and the buffer {memory.len}")
        return result

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
        cdef Stream s = self.enter(False)
        cdef list errors = []
        cdef list flags = []
        cdef dict found = {}
        cdef bint first = True
        cdef bytes key
        try:
            for key in encoded:
                put_fetch(s, key, self.serde is not None, with_cas, None)
                s.put("\r\n", 2)
            for given in names:
                self.read_answer(s, first)
                first = False
                value = self._read_fetch(s, with_cas, name, errors)
                if value is MISS:
                    continue
                if self.serde is not None:
                    flags.append((given, self._flags))
                found[given] = (value, self._cas) if with_cas else value
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        # Only now, since a serde may use this client.
        for given, number in flags:
            value = found[given]
            if with_cas:
                found[given] = (self._load(given, value[0], number), value[1])
            else:
                found[given] = self._load(given, value, number)
        return found

    def get(self, key, default=None):
        """Returns the value of key, or default when there is no item."""
        return self._get(key, default, None, b"get")

    def gets(self, key, default=None, cas_default=None):
        """Returns (value, cas) of key, or (default, cas_default) when there is no item. cas is bytes, for `cas`."""
        return self._gets(key, default, cas_default, None, b"gets")

    def gat(self, key, expire=0, default=None):
        """Returns what `get` does, and lets the item expire in `expire` seconds (0: never)."""
        return self._get(key, default, expire, b"gat")

    def gats(self, key, expire=0, default=None, cas_default=None):
        """Returns what `gets` does, and lets the item expire in `expire` seconds (0: never)."""
        return self._gets(key, default, cas_default, expire, b"gats")

    def get_many(self, keys):
        """Returns {key: value} of the keys that have items. One round trip."""
        return self._get_many(keys, False, b"get")

    def gets_many(self, keys):
        """Returns {key: (value, cas)} of the keys that have items. One round trip."""
        return self._get_many(keys, True, b"gets")

    get_multi = get_many

    # --- storage ---

    cdef object _serialize(self, object key, object value, object flags, list options):
        # What is sent for a value. Its flags go to options, as a piece of the request.
        cdef object number = 0
        if self.serde is not None:
            value, number = self.serde.serialize(key, value)
        if flags is not None:
            number = flags
        options.append(b" F" + integer_text(number, "flags") if number != 0 else b"")
        return encode_value(value, self.encoding)

    cdef object _store(self, bytes name, bytes mode, object key, object value, object expire, object noreply,
                       object flags, bytes cas):
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = integer_text(expire, "expire")
        cdef list options = []
        cdef list errors = []
        cdef bint quiet = self._quiet(noreply)
        cdef bint exposed
        cdef object data = self._serialize(key, value, flags, options)
        cdef bytes option = options[0] + mode
        cdef object result = True
        cdef Stream s
        if seconds != b"0":
            option += b" T" + seconds
        if cas is not None:
            option += b" C" + cas
        s = self.enter(quiet)
        try:
            exposed = put_store(s, encoded, data, option, quiet)
            if not quiet:
                self.exchange(s)
                result = read_stored(s, name, errors)
            elif exposed:
                # The value must stay where it is until the server has it.
                self.synchronise(s)
            else:
                self.unanswered(s, 1)
            self.values_sent(s)
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return result

    def set(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value under key, for `expire` seconds (0: for ever), with 32 bits of flags. Returns True."""
        return self._store(b"set", b"", key, value, expire, noreply, flags, None)

    def add(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has no item. Returns True, or False when it has one."""
        return self._store(b"add", b" ME", key, value, expire, noreply, flags, None)

    def replace(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has an item. Returns True, or False when it has none."""
        return self._store(b"replace", b" MR", key, value, expire, noreply, flags, None)

    def append(self, key, value, expire=0, noreply=None, flags=None):
        """Appends value to the item's. Returns True, or False when there is none. expire and flags have no effect."""
        return self._store(b"append", b" MA", key, value, expire, noreply, flags, None)

    def prepend(self, key, value, expire=0, noreply=None, flags=None):
        """Puts value before the item's. Returns True, or False when there is none. expire and flags have no effect."""
        return self._store(b"prepend", b" MP", key, value, expire, noreply, flags, None)

    def cas(self, key, value, cas, expire=0, noreply=False, flags=None):
        """Stores value if the item's cas is still the given one (bytes, int or str).

        Returns True, or False when the item has changed, or None when there is none.
        """
        return self._store(
            b"cas", b"", key, value, expire, bool(noreply), flags, cas_text(cas, self.encoding))

    def set_many(self, values, expire=0, noreply=None, flags=None):
        """Stores the values of a dict, all in one round trip. Returns a list of the keys that were not stored.

        The first error line is raised when all values have been sent.
        """
        cdef bytes seconds = integer_text(expire, "expire")
        cdef bint quiet = self._quiet(noreply)
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
        s = self.enter(quiet)
        try:
            for i in range(len(names)):
                exposed |= put_store(s, encoded[i], data[i], options[i] + seconds, quiet)
            if exposed and quiet:
                self.synchronise(s)
            elif quiet:
                self.unanswered(s, len(names))
            else:
                for i in range(len(names)):
                    self.read_answer(s, i == 0)
                    if not read_stored(s, b"set", errors):
                        failed.append(names[i])
            self.values_sent(s)
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return failed

    set_multi = set_many

    # --- the rest ---

    def delete(self, key, noreply=None):
        """Removes the item of key. Returns True, or False when there was none."""
        cdef bint quiet = self._quiet(noreply)
        cdef bytes encoded = self._key(key)
        cdef list errors = []
        cdef Stream s = self.enter(quiet)
        cdef bint deleted = True
        try:
            put_delete(s, encoded, quiet)
            if quiet:
                self.unanswered(s, 1)
            else:
                self.exchange(s)
                deleted = s.reply.code == REPLY_HD
                if not deleted and s.reply.code != REPLY_NF:
                    errors.append(error_of(answer(s), b"delete"))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return deleted

    def delete_many(self, keys, noreply=None):
        """Removes the items of the keys, all in one round trip. Returns True, also when some had none."""
        cdef bint quiet = self._quiet(noreply)
        cdef list encoded = [self._key(key) for key in keys]
        cdef list errors = []
        cdef bytes name
        cdef Py_ssize_t i
        cdef Stream s
        if not encoded:
            return True
        s = self.enter(quiet)
        try:
            for name in encoded:
                put_delete(s, name, quiet)
            if quiet:
                self.unanswered(s, len(encoded))
            else:
                for i in range(len(encoded)):
                    self.read_answer(s, i == 0)
                    if s.reply.code != REPLY_HD and s.reply.code != REPLY_NF:
                        errors.append(error_of(answer(s), b"delete"))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return True

    delete_multi = delete_many

    cdef object _arithmetic(self, bytes name, bytes mode, object key, object value, bint quiet):
        cdef bytes encoded = self._key(key)
        cdef bytes delta = integer_text(value, "value")
        cdef list errors = []
        cdef object result = None
        cdef Stream s
        if not 0 <= value < 1 << 64:
            # What the server would say to it.
            raise MemcacheClientError(b"invalid numeric delta argument")
        s = self.enter(quiet)
        try:
            put_arithmetic(s, encoded, mode, delta, quiet)
            if quiet:
                self.unanswered(s, 1)
            else:
                self.exchange(s)
                if s.reply.code == REPLY_VA:
                    result = int(self.value(s))
                elif s.reply.code != REPLY_NF:
                    errors.append(error_of(answer(s), name))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return result

    def incr(self, key, value, noreply=False):
        """Adds value (0 to 2**64 - 1) to the number that is stored.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when what is
        stored is no number.
        """
        return self._arithmetic(b"incr", b" D", key, value, bool(noreply))

    def decr(self, key, value, noreply=False):
        """Subtracts value (0 to 2**64 - 1) from the number that is stored, down to 0.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when what is
        stored is no number.
        """
        return self._arithmetic(b"decr", b" MD D", key, value, bool(noreply))

    def touch(self, key, expire=0, noreply=None):
        """Lets the item of key expire in `expire` seconds (0: never). Returns True, or False when there is none."""
        cdef bint quiet = self._quiet(noreply)
        cdef bytes encoded = self._key(key)
        cdef bytes seconds = integer_text(expire, "expire")
        cdef list errors = []
        cdef bint touched = True
        cdef Stream s = self.enter(quiet)
        try:
            put_touch(s, encoded, seconds, quiet)
            if quiet:
                self.unanswered(s, 1)
            else:
                self.exchange(s)
                touched = s.reply.code == REPLY_HD
                if not touched and s.reply.code != REPLY_EN:
                    errors.append(error_of(answer(s), b"touch"))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return touched

    cdef bytes _command(self, bytes command, bytes name):
        # Sends one line and returns the line of the answer.
        cdef Stream s = self.enter(False)
        cdef list errors = []
        cdef bytes line
        try:
            put_bytes(s, command)
            self.exchange(s)
            line = answer(s)
            if is_error(line):
                errors.append(error_of(line, name))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return line

    def stats(self, *args):
        """Returns {name: value} of the server's statistics; args as in memcached's stats command.

        Names are bytes. Values are converted as pymemcache does it: to int, float, bool or bytes.
        """
        cdef list words = [checked_key(arg.encode("ascii") if isinstance(arg, str) else arg) for arg in args]
        cdef dict result
        try:
            result = self._stats(words)
        except Exception:
            if not self.ignore_exc:
                raise
            return {}
        convert_statistics(result)
        return result

    cdef dict _stats(self, list words):
        cdef Stream s = self.enter(False)
        cdef list errors = []
        cdef dict result = {}
        cdef bytes line
        try:
            put_bytes(s, b" ".join([b"stats", *words]) + b"\r\n")
            self.exchange(s)
            while True:
                line = answer(s)
                if line in (b"END", b"OK", b"RESET"):
                    break
                if not read_statistic(line, result):
                    errors.append(error_of(line, b"stats"))
                    break
                self.next(s)
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return result

    def version(self):
        """Returns the server's version, as bytes."""
        cdef bytes line = self._command(b"version\r\n", b"version")
        before, _, after = line.partition(b" ")
        if before != b"VERSION":
            raise MemcacheUnknownError(f"Received unexpected response: {line!r}")
        return after

    def flush_all(self, delay=0, noreply=None):
        """Invalidates all items, in `delay` seconds. Returns True."""
        cdef bytes command = b"flush_all " + integer_text(delay, "delay")
        cdef Stream s
        if not self._quiet(noreply):
            return self._command(command + b"\r\n", b"flush_all") == b"OK"
        s = self.enter(True)
        try:
            put_bytes(s, command + b" noreply\r\n")
            self.unanswered(s, 1)
        except BaseException:
            self.drop()
            raise
        self.leave(None)
        return True

    def cache_memlimit(self, memlimit):
        """Sets the server's memory limit, in megabytes. Returns True."""
        self._command(b"cache_memlimit " + integer_text(memlimit, "memlimit") + b"\r\n", b"cache_memlimit")
        return True

    def raw_command(self, command, end_tokens="\r\n"):
        """Sends a command line, to which \\r\\n is added.

        Returns the bytes of the answer before the first end_tokens; what follows them is dropped. An error line is
        raised. command and end_tokens are bytes or str.
        """
        cdef str encoding = "utf8" if self.allow_unicode_keys else "ascii"
        cdef bytes line = command.encode(encoding) if isinstance(command, str) else command
        cdef bytes token = end_tokens.encode(encoding) if isinstance(end_tokens, str) else end_tokens
        cdef list errors = []
        cdef bytes text
        cdef Stream s = self.enter(False)
        try:
            put_bytes(s, line + b"\r\n")
            self.exchange(s)
            text = self._read_until(s, token)
            if s.iov_next < s.iov_count:
                # The server has answered before it had all of the line.
                self.send(s)
            if is_error(text):
                errors.append(error_of(text, line))
        except BaseException:
            self.drop()
            raise
        self.leave(errors)
        return text

    cdef bytes _read_until(self, Stream s, bytes token):
        # The bytes before the token, from the line just read on. All input is taken.
        cdef char *start
        cdef char *found
        cdef bytes text
        cdef int r
        s.rpos = s.line - s.rbuf
        while True:
            start = s.rbuf + s.rpos
            found = <char *>memmem(start, s.rend - s.rpos, PyBytes_AS_STRING(token), len(token))
            if found != NULL:
                break
            with nogil:
                r = s.fill()
            if r <= 0:
                self.interrupted(s, r)
        text = start[:found - start]
        s.rpos = s.rend
        return text

    def quit(self):
        """Tells the server that the connection ends, and closes it. Returns None."""
        cdef Stream s = self.enter(True)
        try:
            s.put("quit\r\n", 6)
            self.send(s)
        except MemcacheUnexpectedCloseError:
            # The server has ended it before this side heard that it has everything.
            return
        finally:
            self.drop()

    def shutdown(self, graceful=False):
        """Ends the server, where it was started with -A (--enable-shutdown). Returns None."""
        try:
            self._command(b"shutdown graceful\r\n" if graceful else b"shutdown\r\n", b"shutdown")
        except MemcacheUnexpectedCloseError:
            # That is its answer.
            return

    # --- as a dict ---

    def __setitem__(self, key, value):
        """set with noreply."""
        self.set(key, value, noreply=True)

    def __getitem__(self, key):
        """get. Raises KeyError when there is no item."""
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __delitem__(self, key):
        """delete with noreply."""
        self.delete(key, noreply=True)
