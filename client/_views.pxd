"""Views of a server's items where they lie (docs/direct-reads.md, section 5): what a Client has of them, gives back.

All of it is done with the GIL, or the lock of _state.pxd. The server keeps a pinned item for the lane on which it was
asked for. So a lane stays open while there are views, whatever becomes of its Connection and of the Client.

A pin that has lost its views is told to the server with the next request, or soon. Until then it can have new ones, of
which the server need not know.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.client._direct cimport DirectMemory
from rmemcached.client._stream cimport Stream


cdef class Releases:
    """One for each Session."""
    cdef unsigned int waiting    # pins without views, of which the server has not been told,
    cdef int64_t since           # ... and coarse_ms() when the first of them lost its views

    # Whether the server is to be told without a request.
    cdef bint due(self) noexcept


cdef class Pin:
    """An item that the server keeps."""
    cdef uint32_t id
    cdef uint32_t flags          # the client's
    cdef uint64_t item           # its place
    cdef list pieces             # (place, length) of each
    cdef unsigned int views      # PinnedMemory objects
    cdef bint listed             # in the list of those that have lost their views
    cdef Pin following           # in that list


cdef class Pins:
    """Those of one lane."""
    cdef Stream stream           # closed when the last view goes, if the Connection has been
    cdef DirectMemory memory
    cdef Releases releases       # None: the Connection is closed, and nobody tells the server any more
    cdef unsigned int generation  # of the process that has made it
    cdef unsigned int live       # pins with views
    cdef dict places             # of the pins' items
    cdef Pin first               # those that have lost their views. Some may have new ones
    cdef unsigned int gone       # how many of the list have none

    # Puts what the server is to be told before the request. It is taken for told.
    cdef int put(self, Stream s) except -1
    # The Connection is closed.
    cdef void leave(self) noexcept
    cdef void forget(self) noexcept
    # The pin of the item at a place. None: there is none, or it is lost.
    cdef Pin find(self, uint64_t place)
    # What the line just read, the answer to rdma_view, lets one see. None: it makes no sense.
    cdef Pin take(self, Stream s)
    # A list of memoryviews.
    cdef list views_of(self, Pin pin)
    cdef void has_view(self, Pin pin) noexcept
    cdef void lost_view(self, Pin pin) noexcept

# None: there can be none on such a stream.
cdef Pins new_pins(Stream s, Releases releases)


cdef class PinnedMemory:
    cdef Pins pins
    cdef Pin pin
    cdef const char *data
    cdef Py_ssize_t length
