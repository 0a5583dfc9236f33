"""The reader by io_uring: a thread with many reads under way at a time, in place of a pool (io.pxd).

The thread sleeps in io_uring_enter, for completions. A read of an eventfd is always under way, too: io_submit wakes the
thread by the eventfd.
"""

cdef struct ring_slot:           # a read under way
    flash_request *request
    ring_slot *next              # in the list of free slots
    iovec iov[RECORD_IOV]

cdef struct flash_ring:          # the thread's, except the constants fd and wake_fd
    int fd                       # -1: the threads of the pool read
    int wake_fd
    char *queues                 # both, mapped
    size_t queues_size
    io_uring_sqe *sqes           # mapped
    io_uring_params params
    ring_slot *slots
    ring_slot *free_slots
    unsigned int unsubmitted
    unsigned int under_way
    uint64_t woken               # the eventfd's count, as read
    iovec woken_iov

cdef void ring_init(flash_ring *r) noexcept nogil
# Makes the ring. Returns 0, or an errno: the kernel, or its administrator, refuses.
cdef int ring_open(flash_ring *r) noexcept nogil
cdef void ring_close(flash_ring *r) noexcept nogil
# The thread, ended by stop_io.
cdef void *ring_thread(void *arg) noexcept nogil
