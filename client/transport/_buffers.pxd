"""Memory that the server reaches by READ and WRITE: regions borrowed by calls, and the caller's Buffers.

A queue pair has a Pool. A call takes regions for values sent and received by copy, and gives them back after the
server's answer. So many Clients need no more memory than their concurrent calls, and in a steady state nothing is
registered. Unused memory has a limit for the process: the regions unused for longest go first.

A Buffer is memory of the caller's, registered once. It keeps the protection domain of its server, also without a
connection. Its memory exists until the Buffer is closed or collected. Views and transfers prevent both.

Everything here needs the GIL, or the lock of _state.pxd, which the functions take. In a forked child nothing of the
parent's is used or freed. The child's program has a copy of each Buffer from the moment of the fork, and the lent
regions, which nobody writes to again.
"""

from rmemcached.client.transport._devices cimport server_domain
from rmemcached.client.transport._forks cimport forked_memory
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef enum:
    REGION_MIN = 1 << 20     # bytes of the smallest region of a pool
    UNUSED_MOST = 1 << 28    # bytes of the process's unused regions; the region used last stays anyway
    REGIONS_MOST = 1 << 30   # bytes of all regions of the process; values beyond travel in messages

cdef struct region:
    ibv_mr *mr               # for the whole region
    char *data
    size_t size
    bint mapped              # this module has made the memory by mmap; False: soft_alloc_mr, or the caller
    void *pool               # a Pool, which outlives the region
    # Fields of an unused region:
    region *next             # in the list of the pool
    region *prev
    region *newer            # in the list of the process
    region *older


cdef class Pool:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef str transport
    cdef bint server_maps    # a near server maps regions made by soft_alloc_mr
    cdef server_domain *domain   # the queue pair's
    cdef region *unused

    # Takes an unused region of at least `size` bytes, or makes a region, and may free older ones for it. Called by
    # Source and Sink (_memory.pyx). NULL: there is no room, too little memory may be locked, or the Pool is closed.
    # Raises OSError, MemoryError.
    cdef region *take(self, size_t size) except? NULL
    # Gives a region back, by Source, Sink and Loan. The oldest unused regions of the process may be freed.
    cdef void give(self, region *one) noexcept
    # Frees the unused regions. Afterwards `give` frees a region at once, and `take` returns NULL. RdmaStream closes the
    # Pool when the queue pair's last lane ends, or earlier: when the queue pair has failed and a near server may still
    # use its mappings.
    cdef void close(self) noexcept
    cdef bint closed

    # The steps of `take` and `give`.
    cdef region *find(self, size_t size) noexcept
    cdef region *make(self, size_t size) except? NULL
    cdef void keep(self, region *one) noexcept
    # Called after a registration has failed with this errno value, here and in _memory.pyx. Logs a shortage of lockable
    # memory once, and returns False: values travel in messages. Raises OSError for another problem.
    cdef bint go_without(self, size_t length, int error) except -1


cdef class Loan:
    """A region of a Pool with a value, lent to a reader."""
    cdef Pool pool
    cdef region *lent
    cdef size_t length
    cdef server_domain *domain   # keeps the region's registration valid
    cdef unsigned int generation
    cdef unsigned int children   # how many forks the process had made


cdef class Buffer:
    cdef server_domain *domain   # NULL: no server reaches the Buffer
    cdef region memory
    cdef forked_memory shared    # the shared mapping for a server
    cdef bint open
    cdef bint readonly
    cdef object owner            # a memoryview of the caller's memory; None: the Buffer's own memory
    cdef str made                # file and line of the call that made the Buffer
    cdef Py_ssize_t views
    cdef Py_ssize_t transfers    # requests that name the Buffer
    cdef bint lost               # a server that did not answer may still write there
    cdef unsigned int generation
    cdef void *next              # in the list of the process
    cdef void *prev
    cdef object weak             # a weak reference to this Buffer
    cdef object __weakref__

    # Frees or gives back the memory, for `close` and the collector. Does nothing in a forked child of the maker.
    cdef int release(self) noexcept
    # Makes the server's present mapping of the memory invalid, after a request without an answer. A copy under way may
    # still reach the Buffer. Does nothing for memory that no server maps.
    cdef void renew(self) noexcept

# Counts a registration of values' memory, for usage(). Called by all who register such memory.
cdef void count_registration() noexcept
# Client.buffer: a new Buffer of `size` bytes for the queue pair's server. queue: None for a Buffer that no server
# reaches. Raises ValueError, MemoryError, OSError.
cdef Buffer new_buffer(QueuePair queue, size_t size)
# Client.register: a Buffer of the memory of a memoryview. A server on this host (soft_shm) does not reach the Buffer,
# because it cannot map such memory. Raises BufferError, ValueError, OSError.
cdef Buffer register_memory(QueuePair queue, object view)
# A read-only memoryview of the first bytes of a region taken from the Pool, for Sink.lend. The Pool gets the region
# back after the last view.
cdef object lend_region(Pool pool, region *one, size_t length)
# The registered Buffer with all of this memory, or None. pd: the protection domain of the Buffer's server; NULL: of any
# server.
cdef Buffer find_buffer(const ibv_pd *pd, const char *data, size_t length)
# Finds a Buffer as find_buffer does, for a request that names the memory. The Buffer cannot be closed until
# unname_buffer.
cdef Buffer name_buffer(const ibv_pd *pd, const char *data, size_t length)
# Ends a name_buffer: no request needs the memory any more.
cdef void unname_buffer(Buffer named) noexcept
