"""See _views.pxd."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from rmemcached.client._forks cimport fork_count
from rmemcached.client._state cimport lock_state, shared_state, unlock_state
from rmemcached.direct cimport direct_is_alive, direct_memory

cdef enum:
    TOLD_AT_A_TIME = 128     # in a line, which the server takes up to 2048 bytes of
    GONE_FIRST = 16


cdef class Releases:
    pass


# No cycle can lead through these; the collector would clear what __dealloc__ needs.
@cython.no_gc
cdef class Pins:

    def __dealloc__(self):
        free(self.gone)

    cdef int put(self, Stream s) except -1:
        cdef unsigned int i
        lock_state(&shared_state)
        try:
            for i in range(self.gone_count):
                s.put("rdma_release " if i % TOLD_AT_A_TIME == 0 else " ", 13 if i % TOLD_AT_A_TIME == 0 else 1)
                s.put_number(self.gone[i])
                if i % TOLD_AT_A_TIME == TOLD_AT_A_TIME - 1 or i == self.gone_count - 1:
                    s.put("\r\n", 2)
            self.forget()
        finally:
            unlock_state(&shared_state)
        return 0

    cdef void forget(self) noexcept:
        if self.releases is not None:
            self.releases.waiting -= self.gone_count
        self.gone_count = 0

    cdef void leave(self) noexcept:
        lock_state(&shared_state)
        self.forget()
        self.releases = None
        unlock_state(&shared_state)

    cdef Pin add(self, uint32_t id):
        cdef Pin pin = Pin.__new__(Pin)
        cdef unsigned int room
        cdef uint32_t *grown
        lock_state(&shared_state)
        try:
            if self.live + self.gone_count == self.gone_room:
                room = max(self.gone_room * 2, <unsigned int>GONE_FIRST)
                grown = <uint32_t *>realloc(self.gone, room * sizeof(uint32_t))
                if grown == NULL:
                    raise MemoryError
                self.gone = grown
                self.gone_room = room
            self.live += 1
            pin.id = id
            pin.pins = self
        finally:
            unlock_state(&shared_state)
        return pin


cdef Pins new_pins(Stream s, Releases releases):
    cdef DirectMemory memory = s.direct_memory()
    cdef Pins pins
    if memory is None:
        return None
    pins = Pins.__new__(Pins)
    pins.stream = s
    pins.memory = memory
    pins.releases = releases
    pins.generation = fork_count()
    return pins


@cython.no_gc
cdef class Pin:

    def __dealloc__(self):
        cdef Pins pins = self.pins
        # A fork's views are not the server's affair.
        if pins is None or pins.generation != fork_count():
            return
        lock_state(&shared_state)
        pins.live -= 1
        if pins.releases is not None:
            pins.gone[pins.gone_count] = self.id
            pins.gone_count += 1
            pins.releases.waiting += 1
        unlock_state(&shared_state)


@cython.no_gc
cdef class PinnedMemory:
    """Memory of a server's item, or a piece of it, which a memoryview of `Client.get_view` shows: its `obj`.

    It cannot be written to. The server keeps the item for as long as there is a view of it. Thread-safe.
    """

    def __init__(self):
        raise TypeError("Client.get_view makes it")

    def __repr__(self):
        return f"<rmemcached.client.PinnedMemory of {self.length} bytes{'' if self.pinned else ', not pinned'}>"

    def __getbuffer__(self, Py_buffer *out, int flags):
        PyBuffer_FillInfo(out, self, <void *>self.data, self.length, True, flags)

    @property
    def pinned(self):
        """Whether the server still keeps the item. It is asked nothing: a lost connection may show a moment later.

        False: the connection is lost, or this is a forked child, whose parent has it. If the server goes on, it may put
        something else there at any time; otherwise the bytes stay as they are.
        """
        cdef Pins pins = self.pin.pins
        cdef bint found
        if pins.generation != fork_count():
            return False
        lock_state(&shared_state)
        found = pins.stream.keeps_pins() and direct_is_alive(&pins.memory.memory)
        unlock_state(&shared_state)
        return found


cdef PinnedMemory memory_at(Pin pin, uint64_t place, uint64_t length):
    cdef PinnedMemory made = PinnedMemory.__new__(PinnedMemory)
    made.pin = pin
    made.data = pin.pins.memory.memory.base + place
    made.length = <Py_ssize_t>length
    return made


cdef inline const char *number(const char *p, const char *end, unsigned int base, uint64_t *value) noexcept:
    """The place behind the digits at p; NULL: there are none, or too many."""
    cdef const char *start = p
    cdef unsigned int digit
    value[0] = 0
    while p != NULL and p < end:
        digit = <unsigned int>(p[0] - c'0')
        if digit > 9:
            digit = <unsigned int>(p[0] - c'a') + 10 if c'a' <= p[0] <= c'f' else base
        if digit >= base:
            break
        if value[0] >> 58:
            return NULL
        value[0] = value[0] * base + digit
        p += 1
    return p if p != start else NULL


cdef inline const char *behind(const char *p, const char *end, char mark) noexcept:
    return p + 1 if p != NULL and p < end and p[0] == mark else NULL


cdef const char *next_piece(const direct_memory *m, const char *p, const char *end, uint64_t *place,
                            uint64_t *length) noexcept:
    """The place behind " place:length"; NULL: that is none, or not within the items' memory."""
    p = number(behind(p, end, c' '), end, 16, place)
    p = number(behind(p, end, c':'), end, 16, length)
    if p == NULL or place[0] < m.arena or place[0] > m.length or length[0] > m.length - place[0]:
        return NULL
    return p


cdef list take_view(Pins pins, Stream s, uint32_t *flags):
    cdef const direct_memory *m = &pins.memory.memory
    cdef const char *end = s.line + s.line_length
    cdef const char *pieces
    cdef const char *p
    cdef uint64_t id = 0
    cdef uint64_t client_flags = 0
    cdef uint64_t length = 0
    cdef uint64_t total = 0
    cdef uint64_t place = 0
    cdef uint64_t size = 0
    cdef list views = []
    cdef Pin pin
    if s.line_length < 5 or memcmp(s.line, b"VIEW ", 5) != 0:
        return None
    p = number(s.line + 5, end, 10, &id)
    p = number(behind(p, end, c' '), end, 10, &client_flags)
    p = pieces = number(behind(p, end, c' '), end, 10, &length)
    if p == NULL or p == end or id > UINT32_MAX or client_flags > UINT32_MAX:
        return None
    while p != end:
        p = next_piece(m, p, end, &place, &size)
        if p == NULL or size > length - total or (size == 0) != (length == 0):
            return None
        total += size
    if total != length:
        return None
    flags[0] = <uint32_t>client_flags
    pin = pins.add(<uint32_t>id)
    p = pieces
    while p != end:
        p = next_piece(m, p, end, &place, &size)
        views.append(memoryview(memory_at(pin, place, size)))
    return views
