"""See _session.pxd."""

import socket
import sys
import weakref

from rmemcached.client.api._views cimport Pins, Releases
from rmemcached.client.transport._direct cimport DirectMemory, DirectReader, is_same, new_reader, put_report
from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.transport._stream cimport IDLE_MS, Stream
from rmemcached.client.wire cimport _commands
from rmemcached.client.wire._commands cimport answer, encode_key, encode_value, number_text, put_bytes, put_mark
from rmemcached.direct cimport DIRECT_LINE
from rmemcached.sys.clock cimport coarse_ms
from rmemcached.sys.debug cimport assert_that

from rmemcached.client.exceptions import MemcacheError
from rmemcached.client.transport.arguments import as_port, check_choices, is_number
from rmemcached.client.transport.authentication import answers, checked_credentials, request
from rmemcached.client.transport.connection import open_stream, tell_what_blocks
from rmemcached.client.transport.sockets import KeepaliveOpts, check_sockets, current_greenlet
from rmemcached.client.transport.transports import ROWS, TRANSPORTS
from rmemcached.client.urls import chosen_transport, normalize_server, read_transports

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil


cdef class Session:

    def __cinit__(self, *arguments, **options):
        if len(arguments) > 1 and "serde" in options:
            raise TypeError("with (host, port) as one argument there can be a serde: Client((host, port), serde=...)")
        self.key_prefix = b""
        self.encoding = "ascii"
        self._wanted = "auto"
        self._generation = fork_count()
        self._releases = Releases.__new__(Releases)

    cdef int configure(self, server, connect_timeout, timeout, no_delay, keepalive, transport, spin, rdma_cm_port,
                       username, password, socket_module, tls_context, sasl) except -1:
        self.close_all()
        self.server = normalize_server(server)
        for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
            if seconds is not None and not is_number(seconds, 0, True):
                raise ValueError(f"{name} must be positive seconds or None, not {seconds!r}")
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        check_choices(no_delay=no_delay)
        self.no_delay = no_delay
        if keepalive is not None and not isinstance(keepalive, KeepaliveOpts):
            for name in ("idle", "intvl", "cnt"):
                if not hasattr(keepalive, name):
                    raise ValueError("socket_keepalive must be a KeepaliveOpts object")
        self.socket_keepalive = keepalive
        transport, named = chosen_transport(transport, TRANSPORTS)
        row = ROWS.get(transport)
        may_be_plain = row is None or row.plain
        if not may_be_plain and not row.near and isinstance(self.server, str):
            raise ValueError(f"{named} needs a host and port, not the UNIX socket {self.server!r}")
        self._wanted = transport
        read_transports()
        if spin is not None and not is_number(spin, 0):
            raise ValueError(f"spin must be microseconds from 0 up, not {spin!r}")
        self.spin = spin
        if rdma_cm_port is not None:
            try:
                rdma_cm_port = as_port(rdma_cm_port)
            except ValueError as error:
                raise ValueError(f"rdma_cm_port must be {error}, not {rdma_cm_port!r}") from None
        if rdma_cm_port is not None and isinstance(self.server, str):
            raise ValueError(f"rdma_cm_port needs a host and port, not the UNIX socket {self.server!r}")
        self.rdma_cm_port = rdma_cm_port
        self.credentials = checked_credentials(username, password, sasl)
        self.binary_only = None
        self.closes_on_rdma = False
        self.closes_on_meta = False
        self.unmarked = False
        self.socket_module = None if socket_module is socket else socket_module
        self.tls_context = tls_context
        if self.socket_module is not None and (not may_be_plain or rdma_cm_port is not None):
            found = "rdma_cm_port" if may_be_plain else named
            raise ValueError(
                f"socket_module is for TCP: with transport 'tcp' or 'auto' and no rdma_cm_port; here is {found}")
        if tls_context is not None and (rdma_cm_port is not None or (row is not None and row.by_cm)):
            raise ValueError("tls_context does not go with rdma_cm, where nothing is encrypted")
        if tls_context is not None and isinstance(self.server, str):
            raise ValueError(f"tls_context needs a host and port, not the UNIX socket {self.server!r}")
        check_sockets(self.socket_module, tls_context)
        return 0

    cdef bytes encoded_key(self, object key):
        return encode_key(key, self.key_prefix, self.allow_unicode_keys)

    cdef object sendable_key(self, object key):
        return _commands.sendable_key(key, self.key_prefix, self.allow_unicode_keys)

    cdef bint is_quiet(self, object noreply) except -1:
        if noreply is None:
            return self.default_noreply
        if noreply is not True and noreply is not False:
            # check_choices raises for other values, such as the seconds meant for expire.
            check_choices(noreply=noreply)
        return noreply

    cdef object serialize(self, object key, object value, object flags, list numbers):
        cdef object number = 0
        if self.serde is None and flags is None:
            numbers.append(None)
            return value if type(value) is bytes else encode_value(value, self.encoding)
        if self.serde is not None:
            try:
                value, number = self.serde.serialize(key, value)
            except OSError as error:
                error.of_serde = True
                raise
        numbers.append(number_text(number if flags is None else flags, "flags"))
        return encode_value(value, self.encoding)

    cdef object load(self, object key, object value, uint32_t flags):
        if self.serde is None:
            return value
        try:
            return self.serde.deserialize(key, value, flags)
        except OSError as error:
            error.of_serde = True
            raise

    # --- calls ---

    cdef Connection take(self, Connection c, Connection before):
        if before is None:
            self._idle = c.next
        else:
            before.next = c.next
        c.next = None
        self._unanswered -= c.stream.noreplies != 0
        return c

    cdef unsigned long caller(self) except? 0:
        if self._current is None:
            return PyThread_get_thread_ident()
        greenlet = self._current()
        return <size_t><void *>greenlet

    cdef int own(self, Connection c, unsigned long caller) except -1:
        c.greenlet = None if self._current is None else weakref.ref(self._current())
        c.owner = caller
        return 0

    cdef bint is_owned(self, Connection c, dict threads):
        if c.greenlet is None:
            return c.owner in threads
        greenlet = c.greenlet()
        return greenlet is not None and not greenlet.dead

    cdef Connection find(self, unsigned long caller):
        # The connection with unanswered commands of this thread or greenlet; or a connection without unanswered
        # commands; or a connection of a thread or greenlet that has ended. None: there is none.
        cdef unsigned long here = PyThread_get_thread_ident()
        cdef Connection c = self._idle
        cdef Connection before = None
        cdef Connection fit = None
        cdef Connection before_fit = None
        while c is not None:
            if c.home and c.home != here:
                pass
            elif c.stream.noreplies == 0:
                if fit is None:
                    fit = c
                    before_fit = before
            elif c.owner == caller:
                return self.take(c, before)
            before = c
            c = c.next
        if fit is None and self._idle is not None:
            threads = sys._current_frames()
            c = self._idle
            before_fit = None
            while c is not None and (c.home and c.home != here or self.is_owned(c, threads)):
                before_fit = c
                c = c.next
            fit = c
        return None if fit is None else self.take(fit, before_fit)

    cdef Connection connect(self):
        cdef DirectMemory memory
        cdef Connection c = Connection.__new__(Connection)
        cdef Stream s
        lock_state(&shared_state)
        c.epoch = self._epoch
        logged = self._logged
        unlock_state(&shared_state)
        c.generation = fork_count()
        c.server = self.server
        s, c.transport, logged = open_stream(self, self._wanted, logged)
        tell_what_blocks(self, c.transport)
        c.stream = s
        lock_state(&shared_state)
        self._logged = logged
        unlock_state(&shared_state)
        if s.needs_gil:
            self._current = current_greenlet()
        if s.of_thread:
            c.home = PyThread_get_thread_ident()
        if self.credentials is not None and s.must_authenticate():
            self.authenticate(c)
        memory = s.direct_memory()
        lock_state(&shared_state)
        self.read_from(memory)
        self._transport = c.transport
        self._open += 1
        unlock_state(&shared_state)
        return c

    cdef int authenticate(self, Connection c) except -1:
        # For the server each lane is a connection of its own, and must be authenticated.
        cdef Stream s = c.stream
        cdef bint first = True
        c.name = b"authentication"
        try:
            s.begin()
            put_bytes(s, request(self.credentials))
            for check in answers(self.credentials):
                c.read_answer(first)
                first = False
                check(answer(s), self.credentials)
            s.end()
        except BaseException as error:
            c.close()
            raise c.named(error)
        return 0

    cdef Connection idle(self, unsigned long caller):
        cdef Connection c
        lock_state(&shared_state)
        try:
            if self._generation != fork_count():
                # The connections are the parent's.
                self.close_all()
                self._open = 0
                self._generation = fork_count()
            c = self._idle
            if c is not None and c.home == 0 and (self._unanswered == 0 or c.stream.noreplies and c.owner == caller):
                self.take(c, None)
            else:
                c = self.find(caller)
        finally:
            unlock_state(&shared_state)
        return c

    cdef Connection enter(self, bint quiet, bytes name):
        cdef unsigned long caller = PyThread_get_thread_ident() if self._current is None else self.caller()
        cdef Connection c = self.idle(caller)
        cdef Stream s
        while c is not None and coarse_ms() - c.left >= IDLE_MS and c.stream.has_gone():
            # A request on this connection would be lost.
            self.drop(c)
            c = self.idle(caller)
        if c is None:
            c = self.connect()
            caller = self.caller()
        try:
            if self._current is None:
                c.owner = caller
            else:
                self.own(c, caller)
            c.name = name
            s = c.stream
            s.begin()
            if self._reader is not None and self.has_hits():
                # The report goes first: the server's statistics count these reads.
                self.put_hits(c)
            elif self._reader is None and s.remote:
                lock_state(&shared_state)
                self.read_from(s.direct_memory())
                unlock_state(&shared_state)
            if self._releases.waiting:
                self.put_releases(c)
            c.late = s.wlen
            if s.noreplies and not quiet and s.unmarked:
                s.noreplies = 0
                s.doubtful = True
            elif s.noreplies and not quiet:
                # Error lines of earlier commands without replies may precede the answer. The mark shows their end.
                put_mark(s)
        except BaseException:
            self.drop(c)
            raise
        return c

    cdef int leave(self, Connection c, list errors) except -1:
        cdef bint stays
        assert_that(c.next is None)
        if c.late and c.stream.wmark == 0:
            # The call has sent nothing, but its request begins with reports of reads or views: sends the reports.
            c.stream.wlen = c.late
            try:
                c.send()
            except BaseException:
                self.drop(c)
                raise
        c.late = 0
        c.left = coarse_ms()
        if c.has_more():
            # There is surplus input behind the answers. An earlier refusal explains more than `unasked`.
            error = errors[0] if errors else c.unasked()
            self.drop(c)
            raise error
        lock_state(&shared_state)
        c.stream.end()
        stays = c.epoch == self._epoch and c.generation == fork_count()
        if stays:
            c.next = self._idle
            self._idle = c
            self._unanswered += c.stream.noreplies != 0
        unlock_state(&shared_state)
        if not stays:
            self.drop(c)
        if errors:
            raise errors[0]
        return 0

    cdef void read_from(self, DirectMemory memory) noexcept:
        if memory is None:
            self._reader = None
        elif self._reader is None or not is_same(self._reader.memory, memory):
            self._reader = new_reader(memory)

    cdef bint has_hits(self) noexcept:
        cdef bint found
        lock_state(&shared_state)
        found = self._reader is not None and self._reader.report.total != 0
        unlock_state(&shared_state)
        return found

    cdef bint has_unanswered(self, unsigned long caller) noexcept:
        cdef Connection c = self._idle
        while c is not None:
            if c.stream.noreplies and c.owner == caller:
                return True
            c = c.next
        return False

    cdef DirectReader reader(self):
        cdef DirectReader found = None
        lock_state(&shared_state)
        # No direct read behind a command of the caller without a reply: the server may not have done the command yet.
        if (self._reader is not None and self._generation == fork_count()
                and not (self._unanswered and self.has_unanswered(self.caller()))):
            if not self._reader.is_alive():
                self._reader = None
            found = self._reader
        unlock_state(&shared_state)
        return found

    cdef DirectMemory memory(self):
        cdef DirectReader found
        lock_state(&shared_state)
        found = self._reader if self._generation == fork_count() else None
        unlock_state(&shared_state)
        return found.memory if found is not None and found.is_alive() else None

    cdef int put_hits(self, Connection c) except -1:
        cdef DirectReader reader
        cdef char *to
        lock_state(&shared_state)
        reader = self._reader
        unlock_state(&shared_state)
        # The report (the command rdma_hits) is for the server whose memory was read. This connection may lead to
        # another server, for example after a restart: the report would be wrong there, or unknown.
        if reader is not None and is_same(c.stream.direct_memory(), reader.memory):
            to = c.stream.room(DIRECT_LINE)
            c.stream.wlen += put_report(reader, to)
        return 0

    cdef int tell_hits(self) except -1:
        cdef Connection c
        cdef bint idle
        lock_state(&shared_state)
        if self._reader is not None:
            self._reader.told_later = False
        idle = self._idle is not None and not self._unanswered and not self._idle.home
        unlock_state(&shared_state)
        # A direct read makes no connection just to report: the next request takes the report along.
        if not idle:
            return 0
        try:
            c = self.enter(True, b"get")
            try:
                self.put_hits(c)
                c.send()
            except BaseException:
                self.drop(c)
                raise
            self.leave(c, None)
        except (MemcacheError, OSError):
            lock_state(&shared_state)
            self._reader = None
            unlock_state(&shared_state)
        return 0

    cdef int tell_late(self, DirectReader reader) except -1:
        if reader.told_later:
            self.tell_hits()
        if self._releases.waiting and self._releases.due():
            self.tell_releases()
        return 0

    cdef int put_releases(self, Connection c) except -1:
        if c.pins is not None:
            c.pins.put(c.stream)
        if self._releases.waiting:
            self.tell_releases()
        return 0

    cdef Pins pins_with(self, DirectMemory memory, uint64_t place):
        cdef Connection c
        cdef Pins found = None
        lock_state(&shared_state)
        c = self._idle
        while c is not None and found is None:
            if c.pins is not None and is_same(c.pins.memory, memory) and c.pins.find(place) is not None:
                found = c.pins
            c = c.next
        unlock_state(&shared_state)
        return found

    cdef Connection take_releasing(self):
        cdef Connection before = None
        cdef Connection c
        lock_state(&shared_state)
        c = self._idle
        while c is not None and (c.pins is None or c.pins.gone == 0 or c.home):
            before = c
            c = c.next
        if c is not None:
            self.take(c, before)
        unlock_state(&shared_state)
        return c

    cdef int tell_releases(self) except -1:
        cdef Connection c = self.take_releasing() if self._generation == fork_count() else None
        while c is not None:
            c.name = b"get_view"
            try:
                c.stream.begin()
                c.pins.put(c.stream)
                c.send()
            except BaseException as error:
                self.drop(c)
                if not isinstance(error, (MemcacheError, OSError)):
                    raise
            else:
                self.leave_quietly(c)
            c = self.take_releasing()
        return 0

    cdef int leave_quietly(self, Connection c) except -1:
        try:
            self.leave(c, None)
        except MemcacheError:
            # The connection is closed.
            pass
        return 0

    cdef void drop(self, Connection c) noexcept:
        lock_state(&shared_state)
        if c.generation == self._generation:
            self._open -= 1
        # The next connection may reach another server: no more direct reads of this server's memory.
        self._reader = None
        if c.ended and c.epoch == self._epoch:
            # The server has ended this connection, and probably the others.
            self.close_all()
        unlock_state(&shared_state)
        c.close()

    cdef void close_all(self) noexcept:
        cdef Connection c
        cdef Connection closed
        lock_state(&shared_state)
        c = self._idle
        self._reader = None
        self._epoch += 1
        self._idle = None
        self._unanswered = 0
        closed = c
        while c is not None:
            self._open -= 1
            c = c.next
        unlock_state(&shared_state)
        while closed is not None:
            closed.close()
            closed = closed.next
