"""The writer thread: takes the items that eviction would take next, and puts headers in their place. memcached:
storage.c, storage_write_thread.

Items go when memory is scarce, or when they have not been used for item_age seconds. The largest items go first,
because their headers save the most memory.
"""

# Starts the thread. False: the system refuses.
cdef bint writer_start(flash *f) noexcept nogil
# Ends the thread; harmless if it was not started. f.stop_writing is set.
cdef void writer_stop(flash *f) noexcept nogil
