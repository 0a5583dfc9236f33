"""See _views.pxd."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport UINT32_MAX, uint64_t
from libc.string cimport memcmp

from rmemcached.client.transport._forks cimport fork_count
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.direct cimport direct_is_alive, direct_memory
from rmemcached.sys.clock cimport coarse_ms

cdef enum:
    TOLD_AT_A_TIME = 128     # pins in a line; the server takes lines of 2048 bytes
    TOLD_MS = 100            # the server hears of a pin without views after this time, even without a request
    TOLD_FROM = 64           # the server hears at once of so many pins


cdef class Releases:

    cdef bint due(self) noexcept:
        return self.waiting >= TOLD_FROM or coarse_ms() - self.since >= TOLD_MS


cdef class Pin:
    pass


# No cycle leads through these objects; the collector would clear the fields needed by __dealloc__.
@cython.no_gc
cdef class Pins:

    cdef int put(self, Stream s) except -1:
        cdef unsigned int told = 0
        cdef Pin pin
        lock_state(&shared_state)
        try:
            while self.first is not None:
                pin = self.first
                if pin.views == 0:
                    if told and told % TOLD_AT_A_TIME == 0:
                        s.put("\r\n", 2)
                    if told % TOLD_AT_A_TIME == 0:
                        s.put("rdma_release", 12)
                    s.put(" ", 1)
                    s.put_number(pin.id)
                    told += 1
                    if self.places.get(pin.item) is pin:
                        del self.places[pin.item]
                self.first = pin.following
                pin.following = None
                pin.listed = False
            if told:
                s.put("\r\n", 2)
            self.forget()
        finally:
            unlock_state(&shared_state)
        return 0

    cdef void forget(self) noexcept:
        if self.releases is not None:
            self.releases.waiting -= self.gone
        self.gone = 0

    cdef void leave(self) noexcept:
        lock_state(&shared_state)
        self.forget()
        self.releases = None
        unlock_state(&shared_state)

    cdef Pin find(self, uint64_t place):
        cdef Pin pin = self.places.get(place)
        return pin if pin is not None and self.stream.keeps_pins() else None

    cdef void has_view(self, Pin pin) noexcept:
        lock_state(&shared_state)
        if pin.views == 0:
            self.live += 1
            if pin.listed and self.releases is not None:
                self.gone -= 1
                self.releases.waiting -= 1
        pin.views += 1
        unlock_state(&shared_state)

    cdef void lost_view(self, Pin pin) noexcept:
        # The garbage collector may call this function, so it allocates nothing.
        lock_state(&shared_state)
        pin.views -= 1
        if pin.views == 0:
            self.live -= 1
            if self.releases is not None:
                if self.releases.waiting == 0:
                    self.releases.since = coarse_ms()
                self.releases.waiting += 1
                self.gone += 1
                if not pin.listed:
                    pin.listed = True
                    pin.following = self.first
                    self.first = pin
        unlock_state(&shared_state)

    cdef list views_of(self, Pin pin):
        cdef list views = []
        # To make an object may run the garbage collector, and so other code. The view counted here keeps the pin from a
        # release meanwhile.
        self.has_view(pin)
        try:
            for place, length in pin.pieces:
                views.append(memoryview(memory_at(self, pin, place, length)))
        finally:
            self.lost_view(pin)
        return views

    cdef Pin take(self, Stream s):
        cdef const direct_memory *m = &self.memory.memory
        cdef const char *end = s.line + s.line_length
        cdef const char *p = s.line + 5
        cdef uint64_t id = 0
        cdef uint64_t flags = 0
        cdef uint64_t item = 0
        cdef uint64_t left = 0
        cdef uint64_t place = 0
        cdef uint64_t size = 0
        cdef list pieces = []
        cdef Pin pin
        if s.line_length < 5 or memcmp(s.line, b"VIEW ", 5) != 0:
            return None
        p = number(p, end, 10, &id)
        p = number(behind(p, end, c' '), end, 10, &flags)
        p = number(behind(p, end, c' '), end, 16, &item)
        p = number(behind(p, end, c' '), end, 10, &left)
        while p != NULL and (p != end or not pieces):
            p = next_piece(m, p, end, &place, &size)
            # Only an empty value has an empty piece.
            if p == NULL or size > left or size == 0 and (left or pieces):
                return None
            left -= size
            pieces.append((place, size))
        if p == NULL or left or id > UINT32_MAX or flags > UINT32_MAX:
            return None
        pin = Pin.__new__(Pin)
        pin.id = <uint32_t>id
        pin.flags = <uint32_t>flags
        pin.item = item
        pin.pieces = pieces
        lock_state(&shared_state)
        try:
            self.places[item] = pin
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
    pins.places = {}
    return pins


@cython.no_gc
cdef class PinnedMemory:
    """The memory of a server's item, or of a piece of the item: the `obj` of a memoryview returned by
    `Client.get_view`.

    The memory is read-only. The server keeps the item as long as there is a view. Thread-safe.
    """

    def __init__(self):
        raise TypeError("Client.get_view makes it")

    def __dealloc__(self):
        # The server knows nothing of views in a forked child.
        if self.pins is not None and self.pins.generation == fork_count():
            self.pins.lost_view(self.pin)

    def __repr__(self):
        return f"<rmemcached.client.PinnedMemory of {self.length} bytes{'' if self.pinned else ', not pinned'}>"

    def __getbuffer__(self, Py_buffer *out, int flags):
        PyBuffer_FillInfo(out, self, <void *>self.data, self.length, True, flags)

    @property
    def pinned(self):
        """Whether the server still keeps the item. Sends no request, so the value may change a moment after the loss of
        the connection.

        False: the connection is lost, or this is a forked child, and the parent has the connection. If the server still
        runs, it may put other data into this memory at any time; if the server has ended, the bytes stay unchanged.
        """
        cdef bint found
        if self.pins.generation != fork_count():
            return False
        lock_state(&shared_state)
        found = self.pins.stream.keeps_pins() and direct_is_alive(&self.pins.memory.memory)
        unlock_state(&shared_state)
        return found


cdef PinnedMemory memory_at(Pins pins, Pin pin, uint64_t place, uint64_t length):
    cdef PinnedMemory made = PinnedMemory.__new__(PinnedMemory)
    made.data = pins.memory.memory.base + place
    made.length = <Py_ssize_t>length
    made.pin = pin
    pins.has_view(pin)
    made.pins = pins
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
    """The place behind the mark at p; NULL: there is no such mark."""
    return p + 1 if p != NULL and p < end and p[0] == mark else NULL


cdef const char *next_piece(const direct_memory *m, const char *p, const char *end, uint64_t *place,
                            uint64_t *length) noexcept:
    """Reads " place:length" at p. Returns the end of this text. NULL: there is no such text, or the piece is not within
    the items' memory."""
    p = number(behind(p, end, c' '), end, 16, place)
    p = number(behind(p, end, c':'), end, 16, length)
    if p == NULL or place[0] < m.chunks.arena or place[0] > m.length or length[0] > m.length - place[0]:
        return NULL
    return p
