"""Views of a server's items in place (docs/direct-reads.md, section 5): a Client's pinned items, and their release.

Everything here is done with the GIL, or the lock of _state.pxd. The server keeps a pinned item for the lane of the
request. So a lane stays open while there are views, whatever becomes of its Connection and of the Client.

The server hears of a pin without views with the next request, or after a short time. Until then the pin can have new
views, without the server's knowledge.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._stream cimport Stream


cdef class Releases:
    """Counts a Session's pins without views, of which the server has not been told."""
    cdef unsigned int waiting    # pins without views, not yet told to the server,
    cdef int64_t since           # ... and coarse_ms() when the first of them lost its views

    # Whether the server is to be told without a request.
    cdef bint due(self) noexcept


cdef class Pin:
    """An item kept by the server."""
    cdef uint32_t id
    cdef uint32_t flags          # the item's
    cdef uint64_t item           # the item's place in the server's memory
    cdef list pieces             # (place, length) of each piece of the value
    cdef unsigned int views      # PinnedMemory objects
    cdef bint listed             # in the list of pins that have lost their views
    cdef Pin following           # the next pin of this list


cdef class Pins:
    """The pins of a lane."""
    cdef Stream stream           # closed with the last view, if the Connection is closed before
    cdef DirectMemory memory
    cdef Releases releases       # None: the Connection is closed, and nobody tells the server any more
    cdef unsigned int generation  # fork_count() at its creation
    cdef unsigned int live       # pins with views
    cdef dict places             # the place of an item -> its Pin
    cdef Pin first               # the list of pins that have lost their views. Some may have new views
    cdef unsigned int gone       # how many pins of the list have no views

    # Puts the commands rdma_release for the pins without views into the output: for the Session, before a request or
    # alone. The server does not answer them. These pins then count as told.
    cdef int put(self, Stream s) except -1
    # Called when the Connection is closed: takes the pins off the count. Nobody tells the server any more.
    cdef void leave(self) noexcept
    # Takes the pins told to the server off the count of the Releases.
    cdef void forget(self) noexcept
    # The pin of the item at a place. None: there is none, or the connection is lost.
    cdef Pin find(self, uint64_t place)
    # Makes the pin for the line just read, the answer to rdma_view, and notes the pin in `places`. None: the line is
    # malformed.
    cdef Pin take(self, Stream s)
    # New memoryviews of the item's pieces.
    cdef list views_of(self, Pin pin)
    # Called by memory_at and views_of: counts a new view of the pin.
    cdef void has_view(self, Pin pin) noexcept
    # Called by views_of, and when a PinnedMemory is freed: the pin has lost a view. After its last view the server is
    # to be told.
    cdef void lost_view(self, Pin pin) noexcept

# Makes a stream's Pins, still empty. None: the stream's server does not share its memory.
cdef Pins new_pins(Stream s, Releases releases)


cdef class PinnedMemory:
    cdef Pins pins
    cdef Pin pin
    cdef const char *data
    cdef Py_ssize_t length
