"""The memcached client: pymemcache's methods."""

import copyreg
import importlib
import warnings
from copy import deepcopy

from libc.errno cimport EBADF

from rmemcached.client.api cimport _admin, _meta, _retrieval, _storage
from rmemcached.client.api._admin cimport as_bytes
from rmemcached.client.api._connection cimport FETCH_VALUE, FETCH_VIEW, Connection
from rmemcached.client.api._meta cimport (
    exists_request,
    meta_arithmetic_request,
    meta_debug_request,
    meta_delete_request,
    meta_get_request,
    meta_noop_request,
    meta_set_request,
    remaining_request,
)
from rmemcached.client.api._pipeline cimport Pipeline
from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.transport._results cimport drop_results
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.wire._commands cimport cas_text, encode_key, integer_text
from rmemcached.client.wire._modes cimport STORE_ADD, STORE_APPEND, STORE_CAS, STORE_PREPEND, STORE_REPLACE, STORE_SET

from rmemcached.client.api import dumps, leases
from rmemcached.client.transport.arguments import check_choices, check_encoding, check_serde, looks_like_port
from rmemcached.client.urls import expanded, is_url

# For __del__: the modules' names are gone when the interpreter ends.
cdef object warn = warnings.warn


class FunctionSerde:
    """A serde object of two functions: serializer(key, value) -> (value, flags), deserializer(key, value, flags)."""

    def __init__(self, serializer=None, deserializer=None):
        self._serializer = serializer
        self._deserializer = deserializer

    def serialize(self, key, value):
        """Returns (value, flags) to store for a value."""
        return (value, 0) if self._serializer is None else self._serializer(key, value)

    def deserialize(self, key, value, flags):
        """Returns the value for stored bytes and flags."""
        return value if self._deserializer is None else self._deserializer(key, value, flags)


cdef class Client(Session):
    """Client(server, serde=None, serializer=None, deserializer=None, connect_timeout=None, timeout=None,\
 no_delay=True, ignore_exc=False, socket_module=None, socket_keepalive=None, key_prefix=b"", default_noreply=True,\
 allow_unicode_keys=False, encoding="ascii", tls_context=None, *, transport=None, spin=None, rdma_cm_port=None,\
 username=None, password=None, sasl=False)
--

A client of one memcached or rmemcached server, with pymemcache's methods.

    Args:
        server: (host, port), "host", "host:port", "[v6]:port", or the path of a UNIX socket ("/path" or "unix:/path").
            Or a URL, see below. ``Client("host", port)`` works as well; the port may be a str of digits.
        serde: an object with ``serialize(key, value) -> (value, flags)`` and ``deserialize(key, value, flags)``.
            rmemcached.client.serde has ready serdes. A serde with a true attribute ``takes_views`` may get a read-only
            memoryview as the value, in place of bytes. The value returned by serialize may be a Gathered.
        serializer, deserializer: functions like a serde's two methods. They are used if there is no serde.
        connect_timeout, timeout: seconds for connecting, and for each wait for the server. None: no limit.
        no_delay: TCP_NODELAY. True by default: without TCP_NODELAY a command behind a command with noreply waits for
            the server's ACK.
        ignore_exc: stats and the methods that return values (get, get_view, get_many, meta_get, ...) return the result
            of a miss in place of raising. Wrong arguments still raise.
        socket_module: gevent.socket, eventlet.green.socket, or another module with socket and getaddrinfo: over TCP
            greenlets run while a call waits. None: the standard library's module, with the same effect if it is
            patched, as by gevent.monkey. With such a module, or with the patch, "auto" is "tcp". Another transport
            blocks the greenlets of its thread, and the logger rmemcached.client warns.
        socket_keepalive: a KeepaliveOpts, or None.
        key_prefix: bytes put before every key.
        default_noreply: the value of ``noreply`` in calls without this argument (cas, incr and decr: False).
        allow_unicode_keys: str keys are sent as UTF-8; otherwise they must be ASCII.
        encoding: of str values, and of the text of objects that are not bytes-like.
        tls_context: an ssl.SSLContext for a connection by TLS; "auto" is "tcp" then, and "soft_iw" is inside TLS, too.
        transport: "verbs": RDMA on a device of the system (RMEMCACHED_RDMA_DEVICE names it, "none" forbids all),
            "soft_shm": shared memory with a server on this host, "tcp": a plain connection, "auto": the first of these
            available to both ends; the logger rmemcached.client reports the choice and the reason. "soft_iw": RDMA
            (iWARP in software), never chosen by "auto", since plain TCP is faster for requests with pauses between
            them. Over a UNIX socket: "soft_shm" or "tcp". "rdma_cm": as "verbs", but connected through rdma_cm,
            without a TCP connection; iWARP devices too. None: the environment variable RMEMCACHED_TRANSPORT, else
            "auto".
        spin: microseconds of polling before a wait blocks, while polling pays. 0: never. None: the default of the
            transport (0 for tcp, 50 for others).
        rdma_cm_port: the server's port of rdma_cm (its -o rdma_cm_port=). With a number "auto" tries rdma_cm first.
            None: "rdma_cm" takes the number of the TCP port.
        username, password: for a server with authentication (memcached -Y), on every transport. str or bytes,
            without blanks. They go over the wire in the clear.
        sasl: True: username and password are for SASL's mechanism PLAIN (memcached -S), and may have blanks. A server
            without text commands behind SASL, as memcached is, gets the commands in the binary protocol, over TCP.

    A URL names server and transport: ``memcached://host:port`` ("auto"), ``memcacheds://`` (the same, with TLS),
    ``rdma://`` ("verbs"), ``shm://`` ("soft_shm"), ``iwarp://`` ("soft_iw"), ``tcp://``, ``unix:///path``. Before the
    host there can be ``user:password@``, and behind it options:
    ``?timeout=0.5&connect_timeout=1&no_delay=false&key_prefix=app:``, also spin, ignore_exc, default_noreply,
    allow_unicode_keys, encoding, rdma_cm_port, sasl, for memcached://, memcacheds:// and unix:// transport, and for
    memcacheds:// tls_ca, tls_cert, tls_key (files). Seconds can be ``none``. Special characters are percent-encoded:
    %40 for @. A setting in the URL cannot be an argument as well, unless the argument has its default value. The
    transport of a URL comes before the environment's.

    With a server or proxy without meta commands (memcached before 1.6) the client uses classic commands.

    Keys are str or bytes: 1 to 250 bytes with the prefix, without white space and NUL. Values are bytes, or any object
    with a contiguous buffer, which is sent in place, without a copy. get returns bytes objects, and receives the data
    into them directly. With ``noreply`` a call does not wait for the server: it returns as after a success, and does
    not raise errors of the server.

    The first command makes a connection. After `close`, after an error that leaves the connection unusable, and after
    the server has closed a connection unused for 20 ms or more, the next command makes a new connection. Thread-safe:
    calls of different threads run at the same time, each on a connection of its own, which the client keeps for later
    calls. Where a transport has lanes (docs/glossary.md), these connections share queue pairs. The commands of a thread
    reach the server in their order. After a fork the child makes its own connections, and leaves the parent's alone.
    copy.copy, copy.deepcopy and pickle make a client with the same options and no connection.

    Every command raises, where its own text says nothing else:

    - MemcacheIllegalInputError, and TypeError for a key: the arguments cannot be sent. Nothing was sent.
    - MemcacheClientError, MemcacheServerError: the server has answered with an error line. The connection stays open,
      unless the line begins with ERROR.
    - MemcacheUnknownCommandError, MemcacheUnknownError: the answer is ERROR, or is not one of memcached's. These
      errors and those below close the connection.
    - MemcacheUnexpectedCloseError, OSError: the connection has ended, or cannot be made. TimeoutError: the server does
      not answer within the time limit.
    """

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
        socket_module=None,
        socket_keepalive=None,
        key_prefix=b"",
        default_noreply=True,
        allow_unicode_keys=False,
        encoding="ascii",
        tls_context=None,
        *,
        transport=None,
        spin=None,
        rdma_cm_port=None,
        username=None,
        password=None,
        sasl=False,
    ):
        """Takes the options of the class. Raises ValueError, TypeError, and does not connect."""
        if is_url(server):
            arguments = locals()
            del arguments["self"]
            Client.__init__(self, **expanded(arguments))
            return
        if looks_like_port(serde) and not isinstance(server, (tuple, list)):
            server = (server, serde)
            serde = None
        self.configure(server, connect_timeout, timeout, no_delay, socket_keepalive, transport, spin, rdma_cm_port,
                       username, password, socket_module, tls_context, sasl)
        check_serde(serde, serializer, deserializer)
        check_choices(ignore_exc=ignore_exc, default_noreply=default_noreply, allow_unicode_keys=allow_unicode_keys)
        check_encoding(encoding)
        if serde is None and (serializer is not None or deserializer is not None):
            serde = FunctionSerde(serializer, deserializer)
        self.serde = serde
        self.views = bool(getattr(serde, "takes_views", False))
        self.ignore_exc = ignore_exc
        if not isinstance(key_prefix, (bytes, str)):
            raise TypeError(f"key_prefix must be bytes or str, not {key_prefix!r}")
        self.key_prefix = as_bytes(key_prefix)
        self.default_noreply = default_noreply
        self.allow_unicode_keys = allow_unicode_keys
        self.encoding = encoding

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), (self._options(), vars(self))

    def __deepcopy__(self, memo):
        cdef object one = copyreg.__newobj__(type(self))
        memo[id(self)] = one
        # An SSL context cannot be copied.
        memo[id(self.tls_context)] = self.tls_context
        one.__setstate__(deepcopy((self._options(), vars(self)), memo))
        return one

    def __setstate__(self, state):
        options, attributes = state
        if options["socket_module"] is not None:
            options["socket_module"] = importlib.import_module(options["socket_module"])
        Client.__init__(self, **options)
        vars(self).update(attributes)

    cdef dict _options(self):
        return {
            "server": self.server,
            "serde": self.serde,
            "connect_timeout": self.connect_timeout,
            "timeout": self.timeout,
            "no_delay": self.no_delay,
            "ignore_exc": self.ignore_exc,
            # A module cannot be pickled.
            "socket_module": self.socket_module and self.socket_module.__name__,
            "tls_context": self.tls_context,
            "socket_keepalive": self.socket_keepalive,
            "key_prefix": self.key_prefix,
            "default_noreply": self.default_noreply,
            "allow_unicode_keys": self.allow_unicode_keys,
            "encoding": self.encoding,
            "transport": self._wanted,
            "spin": self.spin,
            "rdma_cm_port": self.rdma_cm_port,
            "username": self.credentials and self.credentials[0],
            "password": self.credentials and self.credentials[1],
            "sasl": self.credentials is not None and self.credentials[2],
        }

    def __del__(self):
        if self._idle is not None and self._generation == fork_count():
            warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        self.close_all()

    def __repr__(self):
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.server!r} transport={self.transport}>"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    @property
    def transport(self):
        """"rdma_cm", "verbs", "soft_shm", "soft_iw" or "tcp"; while there is no connection, the transport asked for."""
        lock_state(&shared_state)
        found = self._transport if self.connections else self._wanted
        unlock_state(&shared_state)
        return found

    @property
    def direct(self):
        """Whether gets read the server's items directly, without a request (docs/direct-reads.md). False without a
        connection, and while the server's process is stopped or gets no processor: its clock is two seconds late then.
        If `direct` is False with a server on this host, the log and `stats rdma` give the reason.
        """
        cdef DirectMemory memory = self.memory()
        return memory is not None and memory.is_read()

    @property
    def sock(self):
        """A socket object of the connection used last. None: there is no connection, or it is a connection of rdma_cm.

        The socket is for inspection: a program must not read from the socket. The Client closes the socket with the
        connection. Over RDMA the socket belongs to the TCP or UNIX connection beside the queue pair.
        """
        lock_state(&shared_state)
        try:
            return self._sock()
        finally:
            unlock_state(&shared_state)

    cdef object _sock(self):
        cdef Connection c = self._idle
        if c is None or self._generation != fork_count():
            return None
        if c.sock is None:
            try:
                sock = c.stream.socket_object()
            except OSError as error:
                if error.errno != EBADF:
                    raise
                # Another thread closes the connection.
                return None
            if c.stream is None:
                # Another thread has closed the connection meanwhile.
                if sock is not None:
                    sock.close()
                return None
            c.sock = sock
        return c.sock

    @property
    def connections(self):
        """How many connections there are, in calls or kept for later calls."""
        return self._open if self._generation == fork_count() else 0

    @property
    def calls(self):
        """How many calls are under way, in any thread."""
        cdef Connection c
        cdef unsigned int found
        lock_state(&shared_state)
        c = self._idle
        found = self._open
        while c is not None:
            found -= 1
            c = c.next
        unlock_state(&shared_state)
        return found if self._generation == fork_count() else 0

    def close(self):
        """Closes the idle connections at once, and a connection in a call of another thread at the end of the call.

        May be called any number of times. The next command makes a new connection.
        """
        try:
            if self.has_hits() and self._generation == fork_count():
                self.tell_hits()
            if self._releases.waiting:
                # Other views may keep a connection open: the server must hear of the released views before.
                self.tell_releases()
        finally:
            self.close_all()
            drop_results()

    disconnect_all = close

    # --- items are fetched ---

    def get(self, key, default=None, *, copy=True):
        """Returns the value of key, or default when there is no item.

        copy=False: returns a read-only memoryview in place of bytes. If the server has written the value to the
        client's memory, the view shows the value there, without a copy, and keeps this memory until the view's release.
        A serde is given the view.
        """
        return _retrieval.get_value(self, key, default, None, FETCH_VALUE if copy else FETCH_VIEW, b"get")

    def get_view(self, key, default=None):
        """Returns a read-only memoryview of the value of key, in the server's own memory, or default.

        Over "soft_shm" the view is of the server's memory, if the server lets this client read its items (`direct`):
        nothing is copied, whatever the size, and `view.obj` is a PinnedMemory. The server keeps the item as of the
        call, also when the key is stored anew, deleted or evicted, until the last memoryview has gone (`release`,
        `del`, the end of a `with`). A later call, or `close`, then tells the server of the release. The result is a
        list of memoryviews if the server has the value in several pieces (above its -o slab_chunk_max). The connection
        stays open until the last memoryview has gone, also after `close`.

        On other transports, and at the server's limit of views (-o rdma_view_limit), the call returns the same as
        get(copy=False). A serde is given the view; of a value in pieces, a copy.
        """
        return _retrieval.get_view(self, key, default)

    def gets(self, key, default=None, cas_default=None):
        """Returns (value, cas) of key, or (default, cas_default) when there is no item. cas: bytes for the method
        `cas`."""
        return _retrieval.get_with_cas(self, key, default, cas_default, None, b"gets")

    def gat(self, key, expire=0, default=None):
        """Returns the result of `get`, and lets the item expire in `expire` seconds (0: never)."""
        return _retrieval.get_value(self, key, default, expire, FETCH_VALUE, b"gat")

    def gats(self, key, expire=0, default=None, cas_default=None):
        """Returns the result of `gets`, and lets the item expire in `expire` seconds (0: never)."""
        return _retrieval.get_with_cas(self, key, default, cas_default, expire, b"gats")

    def get_many(self, keys):
        """Returns {key: value} for the keys with items. Takes one round trip, or more for large values over RDMA."""
        return _retrieval.get_values(self, keys, False, None, b"get")

    def gets_many(self, keys):
        """Returns {key: (value, cas)} for the keys with items. Takes as many round trips as `get_many`."""
        return _retrieval.get_values(self, keys, True, None, b"gets")

    def gat_many(self, keys, expire=0):
        """Returns the result of `get_many`, and lets the items expire in `expire` seconds (0: never)."""
        return _retrieval.get_values(self, keys, False, expire, b"gat_many")

    get_multi = get_many

    def prefault(self):
        """Maps the present memory of a server on this host, if this client may read the server's items.

        Connects if there is no connection.

        Afterwards direct reads take no page faults. With page faults, the first read of a large value takes up to half
        as long again. For each GB the call takes some 50 ms, without the GIL, and 2 MB of this process's page tables.
        Returns the number of mapped bytes: 0 without direct reads of the server's memory. Raises the same errors as
        `version`.
        """
        return _retrieval.prefault(self)

    def buffer(self, size):
        """Returns a Buffer: `size` bytes of page-aligned memory, at first zeros. `set` and `get_into` move values from
        and to a Buffer without a copy, where the transport allows this. Connects if there is no connection.

        Raises ValueError for a size below 1; MemoryError, or OSError when there is not so much memory, or the process
        may not lock so much for a device.
        """
        return _retrieval.make_buffer(self, size)

    def register(self, memory):
        """Returns a Buffer of an object's own memory: bytes, bytearray, array, mmap, a NumPy array, or, by DLPack, a
        tensor of torch's in the processor's memory. Connects if there is no connection.

        The object cannot be resized until the Buffer is closed. Over "verbs" and "soft_iw" values are then sent from
        this memory without a copy and, if the object is writable, received in the memory without a copy. A server on
        this host ("soft_shm") reaches Buffers of `buffer` only. Raises TypeError for an object without the buffer
        protocol, BufferError for non-contiguous memory, ValueError for an object of 0 bytes; OSError when the memory
        cannot be locked for a device.
        """
        return _retrieval.register_object(self, memory)

    def get_into(self, key, buffer, offset=0, default=None):
        """Receives the value of key in the caller's memory. Returns its length in bytes; default: there is no item.

        buffer: a Buffer, or any writable, contiguous object with the buffer protocol; offset: the byte of the buffer at
        which the value begins. The value is as stored: no serde is applied. Raises ValueError for a value longer than
        the memory behind offset: the message has the length of the value, and nothing was written. BufferError: the
        memory is read-only or not contiguous, or a server that did not answer in time may still write to the memory. A
        value replaced or deleted during a direct read may leave some of its bytes in the memory, whatever the call
        returns.
        """
        return _retrieval.get_into(self, key, buffer, offset, default)

    def get_many_into(self, pairs):
        """Receives values in the caller's memory: for each (key, buffer) the value of key in buffer, as `get_into`
        does.

        Returns a list with the length of each value, or None where there is no item. Small values take one round trip.
        Raises ValueError when a value is longer than its buffer; the rest of the values has been received then.
        """
        return _retrieval.get_many_into(self, pairs)

    # --- items are changed ---

    def set(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value under key, for `expire` seconds (0: for ever), with 32 bits of flags. Returns True."""
        return _storage.store(self, STORE_SET, b"set", key, value, expire, noreply, flags, None)

    def add(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has no item. Returns True, or False when there is an item."""
        return _storage.store(self, STORE_ADD, b"add", key, value, expire, noreply, flags, None)

    def replace(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has an item. Returns True, or False when there is no item."""
        return _storage.store(self, STORE_REPLACE, b"replace", key, value, expire, noreply, flags, None)

    def append(self, key, value, expire=0, noreply=None, flags=None):
        """Appends value to the stored value. Returns True, or False when there is no item. expire and flags have no
        effect."""
        return _storage.store(self, STORE_APPEND, b"append", key, value, expire, noreply, flags, None)

    def prepend(self, key, value, expire=0, noreply=None, flags=None):
        """Puts value before the stored value. Returns True, or False when there is no item. expire and flags have no
        effect."""
        return _storage.store(self, STORE_PREPEND, b"prepend", key, value, expire, noreply, flags, None)

    def cas(self, key, value, cas, expire=0, noreply=False, flags=None):
        """Stores value if the item's cas is still the given cas (bytes, int or str).

        Returns True, or False when the item has changed, or None when there is no item.
        """
        return _storage.store(
            self, STORE_CAS, b"cas", key, value, expire, noreply or False, flags, cas_text(cas, self.encoding))

    def set_many(self, values, expire=0, noreply=None, flags=None):
        """Stores the values of a dict, all in one round trip. Returns a list of the keys not stored.

        Raises the exception for the first error line, after all values have been sent.
        """
        return _storage.store_many(self, values, expire, noreply, flags)

    set_multi = set_many

    def delete(self, key, noreply=None):
        """Removes the item of key. Returns True, or False when there was none."""
        return _storage.delete(self, key, noreply)

    def delete_many(self, keys, noreply=None):
        """Removes the items of the keys, all in one round trip. Returns True, also if keys had no item."""
        return _storage.delete_many(self, keys, noreply)

    delete_multi = delete_many

    def incr(self, key, value, noreply=False):
        """Adds value (0 to 2**64 - 1) to the stored number.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when the
        stored value is no number.
        """
        return _storage.arithmetic(self, b"incr", b" D", key, value, self.is_quiet(noreply or False))

    def decr(self, key, value, noreply=False):
        """Subtracts value (0 to 2**64 - 1) from the stored number, down to 0.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when the
        stored value is no number.
        """
        return _storage.arithmetic(self, b"decr", b" MD D", key, value, self.is_quiet(noreply or False))

    def touch(self, key, expire=0, noreply=None):
        """Lets the item of key expire in `expire` seconds (0: never). Returns True, or False when there is none."""
        return _storage.touch(self, key, expire, noreply)

    # --- meta commands ---

    def meta_get(
        self, key, *, value=True, flags=False, cas=False, ttl=False, size=False, hit_before=False, last_access=False,
        bump=True, touch=None, vivify=None, recache=None, new_cas=None, opaque=None,
    ):
        """Returns a MetaItem of key, or None when there is no item (memcached's command `mg`).

        value, flags, cas, ttl, size, hit_before, last_access: the wanted fields of the MetaItem; with a serde also
        flags. bump=False: the call does not count as an access. touch: the item expires in so many seconds. vivify: a
        missing item is made, without a value, for so many seconds; this caller wins the item (see MetaItem), and later
        callers wait. recache: if the item expires in less than so many seconds, a single caller wins it. new_cas: the
        cas of an item made by vivify. opaque: 1 to 31 characters, repeated in the answer.
        """
        return _meta.call(self, meta_get_request(self, key, {
            "value": value, "flags": flags, "cas": cas, "ttl": ttl, "size": size, "hit_before": hit_before,
            "last_access": last_access, "bump": bump, "touch": touch, "vivify": vivify, "recache": recache,
            "new_cas": new_cas, "opaque": opaque}))

    def meta_set(
        self, key, value, *, expire=0, flags=None, mode="set", cas=None, new_cas=None, invalidate=False, vivify=None,
        return_cas=False, return_size=False, opaque=None,
    ):
        """Stores value under key (`ms`). Returns a MetaResult, true if the value was stored.

        mode: "set", "add", "replace", "append" or "prepend". cas: stores only if the item has this cas. invalidate:
        if the item's cas is higher, stores the value as well, as a stale value. new_cas: the item's new cas. vivify:
        "append" and "prepend" make a missing item, for so many seconds. return_cas, return_size: the MetaResult gets
        the fields cas and size.
        """
        return _meta.call(self, meta_set_request(self, key, value, {
            "expire": expire, "flags": flags, "mode": mode, "cas": cas, "new_cas": new_cas, "invalidate": invalidate,
            "vivify": vivify, "return_cas": return_cas, "return_size": return_size, "opaque": opaque}))

    def meta_delete(self, key, *, cas=None, new_cas=None, invalidate=False, clear=False, expire=None, opaque=None):
        """Removes the item of key (`md`). Returns a MetaResult, true if the server has done so.

        cas: removes the item only if the item has this cas. invalidate: the item stays and is stale, so the next
        meta_get wins the item (see MetaItem); expire is then the number of seconds for which the item stays, and
        new_cas its new cas. clear: only the value and the flags are removed, and the item stays.
        """
        return _meta.call(self, meta_delete_request(self, key, {
            "cas": cas, "new_cas": new_cas, "invalidate": invalidate, "clear": clear, "expire": expire,
            "opaque": opaque}))

    def meta_arithmetic(
        self, key, delta=1, *, mode="incr", value=True, initial=None, vivify=None, touch=None, cas=None, new_cas=None,
        return_cas=False, ttl=False, opaque=None,
    ):
        """Adds delta (0 to 2**64 - 1) to the number of key; mode="decr": subtracts delta, down to 0 (`ma`). Returns a
        MetaNumber, true if the server has done so.

        initial: the number of a missing item, made for `vivify` seconds (0 or None: for ever). touch: the item expires
        in so many seconds. value, return_cas, ttl: the MetaNumber gets the fields value, cas and
        ttl.
        """
        return _meta.call(self, meta_arithmetic_request(self, key, delta, {
            "mode": mode, "value": value, "initial": initial, "vivify": vivify, "touch": touch, "cas": cas,
            "new_cas": new_cas, "return_cas": return_cas, "ttl": ttl, "opaque": opaque}))

    def meta_noop(self):
        """Sends `mn`, and waits for the server's answer. Returns True."""
        return _meta.call(self, meta_noop_request(self))

    def meta_debug(self, key):
        """Returns the server's description of an item (`me`), or None when there is no item: a dict of exp (seconds
        until expiry; -1: never), la (seconds since the last access), cas, fetch (whether the item was fetched), cls
        (slab class), size (bytes of memory). Does not count as an access: last_access and the LRU stay unchanged."""
        return _meta.call(self, meta_debug_request(self, key))

    def exists(self, key):
        """Returns whether key has an item. Does not count as an access: last_access and the LRU stay unchanged."""
        return _meta.call(self, exists_request(self, key))

    def ttl(self, key, default=None):
        """Returns the seconds until the item of key expires; -1: never; default: there is no item. Does not count as an
        access: last_access and the LRU stay unchanged."""
        return _meta.call(self, remaining_request(self, b"ttl", key, default))

    def last_access(self, key, default=None):
        """Returns the seconds since the last access of key's item; default: there is no item. Does not count as an
        access: last_access and the LRU stay unchanged."""
        return _meta.call(self, remaining_request(self, b"last_access", key, default))

    def invalidate(self, key, expire=30):
        """Makes the item of key stale: the next `get_or_set` computes it anew, while others take the old value, for at
        most `expire` seconds. Returns True, or False when there is no item.

        Read such a key by `get_or_set` or `meta_get`. The server asks the first reader to compute the value (`won` of
        MetaItem), and the result of `get` does not show this.
        """
        return bool(self.meta_delete(key, invalidate=True, expire=expire))

    def get_or_set(self, key, compute, expire=0, *, lease=30, wait=None, refresh=None, stale=True):
        """Returns the value of key; without an item, calls compute() and stores its result for `expire` seconds.

        Of all clients a single caller computes, and the rest wait for the value. If compute() raises an exception, or
        the computing caller stores no value within `lease` seconds, the next caller computes. wait: the most seconds of
        waiting; afterwards the call computes by itself, and does not store.

        An old value is computed anew by a single caller, too: the value of a stale item (`invalidate`), and the value
        of an item that expires in less than `refresh` seconds. Meanwhile the rest get the old value, without waiting.
        With stale=False they wait for the new value of a stale item. If the computing caller stores no value, no other
        caller takes over before the item expires. But an exception of compute() leaves a stale item to the next caller.

        A value invalidated or deleted during compute() is not stored. The keys may be any bytes (1 to 250, or up to 186
        if some are not printable ASCII), as in all meta commands. Raises ValueError for a lease below 1.
        """
        return leases.drive(self, compute, leases.steps(key, expire, lease, wait, refresh, stale))

    # --- administration ---

    def stats(self, *args):
        """Returns {name: value} of the server's statistics; args as in memcached's stats command.

        Names are bytes. Values are converted as in pymemcache: to int, float, bool or bytes.
        """
        return _admin.stats(self, args)

    def version(self):
        """Returns the server's version, as bytes."""
        return _admin.version(self)

    def flush_all(self, delay=0, noreply=None):
        """Invalidates all items, in `delay` seconds. Returns True."""
        return _admin.flush_all(self, delay, noreply)

    def cache_memlimit(self, memlimit):
        """Sets the server's memory limit, in megabytes. Returns True.

        Raises MemcacheClientError when the server refuses; pymemcache returns True then as well.
        """
        _admin.command(
            self, b"cache_memlimit " + integer_text(memlimit, "memlimit") + b"\r\n", b"cache_memlimit", b"OK")
        return True

    def check_key(self, key, key_prefix=b""):
        """Returns the bytes sent for a key behind a prefix. Raises MemcacheIllegalInputError, TypeError."""
        return encode_key(key, as_bytes(key_prefix), self.allow_unicode_keys)

    def raw_command(self, command, end_tokens="\r\n"):
        """Sends a command line, and adds \\r\\n.

        Returns the bytes of the answer before the first end_tokens. The client drops the rest of the answer. If more
        may come, the next command makes a new connection. Raises the exception of an error line at the beginning of the
        answer. command and end_tokens are bytes or str.
        """
        return _admin.raw_command(self, command, end_tokens)

    def metadump(self, classes="all"):
        """Returns an iterator over the items of the server: a dict of each, with key (bytes), exp and la (expiry and
        last access, in seconds since 1970; exp -1: never), cas, fetch (whether the item was fetched), cls (slab class),
        size (bytes of memory).

        classes: "all", the numbers of slab classes ("1,2"), or "hash". With "hash" the server walks its hash table, and
        so dumps all items without disturbing the LRU queues much. The dump has a plain connection of its own, so the
        Client can be used meanwhile. The iterator closes the connection after the last item, in its own method close,
        and at the end of a `with` block around the iterator.
        Raises MemcacheServerError when the server is busy with another dump, and MemcacheUnexpectedCloseError when a
        dump ends early.
        """
        return dumps.metadump(self, classes)

    def mgdump(self, classes="all"):
        """Returns an iterator over the keys (bytes) of the server's items; otherwise as `metadump`."""
        return dumps.mgdump(self, classes)

    def watch(self, *streams, timeout=None):
        """Returns an iterator over the server's log: a dict of each line. The iterator's own method close ends the
        iteration.

        streams: "fetchers", "mutations", "evictions", ...; none: fetchers. timeout: seconds for each line, or None. The
        iterator has a plain connection of its own, as of `metadump`. The call returns when the server has accepted the
        command.
        """
        return dumps.watch(self, streams, timeout)

    def quit(self):
        """Sends the command `quit`, and closes the connection. Returns None."""
        _admin.quit(self)

    def shutdown(self, graceful=False):
        """Ends a server started with -A (--enable-shutdown). Returns None."""
        _admin.shutdown(self, graceful)

    def pipeline(self):
        """Returns a Pipeline, which queues commands, sends them together, and reads their answers together."""
        return Pipeline(self)

    # --- as a dict ---

    def __setitem__(self, key, value):
        """Calls `set` with noreply."""
        self.set(key, value, noreply=True)

    def __getitem__(self, key):
        """Calls `get`. Raises KeyError when there is no item."""
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __delitem__(self, key):
        """Calls `delete` with noreply."""
        self.delete(key, noreply=True)
