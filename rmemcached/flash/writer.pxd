"""The writer thread: takes the next items of eviction, and puts headers in their place. memcached:
storage.c, storage_write_thread.

Items go when memory is scarce, or after item_age seconds without a use. The largest items go first, because their
headers save the most memory.
"""

# external_storage.take: for an allocation that finds no memory before the thread has made room.
cdef bint victim_take(void *arg, const victim *v) noexcept nogil
# external_storage.scarce: wakes the thread. After a pause the thread sleeps for as long as ext_max_sleep.
cdef void writer_wake(void *arg) noexcept nogil
# Starts the thread. False: the system refuses.
cdef bint writer_start(flash *f) noexcept nogil
# Ends the thread; harmless if it was not started. f.stop_writing is set.
cdef void writer_stop(flash *f) noexcept nogil
