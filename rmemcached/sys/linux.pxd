"""The Linux system calls of the event engine and the listener."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from posix.types cimport mode_t
from posix.uio cimport iovec


cdef extern from "<errno.h>" nogil:
    int errno
    enum:
        EAGAIN
        EINTR
        EMFILE
        ENFILE
        ENOMEM
        EADDRINUSE
        ECONNABORTED

cdef extern from "<string.h>" nogil:
    char *strerror(int errnum)
    const char *strsignal(int sig)

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLEXCLUSIVE
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void *ptr
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN
        POLLOUT
        POLLERR
        POLLHUP
        POLLNVAL
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long nfds, int timeout)

cdef extern from "<sys/eventfd.h>" nogil:
    enum:
        EFD_NONBLOCK
        EFD_CLOEXEC
    int eventfd(unsigned int initval, int flags)

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK
        TFD_CLOEXEC
    struct timespec:
        long tv_sec
        long tv_nsec
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clockid, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new_value, itimerspec *old_value)

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_MONOTONIC
        CLOCK_REALTIME
    int clock_gettime(int clockid, timespec *tp)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIGHUP
        SIGINT
        SIGTERM
        SIGUSR1
        SIG_BLOCK
        SIG_SETMASK
    int sigemptyset(sigset_t *set)
    int sigaddset(sigset_t *set, int signum)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *oldset)

cdef extern from "<sys/signalfd.h>" nogil:
    enum:
        SFD_NONBLOCK
        SFD_CLOEXEC
    struct signalfd_siginfo:
        uint32_t ssi_signo
    int signalfd(int fd, const sigset_t *mask, int flags)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        AF_UNIX
        AF_INET
        AF_INET6
        AF_UNSPEC
        SOCK_STREAM
        SOCK_NONBLOCK
        SOCK_CLOEXEC
        SOL_SOCKET
        SO_REUSEADDR
        SO_KEEPALIVE
        SO_PEERCRED
        SO_INCOMING_NAPI_ID
        MSG_NOSIGNAL
        MSG_DONTWAIT
    ctypedef unsigned int socklen_t
    struct sockaddr:
        uint16_t sa_family
    struct sockaddr_storage:
        uint16_t ss_family
    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    int listen(int fd, int backlog)
    int accept4(int fd, sockaddr *addr, socklen_t *addrlen, int flags)
    ssize_t recv(int fd, void *buf, size_t n, int flags)
    ssize_t recvfrom(int fd, void *buf, size_t n, int flags, sockaddr *addr, socklen_t *addrlen)
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    cdef struct ucred:
        uint32_t pid
        uint32_t uid
        uint32_t gid
    int getsockopt(int fd, int level, int optname, void *optval, socklen_t *optlen)
    int setsockopt(int fd, int level, int optname, const void *optval, socklen_t optlen)
    int getsockname(int fd, sockaddr *addr, socklen_t *addrlen)

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_TCP
        INET6_ADDRSTRLEN
    struct in_addr:
        uint32_t s_addr
    struct in6_addr:
        unsigned char s6_addr[16]
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        uint16_t sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id

cdef extern from "<arpa/inet.h>" nogil:
    uint16_t ntohs(uint16_t port)
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size)

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_NODELAY

cdef extern from "<sys/uio.h>" nogil:
    ssize_t readv(int fd, const iovec *iov, int iovcnt)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void *buf, size_t n)
    ssize_t write(int fd, const void *buf, size_t n)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_create(pthread_t *thread, void *attr, void *(*start)(void *) noexcept nogil, void *arg)
    int pthread_join(pthread_t thread, void **retval)
    int pthread_setname_np(pthread_t thread, const char *name)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t *cond, void *attr)
    int pthread_cond_destroy(pthread_cond_t *cond)
    int pthread_cond_signal(pthread_cond_t *cond)
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
