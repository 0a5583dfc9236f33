"""The compactor thread: with too few free pages, copies the values of the emptiest page elsewhere, or of the oldest
page by the rules for drops. memcached: storage.c, storage_compact_thread.

A value is copied first, without a lock. Then, with the item lock, the header gets the new place if its page, version
and offset are still the copied value's.
"""

cdef bint compactor_start(flash *f) noexcept nogil
# Ends the thread; harmless if it was not started. f.stop_writing is set.
cdef void compactor_stop(flash *f) noexcept nogil
# Has the thread look at the pages soon.
cdef void compactor_wake(flash *f) noexcept nogil
