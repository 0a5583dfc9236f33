"""Memory that the server reaches by READ and WRITE: regions that calls borrow, and Buffers of the caller's.

A queue pair has a Pool. A call takes regions for the values that it sends and receives by copy, and gives them back
when the server has answered. So many Clients need no more memory than their calls at one time, and in a steady state
nothing is registered. What is unused has a limit for the process: the regions that were unused for longest go first.

A Buffer is memory of the caller's that is registered once. It keeps the protection domain of its server, also while
there is no connection. Its memory is there until it is closed or collected, which views and transfers prevent.

Everything here needs the GIL, or the lock of _state.pxd, which it takes. In a forked child nothing of the parent's is
used or freed. What the child's program sees is its own: a copy of a Buffer from the moment of the fork, and a region
that was lent, which nobody writes to again.
"""

from rmemcached.client._devices cimport server_domain
from rmemcached.client._forks cimport forked_memory
from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef enum:
    REGION_MIN = 1 << 20     # bytes of the smallest region of a pool
    UNUSED_MOST = 1 << 28    # bytes of regions that no call uses, of the process; the one that was used last stays
    REGIONS_MOST = 1 << 30   # bytes of all regions, of the process; what would go beyond travels in messages

cdef struct region:
    ibv_mr *mr               # of all of it
    char *data
    size_t size
    bint mapped              # the memory is this module's, not the provider's
    void *pool               # a Pool, which outlives it; of an unused one, as the next four
    region *next             # of the pool
    region *prev
    region *newer            # of the process
    region *older


cdef class Pool:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef str transport
    cdef bint server_maps    # soft_shm: the server maps regions that soft_alloc_mr has made
    cdef server_domain *domain   # the queue pair's
    cdef region *unused

    # A region of at least so many bytes. NULL: there is no room for it, the device cannot have it, or the Pool is
    # closed. OSError.
    cdef region *take(self, size_t size) except? NULL
    cdef void give(self, region *one) noexcept
    # Frees the unused ones. Those that are given back later are freed at once.
    cdef void close(self) noexcept
    cdef bint closed

    cdef region *find(self, size_t size) noexcept
    cdef region *make(self, size_t size) except? NULL
    cdef void keep(self, region *one) noexcept
    cdef bint go_without(self, size_t length, int error) except -1


cdef class Loan:
    """A region of a Pool that a value is in, which its reader sees."""
    cdef Pool pool
    cdef region *lent
    cdef size_t length
    cdef server_domain *domain   # keeps the region's registration valid
    cdef unsigned int generation
    cdef unsigned int children   # how many forks the process had made


cdef class Buffer:
    cdef server_domain *domain   # NULL: no server reaches it
    cdef region memory
    cdef forked_memory shared    # what a server maps
    cdef bint open
    cdef bint readonly
    cdef object owner            # a memoryview of the caller's memory; None: it has memory of its own
    cdef str made                # where
    cdef Py_ssize_t views
    cdef Py_ssize_t transfers    # requests that name it
    cdef bint lost               # a server that did not answer may still write to it
    cdef unsigned int generation
    cdef void *next              # of those of the process
    cdef void *prev
    cdef object weak             # a weak reference to it
    cdef object __weakref__

    cdef int release(self) noexcept
    # What a server has mapped of it reaches it no more, but for a copy that is under way.
    cdef void renew(self) noexcept

# Counts a registration of values' memory.
cdef void count_registration() noexcept
# A Buffer, which the queue pair's server reaches; None: no server does. ValueError, MemoryError, OSError.
cdef Buffer new_buffer(QueuePair queue, size_t size)
# The same of the caller's memory. A server on this host (soft_shm) does not reach it: such memory cannot be mapped.
cdef Buffer register_memory(QueuePair queue, object view)
# A read-only memoryview of the first bytes of a region that was taken from the Pool, which gets it back when nobody
# sees it any more.
cdef object lend_region(Pool pool, region *one, size_t length)
# The Buffer that this memory is a part of, or None. pd: of its server; NULL: of any.
cdef Buffer find_buffer(const ibv_pd *pd, const char *data, size_t length)
# The same, with one request more that names it, until unname_buffer.
cdef Buffer name_buffer(const ibv_pd *pd, const char *data, size_t length)
cdef void unname_buffer(Buffer named) noexcept
