"""Views of a server's items where they lie (docs/direct-reads.md, section 5): what a Client has of them, and gives back.

All of it is done with the GIL, or the lock of _state.pxd. The server keeps a pinned item for the lane on which it was
asked for. So a lane stays open while there are views, whatever becomes of its Connection and of the Client.
"""

from libc.stdint cimport uint32_t

from rmemcached.client._direct cimport DirectMemory
from rmemcached.client._stream cimport Stream


cdef class Releases:
    """One for each Session."""
    cdef unsigned int waiting    # pins without views, of which the server has not been told


cdef class Pins

cdef class Pin:
    """An item that the server keeps. It goes with the last view of the item."""
    cdef Pins pins
    cdef uint32_t id


cdef class Pins:
    """Those of one lane."""
    cdef Stream stream           # closed when the last view goes, if the Connection has been
    cdef DirectMemory memory
    cdef Releases releases       # None: the Connection is closed, and nobody tells the server any more
    cdef unsigned int generation  # of the process that has made it
    cdef unsigned int live       # pins with views
    cdef uint32_t *gone          # pins without: gone[:gone_count], of which the server is to be told
    cdef unsigned int gone_count
    cdef unsigned int gone_room  # no fewer than there are pins, so that a view that goes needs no memory

    # Puts what the server is to be told before the request. It is taken for told.
    cdef int put(self, Stream s) except -1
    # The Connection is closed.
    cdef void leave(self) noexcept
    cdef void forget(self) noexcept
    cdef Pin add(self, uint32_t id)

# None: there can be none on such a stream.
cdef Pins new_pins(Stream s, Releases releases)


cdef class PinnedMemory:
    cdef Pin pin
    cdef const char *data
    cdef Py_ssize_t length

# What the line just read, the answer to rdma_view, lets one see: a list of memoryviews. None: it makes no sense.
cdef list take_view(Pins pins, Stream s, uint32_t *flags)
