"""The threads that wait for the device: the readers, and a thread for write buffers. No lock is held during a wait.

The readers are the thread of a ring (ring.pxd), or a pool of threads with a read each.
"""

cdef void io_init(flash *f) noexcept nogil
# Opens the ring if the configuration allows a ring. False: the ring is demanded, and the kernel refuses; the line in
# `why` has the reason.
cdef bint io_open(flash *f, char *why, size_t size) noexcept nogil
cdef void io_destroy(flash *f) noexcept nogil
# Starts the threads, when the store is there. False: the system refuses; io_stop ends the started ones.
cdef bint io_start(flash *f) noexcept nogil
# Ends the threads after the reads under way. Gives up queued reads, and write buffers.
cdef void io_stop(flash *f) noexcept nogil
# Reads so many bytes at this place of a file, or fewer at the file's end. Returns their number; -1: errno.
cdef ssize_t read_part(int fd, char *data, size_t length, uint64_t offset) noexcept nogil
# Writes a buffer. Returns 0 or an errno.
cdef int write_wbuf(flash *f, flash_wbuf *wbuf) noexcept nogil
# Tells on stderr of an error of a file, at most once in ten seconds.
cdef void complain(flash *f, const char *file, const char *what, int error) noexcept nogil
# Makes a condition variable whose timed waits end by CLOCK_MONOTONIC.
cdef void flash_cond_init(pthread_cond_t *cond) noexcept nogil
