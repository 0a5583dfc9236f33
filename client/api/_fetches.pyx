"""See _fetches.pxd."""

from rmemcached.client.api._connection cimport AHEAD
from rmemcached.client.transport._rdma cimport memory_of
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport put_fetch, put_sink
from rmemcached.client.wire._reply cimport REPLY_EN


cdef class Fetches:

    cdef int ask(self) except -1:
        cdef Connection c = self.connection
        cdef Stream s = c.stream
        cdef LaneMemory memory = self.memory
        cdef Py_ssize_t begun = self.sent
        cdef Py_ssize_t most = len(self.wanted)
        cdef int pushed
        if self.window and self.got and (not memory.large or self.missed == self.sinks):
            self.window = 0
        if self.window:
            most = min(most, self.got + self.window)
        while self.sent < most:
            put_fetch(s, self.wanted[self.sent], self.with_flags, self.with_cas, self.expire)
            if self.window:
                memory.choose_sink(self.sent % self.sinks)
                put_sink(s, False)
                memory.copy_early()
                self.named[self.sent % self.sinks] = memory.sink_named
                self.naming += 1
            s.put("\r\n", 2)
            self.sent += 1
            if not self.window:
                c.ahead(self.sent, AHEAD)
        if begun and self.sent > begun:
            s.commit()
            pushed = s.push()
            if pushed <= 0:
                c.interrupted(pushed)
        return 0

    cdef int answer(self) except -1:
        cdef Py_ssize_t slot
        self.ask()
        if self.memory is not None:
            self.memory.sink_named = False
        if self.got < self.naming:
            slot = self.got % self.sinks
            self.memory.choose_sink(slot)
            self.memory.sink_named = self.named[slot]
        self.connection.read_answer(self.got == 0)
        self.missed = self.missed + 1 if self.connection.reply.code == REPLY_EN else 0
        self.got += 1
        return 0


cdef Fetches new_fetches(Connection c, list wanted, bint with_flags, bint with_cas, bytes expire):
    cdef Fetches made = Fetches.__new__(Fetches)
    made.connection = c
    made.wanted = wanted
    made.with_flags = with_flags
    made.with_cas = with_cas
    made.expire = expire
    made.memory = memory_of(c.stream)
    if made.memory is not None:
        made.window = made.sinks = min(made.memory.sinks_at_once(), <Py_ssize_t>FETCHES_MOST)
    return made
