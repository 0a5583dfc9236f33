"""The memcached client: pymemcache's methods."""

import copy
import copyreg
import importlib
import re
import warnings

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EBADF, EMSGSIZE

from rmemcached.client.wire._commands cimport (
    answer,
    checked_key,
    convert_statistics,
    encode_key,
    exact_bytes,
    integer_text,
    is_error,
    is_refusal,
    put_bytes,
    read_statistic,
)
from rmemcached.client.api._connection cimport Connection
from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.api._meta cimport Meta
from rmemcached.client.api._pipeline cimport Pipeline
from rmemcached.client.api._reads cimport forget_clocks
from rmemcached.client.transport._results cimport drop_results
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.transport._stream cimport Stream
from rmemcached.sys.linux cimport memmem

from rmemcached.client.api import dumps
from rmemcached.client.transport.arguments import check_choices, check_encoding, check_serde, looks_like_port
from rmemcached.client.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
)
from rmemcached.client.urls import expanded, is_url

cdef enum:
    STATISTICS_MOST = 1 << 20  # lines; more of them are not believed


# The modules' names are gone when the interpreter ends.
cdef object warn = warnings.warn

cdef object STORAGE = re.compile(rb"(set|add|replace|append|prepend|cas|ms) [^\n]*\n[^\n]*", re.DOTALL)


cdef bint goes_on(bytes line):
    # Whether a raw command may have several answers.
    return line.startswith(b"watch") or b"\n" in line and STORAGE.fullmatch(line) is None


cdef bytes as_bytes(object text, str encoding="ascii"):
    # Of bytes and str, and of their subclasses.
    if isinstance(text, str):
        return text.encode(encoding)
    if isinstance(text, bytes):
        return exact_bytes(text)
    raise TypeError(f"bytes or str are needed, not {type(text).__name__}")


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


cdef class Client(Meta):
    """Client(server, serde=None, serializer=None, deserializer=None, connect_timeout=None, timeout=None,\
 no_delay=True, ignore_exc=False, socket_module=None, socket_keepalive=None, key_prefix=b"", default_noreply=True,\
 allow_unicode_keys=False, encoding="ascii", tls_context=None, *, transport=None, spin=None, rdma_cm_port=None,\
 username=None, password=None)
--

A client of one memcached or rmemcached server, with pymemcache's methods.

    Args:
        server: (host, port), "host", "host:port", "[v6]:port", or the path of a UNIX socket ("/path" or "unix:/path").
            ``Client("host", port)`` is understood as well, with a port of digits in a text, too; or a URL, see below.
        serde: an object with ``serialize(key, value) -> (value, flags)`` and ``deserialize(key, value, flags)``.
            rmemcached.client.serde has some. With a true attribute ``takes_views`` it may get a read-only memoryview
            in place of bytes as the value. The value of serialize may be a Gathered.
        serializer, deserializer: the two as functions, where there is no serde.
        connect_timeout, timeout: seconds for connecting, and for each wait for the server. None: no limit.
        no_delay: TCP_NODELAY. True by default: without it a command behind a noreply one waits for the server's ACK.
        ignore_exc: get, gets, gat, gats, get_many, gets_many and stats return the result of a miss in place of raising.
        socket_module: gevent.socket, eventlet.green.socket, or another module with socket and getaddrinfo: over TCP
            greenlets run while a call waits. None: the standard library's module, with the same effect if it is
            patched, as by gevent.monkey. "auto" is "tcp" then. Another transport blocks the greenlets of its thread,
            and the logger rmemcached.client warns.
        socket_keepalive: a KeepaliveOpts, or None.
        key_prefix: bytes put before every key.
        default_noreply: the value of ``noreply`` in calls without this argument (cas, incr and decr: False).
        allow_unicode_keys: str keys are sent as UTF-8; otherwise they must be ASCII.
        encoding: of str values, and of the text of objects that are not bytes-like.
        tls_context: an ssl.SSLContext for a connection by TLS over TCP; "auto" is "tcp" then.
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

    A URL names server and transport: ``memcached://host:port`` ("auto"), ``rdma://`` ("verbs"), ``shm://``
    ("soft_shm"), ``iwarp://`` ("soft_iw"), ``tcp://``, ``unix:///path``. Before the host there can be
    ``user:password@``, and behind it options: ``?timeout=0.5&connect_timeout=1&no_delay=false&key_prefix=app:``, also
    spin, ignore_exc, default_noreply, allow_unicode_keys, encoding, rdma_cm_port, and for memcached:// and unix://
    transport. Seconds can be ``none``. Special characters are percent-encoded: %40 for @. A setting in the URL cannot
    be an argument as well, unless the argument has its default value. The transport of a URL comes before the
    environment's.

    With a server or proxy without meta commands (memcached before 1.6) the client uses classic commands.

    Keys are str or bytes: 1 to 250 bytes with the prefix, without white space and NUL. Values are bytes, or any object
    with a contiguous buffer, which is sent in place, without a copy. get returns bytes objects, and receives the data
    into them directly. With ``noreply`` a call does not wait for the server: it returns as after a success, and does
    not raise errors of the server.

    The first command makes a connection. The next command makes a new one after `close`, after an error that leaves the
    connection unusable, and after the server has closed a connection unused for 20 ms or more. Thread-safe: calls of
    different threads run at the same time, each on a connection of its own, which the client keeps for later calls.
    Where a transport has lanes, these connections share queue pairs. The commands of a thread reach the server in their
    order. After a fork the child makes its own connections, and leaves the parent's alone. copy.copy, copy.deepcopy and
    pickle make a client with the same options and no connection.

    Every command raises, where its own text says nothing else:

    - MemcacheIllegalInputError, and TypeError for a key: the arguments cannot be sent. Nothing was sent.
    - MemcacheClientError, MemcacheServerError: the server's error line. The connection stays.
    - MemcacheUnknownCommandError, MemcacheUnknownError: the answer is ERROR, or no answer of memcached's. These errors,
      and the following, close the connection.
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
                       username, password, socket_module, tls_context)
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
        one.__setstate__(copy.deepcopy((self._options(), vars(self)), memo))
        return one

    def __setstate__(self, state):
        options, attributes = state
        if options["socket_module"] is not None:
            options["socket_module"] = importlib.import_module(options["socket_module"])
        Client.__init__(self, **options)
        vars(self).update(attributes)

    cdef dict _options(self):
        # The arguments for an equal client.
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
        connection, and while the server stands still. If it is False on this host, the log and `stats rdma` give the
        reason.
        """
        cdef DirectMemory memory = self.memory()
        return memory is not None and memory.is_read()

    @property
    def sock(self):
        """A socket object of the connection used last, or None without a connection. It is closed with the connection.

        Use it for inspection, and not to read from it. Over RDMA it belongs to the TCP connection beside the queue
        pair.
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
        """Closes the connections, and connections of calls in other threads as soon as these end. Any number of times.

        The next command makes a new connection.
        """
        try:
            if self.has_hits() and self._generation == fork_count():
                self.tell_hits()
            if self._releases.waiting:
                # On connections kept open by other views.
                self.tell_releases()
        finally:
            self.close_all()
            drop_results()

    disconnect_all = close

    cdef bytes _command(self, bytes command, bytes name, bytes wanted=None):
        # Sends a line and returns the line of the answer. An answer other than `wanted` is an error.
        cdef Connection c = self.enter(False, name)
        cdef Stream s = c.stream
        cdef list errors = []
        cdef bytes line
        try:
            put_bytes(s, command)
            c.exchange()
            line = answer(s)
            if is_error(line):
                c.refused_by(line, errors)
            elif wanted is not None and line != wanted:
                errors.append(c.named(MemcacheClientError(line)))
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return line

    def stats(self, *args):
        """Returns {name: value} of the server's statistics; args as in memcached's stats command.

        Names are bytes. Values are converted as in pymemcache: to int, float, bool or bytes.
        """
        cdef list words = [checked_key(as_bytes(arg)) for arg in args]
        cdef dict result
        try:
            result = self._stats(words)
        except Exception as error:
            if not self.ignore_exc:
                if isinstance(error, MemcacheError) and error.command == "stats":
                    # Names the statistics.
                    error.command = b" ".join([b"stats", *words]).decode("ascii", "backslashreplace")
                raise
            return {}
        convert_statistics(result)
        return result

    cdef dict _stats(self, list words):
        cdef Connection c = self.enter(False, b"stats")
        cdef Stream s = c.stream
        cdef list errors = []
        cdef dict result = {}
        cdef Py_ssize_t lines = 0
        cdef bytes line
        try:
            put_bytes(s, b" ".join([b"stats", *words]) + b"\r\n")
            c.exchange()
            while True:
                line = answer(s)
                if line in (b"END", b"OK", b"RESET"):
                    break
                if not read_statistic(line, result):
                    c.refused_by(line, errors)
                    break
                lines += 1
                if lines == STATISTICS_MOST:
                    raise c.broken(-EMSGSIZE)
                c.next_line()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
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
        cdef Connection c
        if not self.is_quiet(noreply):
            try:
                return self._command(command + b"\r\n", b"flush_all") == b"OK"
            finally:
                forget_clocks()
        c = self.enter(True, b"flush_all")
        try:
            put_bytes(c.stream, command + b" noreply\r\n")
            c.unanswered(1)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, None)
        forget_clocks()
        return True

    def cache_memlimit(self, memlimit):
        """Sets the server's memory limit, in megabytes. Returns True.

        Raises MemcacheClientError when the server refuses; pymemcache returns True then as well.
        """
        self._command(
            b"cache_memlimit " + integer_text(memlimit, "memlimit") + b"\r\n", b"cache_memlimit", b"OK")
        return True

    def check_key(self, key, key_prefix=b""):
        """Returns the bytes sent for a key behind a prefix. Raises MemcacheIllegalInputError, TypeError."""
        return encode_key(key, as_bytes(key_prefix), self.allow_unicode_keys)

    def raw_command(self, command, end_tokens="\r\n"):
        """Sends a command line, and adds \\r\\n.

        Returns the bytes of the answer before the first end_tokens; the rest is dropped, if need be with the
        connection. An error line at the beginning of the answer ends it, and is raised. command and end_tokens are
        bytes or str.
        """
        cdef str encoding = "utf8" if self.allow_unicode_keys else "ascii"
        cdef bytes line = as_bytes(command, encoding)
        cdef bytes token = as_bytes(end_tokens, encoding)
        cdef list errors = []
        cdef bytes text
        cdef bint refused
        cdef Connection c = self.enter(False, line)
        cdef Stream s = c.stream
        try:
            put_bytes(s, line + b"\r\n")
            c.exchange()
            text = answer(s)
            # The caller gets BUSY as the text of an answer of one line.
            refused = is_error(text) or token != b"\r\n" and is_refusal(text)
            if not refused:
                text = self._read_until(c, token)
            if s.unmarked or s.rpos != s.rend or goes_on(line) or (
                    not refused and token == b"\r\n" and text.startswith((b"VA", b"STAT"))):
                # More is to come. The next command needs another connection.
                c.epoch -= 1
                s.rpos = s.rend
            else:
                # Whatever comes all the same is not the answer to the next command.
                s.noreplies += 1
            if s.iov_next < s.iov_count:
                # The server has answered before it had all of the line.
                c.send()
            if refused:
                c.refused_by(text, errors)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return text

    cdef bytes _read_until(self, Connection c, bytes token):
        # The bytes before the token, from the line just read on.
        cdef Stream s = c.stream
        cdef char *start
        cdef char *found
        cdef bytes text
        s.rpos = s.line - s.rbuf
        while True:
            start = s.rbuf + s.rpos
            found = <char *>memmem(start, s.rend - s.rpos, PyBytes_AS_STRING(token), len(token))
            if found != NULL:
                break
            c.fill()
        text = start[:found - start]
        s.rpos += len(text) + len(token)
        return text

    def metadump(self, classes="all"):
        """Iterates over the items of the server: a dict of each, with key (bytes), exp, la, cas, fetch, cls, size.

        classes: "all", "hash", or the numbers of slab classes ("1,2"). The dump has a plain connection of its own,
        closed after the last item, by `close`, or at the end of a `with` block: the Client can be used meanwhile.
        Raises MemcacheServerError when the server is busy with another dump, and MemcacheUnexpectedCloseError when a
        dump ends early.
        """
        return dumps.metadump(self, classes)

    def mgdump(self, classes="all"):
        """Iterates over the keys (bytes) of the server's items, as `metadump` does."""
        return dumps.mgdump(self, classes)

    def watch(self, *streams, timeout=None):
        """Iterates over the server's log: a dict of each line. The iteration goes on until `close`.

        streams: "fetchers", "mutations", "evictions", ...; none: fetchers. timeout: seconds for each line, or None. On
        a plain connection of its own, as `metadump`. Returns when the server has begun.
        """
        return dumps.watch(self, streams, timeout)

    def quit(self):
        """Tells the server of the end of the connection, and closes it. Returns None."""
        cdef Connection c = self.enter(True, b"quit")
        cdef Stream s = c.stream
        try:
            s.put("quit\r\n", 6)
            c.send()
        except MemcacheUnexpectedCloseError:
            # The server ended the connection before this side had confirmed the send.
            return
        finally:
            self.drop(c)

    def shutdown(self, graceful=False):
        """Ends a server started with -A (--enable-shutdown). Returns None."""
        try:
            self._command(b"shutdown graceful\r\n" if graceful else b"shutdown\r\n", b"shutdown")
        except MemcacheUnexpectedCloseError:
            # The end of the connection is the answer.
            return

    def pipeline(self):
        """Returns a Pipeline, which queues commands, sends them together, and reads their answers together."""
        return Pipeline(self)

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
