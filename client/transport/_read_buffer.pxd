"""RDMA READs of a server's memory: their buffer, their posts, and the wait for them.

RemoteMemory (api/_reads.pyx) is a ReadBuffer. The owner of a lane posts READs and awaits them. Meanwhile nobody else
posts READs on the queue pair.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._rdma cimport RdmaStream
from rmemcached.verbs.verbs cimport ibv_mr, verbs_provider

cdef enum:
    READ_BUFFER = 256 * 1024     # bytes
    READS_COMPLETE = 2           # a result of reap_reads


cdef class ReadBuffer:
    cdef char *buffer            # filled by READs, registered with the queue pair's domain; NULL: not yet
    cdef ibv_mr *mr
    cdef const verbs_provider *provider
    cdef int pid

    # Makes the buffer, unless there is one. MemoryError, OSError.
    cdef int open(self, QueuePair queue) except -1
    # Posts a READ into the buffer at the offset `at`. The caller holds the queue pair's lock, and has called `open`.
    # False: READS are under way already, or the queue pair has failed.
    cdef bint post(self, RdmaStream s, uint64_t address, uint32_t key, size_t length, size_t at) noexcept nogil

# Reaps as QueuePair.reap does. Returns READS_COMPLETE in place of 1 when no READ of the lane is under way any more.
cdef int reap_reads(RdmaStream s) noexcept nogil
# Waits until all READs have completed. 1; 0: the connection has ended; a negative errno. After -EINTR the caller calls
# again, with the same deadline, which is 0 at first.
cdef int await_reads(RdmaStream s, int64_t *deadline) noexcept nogil
