"""The threads that wait for the device: a pool for reads, in the order of their submission, and a thread for write
buffers. Both call functions of the parts below and hold no lock while they wait.
"""

cdef struct flash_request:       # a read; first member of its owner's structure
    flash_request *next
    # Reads, and hands the result over. In a thread of the pool.
    void (*run)(flash_request *r) noexcept nogil

cdef struct io_queue:            # guarded by lock
    pthread_mutex_t lock
    pthread_cond_t cond
    flash_request *head
    flash_request **tail
    uint64_t depth               # requests not taken by a thread yet

cdef void io_init(flash *f) noexcept nogil
cdef void io_destroy(flash *f) noexcept nogil
# Starts the threads. False: the system refuses; io_stop ends the started ones.
cdef bint io_start(flash *f) noexcept nogil
# Ends the threads when all requests are done.
cdef void io_stop(flash *f) noexcept nogil
# Any thread: has a thread of the pool run the request.
cdef void io_submit(flash *f, flash_request *r) noexcept nogil
cdef uint64_t io_queued(flash *f) noexcept nogil
# Reads all bytes of the extents at this place of a file, which it changes. False: an error, or the file is too short.
cdef bint read_all(int fd, iovec *iov, int count, uint64_t offset) noexcept nogil
# Writes a buffer. Returns 0 or an errno.
cdef int write_wbuf(flash *f, flash_wbuf *wbuf) noexcept nogil
# Tells on stderr of an error of a file, at most once in ten seconds.
cdef void complain(flash *f, const char *file, const char *what, int error) noexcept nogil
# Makes a condition variable whose timed waits end by CLOCK_MONOTONIC.
cdef void flash_cond_init(pthread_cond_t *cond) noexcept nogil
