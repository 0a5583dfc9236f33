"""The system calls of the client."""

from libc.stddef cimport size_t
from posix.types cimport suseconds_t, time_t
from posix.uio cimport iovec

cdef extern from "<sys/types.h>" nogil:
    ctypedef long ssize_t

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SHUT_RDWR
        SOL_SOCKET
        SO_RCVTIMEO
        SO_SNDTIMEO

    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags

    ssize_t recv(int fd, void *buf, size_t length, int flags)
    ssize_t send(int fd, const void *buf, size_t length, int flags)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
    int shutdown(int fd, int how)

cdef extern from "<sys/time.h>" nogil:
    struct timeval:
        time_t tv_sec
        suseconds_t tv_usec

cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN
        POLLOUT

    struct pollfd:
        int fd
        short events
        short revents

    int poll(pollfd *fds, unsigned long count, int timeout)

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef extern from "<unistd.h>" nogil:
    int close_fd "close"(int fd)

cdef extern from "<string.h>" nogil:
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)

cdef extern from "<fcntl.h>" nogil:
    """
    static int rmc_set_nonblocking(int fd)
    {
        int flags = fcntl(fd, F_GETFL);
        return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    }
    """
    int set_nonblocking "rmc_set_nonblocking"(int fd)
