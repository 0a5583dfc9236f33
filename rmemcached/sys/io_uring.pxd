"""io_uring by system calls: reads and writes queued for the kernel, without a thread for each (io_uring(7)).

The structures are the kernel's interface (include/uapi/linux/io_uring.h), declared here because older systems lack the
header. The numbers of the calls are the same on all machines but alpha.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <unistd.h>
    #include <sys/syscall.h>
    #ifndef SYS_io_uring_setup
    #define SYS_io_uring_setup 425
    #define SYS_io_uring_enter 426
    #endif
    static inline int rmc_io_uring_setup(unsigned int entries, void *params)
    {
        return (int)syscall(SYS_io_uring_setup, entries, params);
    }
    static inline int rmc_io_uring_enter(int fd, unsigned int submit, unsigned int least, unsigned int flags)
    {
        return (int)syscall(SYS_io_uring_enter, fd, submit, least, flags, (void *)0, 0);
    }
    """
    # Makes a ring for `entries` requests at a time, and fills the params in. Returns its descriptor, or -1 and errno.
    int io_uring_setup "rmc_io_uring_setup"(unsigned int entries, io_uring_params *params) nogil
    # Submits queued requests, and waits for completions. Returns the number of submitted requests, or -1 and errno.
    int io_uring_enter "rmc_io_uring_enter"(int fd, unsigned int submit, unsigned int least, unsigned int flags) nogil

cdef enum:
    IORING_OP_READV = 1
    IORING_ENTER_GETEVENTS = 1
    IORING_FEAT_SINGLE_MMAP = 1  # both queues in one mapping
    IORING_FEAT_NODROP = 2       # the kernel keeps completions beyond the queue's size
    IORING_FEAT_SUBMIT_STABLE = 4
    IORING_OFF_SQ_RING = 0
    IORING_OFF_SQES = 0x10000000

cdef struct io_sqring_offsets:
    uint32_t head
    uint32_t tail
    uint32_t ring_mask
    uint32_t ring_entries
    uint32_t flags
    uint32_t dropped
    uint32_t array
    uint32_t resv1
    uint64_t user_addr

cdef struct io_cqring_offsets:
    uint32_t head
    uint32_t tail
    uint32_t ring_mask
    uint32_t ring_entries
    uint32_t overflow
    uint32_t cqes
    uint32_t flags
    uint32_t resv1
    uint64_t user_addr

cdef struct io_uring_params:
    uint32_t sq_entries
    uint32_t cq_entries
    uint32_t flags
    uint32_t sq_thread_cpu
    uint32_t sq_thread_idle
    uint32_t features
    uint32_t wq_fd
    uint32_t resv[3]
    io_sqring_offsets sq_off
    io_cqring_offsets cq_off

cdef struct io_uring_sqe:        # a request
    uint8_t opcode
    uint8_t flags
    uint16_t ioprio
    int32_t fd
    uint64_t off
    uint64_t addr
    uint32_t len
    uint32_t rw_flags
    uint64_t user_data
    uint64_t pad[3]

cdef struct io_uring_cqe:        # its result
    uint64_t user_data
    int32_t res
    uint32_t flags
