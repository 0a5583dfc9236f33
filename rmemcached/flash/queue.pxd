"""Requests for reads: their queue, and the bound of their memory.

Reads begin in the order of their submission. A queued read has no memory for its value yet: memory is taken when the
read begins, and only so much of it at a time (io_queue.most). So neither slow devices nor many requests fill the store
with values that are under way. A read past the bound waits, and is no miss: reads under way end by themselves, while a
client takes a miss for the absence of a value that is there.
"""

cdef struct flash_request
cdef struct flash_request_calls:  # in a reader's thread
    # Takes the memory for the value. False: no read is needed, or possible.
    bint (*begin)(flash_request *r) noexcept nogil
    # The memory for the bytes missing, in up to `most` extents. Returns their number.
    int (*extents)(flash_request *r, iovec *iov, int most) noexcept nogil
    # The last call, also for a request given up before its beginning: hands the result over.
    void (*end)(flash_request *r) noexcept nogil

cdef struct flash_request:       # a read; in its owner's structure
    const flash_request_calls *calls  # constant, as are bytes and fd
    uint64_t bytes               # of memory, for the bound
    int fd
    uint64_t place               # in the file: of the next byte
    uint64_t left                # bytes missing
    flash_request *next

cdef struct io_queue:            # guarded by lock
    pthread_mutex_t lock
    pthread_cond_t cond          # of the pool
    bint asleep                  # the ring's thread is, or will be, and waits for its eventfd
    flash_request *head
    flash_request **tail
    uint64_t depth               # requests not taken by a thread yet
    uint64_t bytes               # of requests under way
    uint64_t most                # ... at most; constant after the start

# The store is there.
cdef void queue_init(flash *f) noexcept nogil
# Any thread: has the request read. All fields but `next` are set.
cdef void io_submit(flash *f, flash_request *r) noexcept nogil
# For readers: takes up to `most` requests within the bound, in a list. done: bytes of the thread's requests that have
# ended. waits: for a request. NULL: there is none, or the threads are to stop.
cdef flash_request *io_take(flash *f, uint64_t done, unsigned int most, bint waits) noexcept nogil
# Notes n bytes read, or a negative errno. False: the device has failed, or the file is too short.
cdef bint request_got(flash_request *r, int64_t n) noexcept nogil
# Gives up the queued requests, when the readers have ended.
cdef void io_give_up(flash *f) noexcept nogil
cdef uint64_t io_queued(flash *f) noexcept nogil
