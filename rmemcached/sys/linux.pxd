"""The declarations of the C library and of Linux used by the project and missing in Cython's ``libc`` and ``posix``.

A system header is declared here and nowhere else: two declarations of a header drift apart. The sections are errors,
text and memory; files; time and resources; events; sockets; threads.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.types cimport mode_t
from posix.uio cimport iovec


# ---- errors, text, memory --------------------------------------------------------------------------------------------

cdef extern from "<errno.h>" nogil:
    """
    #include <errno.h>
    static inline void rmc_set_errno(int value)
    {
        errno = value;
    }
    """
    int errno
    void set_errno "rmc_set_errno"(int value)
    enum:
        EAGAIN
        EINTR
        EMFILE
        ENFILE
        ENOMEM
        EPROTO
        EADDRINUSE
        ECONNABORTED

cdef enum:
    HUGE_PAGE = 2 * 1024 * 1024  # bytes of a transparent huge page, where a page has 4 KB

cdef extern from "<string.h>" nogil:
    char *strerror(int errnum)
    const char *strsignal(int sig)
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *out, size_t size, const char *format, ...)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)
    void qsort(void *base, size_t n, size_t size, int (*compare)(const void *, const void *) noexcept nogil)

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t value)
    uint16_t be16toh(uint16_t value)
    uint32_t htobe32(uint32_t value)
    uint32_t be32toh(uint32_t value)
    uint32_t htole32(uint32_t value)
    uint32_t le32toh(uint32_t value)
    uint64_t htobe64(uint64_t value)
    uint64_t be64toh(uint64_t value)

cdef extern from "<sys/random.h>" nogil:
    ssize_t getrandom(void *out, size_t length, unsigned int flags)

cdef extern from "<sys/mman.h>" nogil:
    """
    #include <errno.h>
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    /* Since Linux 5.14 the kernel makes pages on request, and reports an error where a touch would be fatal. qemu-user
       reports success for every advice and does nothing. So the function first tries an unknown advice, -1: if it
       succeeds, the result is EINVAL, as from an older kernel. */
    static inline int rmc_ask_for_pages(void *memory, size_t length, int advice)
    {
        if (madvise(memory, length, -1) != 0)
            return madvise(memory, length, advice);
        errno = EINVAL;
        return -1;
    }
    static inline int rmc_populate(char *memory, size_t length)
    {
        if (rmc_ask_for_pages(memory, length, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno != EINVAL)
            return -1;
        for (size_t i = 0; i < length; i += 4096)
            ((volatile char *)memory)[i] = 0;
        return 0;
    }
    #ifndef MADV_COLLAPSE
    #define MADV_COLLAPSE 25
    #endif
    static inline int rmc_populate_write(char *memory, size_t length)
    {
        return rmc_ask_for_pages(memory, length, MADV_POPULATE_WRITE);
    }
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22
    #endif
    static inline int rmc_populate_read(const char *memory, size_t length)
    {
        if (rmc_ask_for_pages((void *)memory, length, MADV_POPULATE_READ) == 0)
            return 0;
        if (errno != EINVAL)
            return -1;
        for (size_t i = 0; i < length; i += 4096)
            (void)((const volatile char *)memory)[i];
        return 0;
    }
    /* cachestat, since Linux 6.5. Its number is the same on all machines but alpha. */
    #include <stdint.h>
    #include <unistd.h>
    #include <sys/syscall.h>
    #ifndef SYS_cachestat
    #define SYS_cachestat 451
    #endif
    static inline int64_t rmc_cached_pages(int fd, uint64_t at, uint64_t length)
    {
        uint64_t range[2] = { at, length };
        uint64_t found[5]; /* the first counts cached pages */
        return syscall(SYS_cachestat, fd, range, found, 0) == 0 ? (int64_t)found[0] : -1;
    }
    """
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE
        MAP_SHARED
        MAP_PRIVATE
        MAP_FIXED
        MAP_FIXED_NOREPLACE
        MAP_ANONYMOUS
        MAP_NORESERVE
        MADV_HUGEPAGE
        MADV_NOHUGEPAGE
        MADV_COLLAPSE
        MADV_DONTNEED
        MADV_REMOVE
        MADV_DOFORK
        MADV_DONTFORK
        MADV_DONTDUMP
        MREMAP_FIXED
        MREMAP_MAYMOVE
        MFD_CLOEXEC
        MFD_ALLOW_SEALING
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int MS_SYNC
    int msync(void *addr, size_t length, int flags)
    void *mremap(void *addr, size_t length, size_t new_length, int flags, ...)
    int madvise(void *addr, size_t length, int advice)
    int mprotect(void *addr, size_t length, int prot)
    int memfd_create(const char *name, unsigned int flags)
    # Makes memory of zeros resident. Nobody may use the memory meanwhile: for an old kernel the function writes zeros.
    # -1: not enough memory.
    int populate "rmc_populate"(char *memory, size_t length)
    # Makes memory resident while others may write to it. -1: not enough memory, or the kernel is older than 5.14.
    int populate_write "rmc_populate_write"(char *memory, size_t length)
    # Makes memory resident without changing its content. -1: not enough memory.
    int populate_read "rmc_populate_read"(const char *memory, size_t length)
    int munlock(const void *addr, size_t length)
    int mincore(void *addr, size_t length, unsigned char *found)
    # The number of pages of a file's part that are in memory. -1: the kernel has no cachestat, or refuses this process.
    int64_t cached_pages "rmc_cached_pages"(int fd, uint64_t at, uint64_t length)


# ---- files -----------------------------------------------------------------------------------------------------------

cdef extern from "<fcntl.h>" nogil:
    """
    #include <fcntl.h>
    #include <stdio.h>
    #include <sys/stat.h>
    #ifndef F_SEAL_FUTURE_WRITE
    #define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
    #endif
    #include <unistd.h>
    static inline int rmc_read_only(int fd)
    {
        char path[40];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        fchmod(fd, 0400);
        int reader = open(path, O_RDONLY | O_CLOEXEC);
        if (reader < 0)
            return fd;
        close(fd);
        return reader;
    }
    static inline int rmc_lock_byte(int fd, long at)
    {
        struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
        return fcntl(fd, F_OFD_SETLK, &lock) == 0;
    }
    static inline int rmc_has_locked_byte(int fd, long start, long length)
    {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
        return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    }
    static inline int rmc_set_nonblocking(int fd)
    {
        int flags = fcntl(fd, F_GETFL);
        return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    }
    """
    enum:
        O_RDONLY
        O_RDWR
        O_CREAT
        O_EXCL
        O_NOFOLLOW
        O_NONBLOCK
        O_CLOEXEC
        F_GETFL
        F_SETFL
        F_ADD_SEALS
        F_GET_SEALS
        F_SEAL_SEAL
        F_SEAL_SHRINK
        F_SEAL_GROW
        F_SEAL_FUTURE_WRITE
    int open(const char *path, int flags, ...)
    int fcntl(int fd, int cmd, ...)
    int fallocate(int fd, int mode, long offset, long length)
    # Replaces a descriptor by a read-only descriptor of the same file, and closes the old descriptor. Nobody else can
    # open the file for writing then. Without /proc, returns the old descriptor.
    int read_only "rmc_read_only"(int fd)
    int set_nonblocking "rmc_set_nonblocking"(int fd)
    # Locks of an open file: the file's copies in other processes, and its mappings, keep the lock, even after this
    # process has ended. Locks a byte for reading; returns whether another open file has locked one of the bytes
    # [start, start + length).
    bint lock_byte "rmc_lock_byte"(int fd, long at)
    bint has_locked_byte "rmc_has_locked_byte"(int fd, long start, long length)

cdef extern from "<unistd.h>" nogil:
    enum:
        F_OK
    int access(const char *path, int mode)
    int close(int fd)
    int dup(int fd)
    int close_fd "close"(int fd)      # for classes with a method `close`
    int ftruncate(int fd, long length)
    ssize_t read(int fd, void *buf, size_t n)
    ssize_t write(int fd, const void *buf, size_t n)

cdef extern from "<sys/file.h>" nogil:
    enum:
        LOCK_EX
        LOCK_NB
    int flock(int fd, int operation)

cdef extern from "<sys/uio.h>" nogil:
    ssize_t readv(int fd, const iovec *iov, int iovcnt)

cdef extern from "<sys/vfs.h>" nogil:
    ctypedef struct struct_statfs "struct statfs":
        long f_type
        long f_bsize
        uint64_t f_blocks
        uint64_t f_bavail
    int fstatfs(int fd, struct_statfs *out)

cdef extern from "<linux/magic.h>" nogil:
    enum:
        TMPFS_MAGIC

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL
    void *dlopen(const char *file, int mode)
    void *dlsym(void *library, const char *name)
    int dlclose(void *library)


# ---- time and resources ----------------------------------------------------------------------------------------------

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    enum:
        CLOCK_MONOTONIC
        CLOCK_MONOTONIC_COARSE
        CLOCK_REALTIME
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec *duration, timespec *left)
    int clock_gettime(int clockid, timespec *tp)
    time_t c_time "time"(time_t *out)

cdef extern from "<sys/time.h>" nogil:
    struct timeval:
        long tv_sec
        long tv_usec

cdef extern from "<sys/resource.h>" nogil:
    enum:
        RLIMIT_AS
        RLIMIT_MEMLOCK
        RLIMIT_NOFILE
        RUSAGE_SELF
    ctypedef unsigned long rlim_t
    rlim_t RLIM_INFINITY
    struct rlimit:
        rlim_t rlim_cur
        rlim_t rlim_max
    struct rusage:
        timeval ru_utime
        timeval ru_stime
    enum:
        PRIO_PROCESS
    int setpriority(int which, unsigned int who, int nice)
    int getrlimit(int resource, rlimit *limits)
    int getrusage(int who, rusage *usage)

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK
        TFD_CLOEXEC
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clockid, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new_value, itimerspec *old_value)


# ---- events ----------------------------------------------------------------------------------------------------------

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLET
        EPOLLEXCLUSIVE
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void *ptr
        uint32_t u32
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
        POLLRDHUP
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

cdef inline void eventfd_signal(int fd) noexcept nogil:
    """Makes an eventfd readable."""
    cdef uint64_t one = 1
    while write(fd, &one, sizeof(one)) < 0 and errno == EINTR:
        pass

cdef extern from *:
    """
    #include <errno.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    static inline int rmc_futex_wait(uint32_t *word, uint32_t seen, int64_t deadline) {
        struct timespec until = {deadline / 1000000000, deadline % 1000000000};
        return syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen, deadline ? &until : 0, 0,
                       FUTEX_BITSET_MATCH_ANY) == 0 ? 0 : errno;
    }
    static inline void rmc_futex_wake(uint32_t *word, int threads) {
        syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, threads, 0, 0, 0);
    }
    """
    # Sleeps while *word is `seen`. deadline: CLOCK_MONOTONIC nanoseconds, or 0 for none. Returns 0 after a wake-up, or
    # an errno value: EAGAIN (*word is different), EINTR, ETIMEDOUT.
    int futex_wait "rmc_futex_wait"(uint32_t *word, uint32_t seen, int64_t deadline) nogil
    # Wakes up to `threads` threads that sleep on this word.
    void futex_wake "rmc_futex_wake"(uint32_t *word, int threads) nogil

cdef inline void eventfd_clear(int fd) noexcept nogil:
    """Takes the signals of an eventfd. With a blocking eventfd, waits for a signal."""
    cdef uint64_t count
    while read(fd, &count, sizeof(count)) < 0 and errno == EINTR:
        pass

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIGBUS
        SIGFPE
        SIGHUP
        SIGILL
        SIGINT
        SIGSEGV
        SIGTERM
        SIGUSR1
        SIG_BLOCK
        SIG_SETMASK
    int kill(int pid, int sig)
    int sigemptyset(sigset_t *set)
    int sigfillset(sigset_t *set)
    int sigaddset(sigset_t *set, int signum)
    int sigdelset(sigset_t *set, int signum)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *oldset)

cdef extern from "<sys/signalfd.h>" nogil:
    enum:
        SFD_NONBLOCK
        SFD_CLOEXEC
    struct signalfd_siginfo:
        uint32_t ssi_signo
    int signalfd(int fd, const sigset_t *mask, int flags)


# ---- sockets ---------------------------------------------------------------------------------------------------------

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
        SO_DOMAIN
        SO_TYPE
        SO_REUSEADDR
        SO_KEEPALIVE
        SO_RCVTIMEO
        SO_SNDTIMEO
        SO_PEERCRED
        SO_INCOMING_CPU
        SO_INCOMING_NAPI_ID
        SCM_RIGHTS
        SHUT_WR
        SHUT_RDWR
        MSG_NOSIGNAL
        MSG_DONTWAIT
        MSG_TRUNC
        MSG_CTRUNC
        MSG_MORE
        MSG_PEEK
        MSG_CMSG_CLOEXEC
    ctypedef unsigned int socklen_t
    struct sockaddr:
        uint16_t sa_family
    struct sockaddr_storage:
        uint16_t ss_family
    struct ucred:
        uint32_t pid
        uint32_t uid
        uint32_t gid
    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    size_t CMSG_SPACE(size_t length)
    size_t CMSG_LEN(size_t length)
    cmsghdr *CMSG_FIRSTHDR(msghdr *message)
    cmsghdr *CMSG_NXTHDR(msghdr *message, cmsghdr *header)
    uint8_t *CMSG_DATA(cmsghdr *header)
    int listen(int fd, int backlog)
    int accept4(int fd, sockaddr *addr, socklen_t *addrlen, int flags)
    int shutdown(int fd, int how)
    ssize_t recv(int fd, void *buf, size_t n, int flags)
    ssize_t recvfrom(int fd, void *buf, size_t n, int flags, sockaddr *addr, socklen_t *addrlen)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int getsockname(int fd, sockaddr *addr, socklen_t *addrlen)
    int getpeername(int fd, sockaddr *addr, socklen_t *addrlen)
    int getsockopt(int fd, int level, int optname, void *optval, socklen_t *optlen)
    int setsockopt(int fd, int level, int optname, const void *optval, socklen_t optlen)

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<linux/sockios.h>" nogil:
    enum:
        SIOCOUTQ                 # bytes of a socket's send queue not acknowledged by the peer

cdef extern from "<sys/un.h>" nogil:
    struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_TCP
        INET6_ADDRSTRLEN
    struct in_addr:
        uint32_t s_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        uint16_t sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id

cdef extern from "<arpa/inet.h>" nogil:
    uint16_t htons(uint16_t port)
    uint16_t ntohs(uint16_t port)
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size)

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_CONGESTION
        TCP_MAXSEG
        TCP_NODELAY


# ---- threads ---------------------------------------------------------------------------------------------------------

cdef extern from "<sched.h>" nogil:
    int sched_yield()
    int sched_getcpu()

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *sem, int shared, unsigned int value)
    int sem_wait(sem_t *sem)
    int sem_post(sem_t *sem)

cdef extern from "<pthread.h>" nogil:
    """
    #include <pthread.h>
    static inline int rmc_lock_for_life(pthread_mutex_t *mutex)
    {
        pthread_mutexattr_t attr;
        if (pthread_mutexattr_init(&attr) != 0)
            return 0;
        int done = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0
            && pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) == 0
            && pthread_mutex_init(mutex, &attr) == 0 && pthread_mutex_lock(mutex) == 0;
        pthread_mutexattr_destroy(&attr);
        return done;
    }
    """
    ctypedef unsigned long pthread_t
    ctypedef unsigned int pthread_key_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_rwlock_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_create(pthread_t *thread, const void *attr, void *(*start)(void *) noexcept nogil, void *arg)
    int pthread_detach(pthread_t thread)
    int pthread_join(pthread_t thread, void **retval)
    int pthread_setname_np(pthread_t thread, const char *name)
    int pthread_key_create(pthread_key_t *key, void (*end)(void *) noexcept nogil)
    int pthread_setspecific(pthread_key_t key, const void *value)
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    # Makes a mutex in shared memory, held by the calling thread. If the thread ends without unlocking the mutex, the
    # kernel sets a bit in the mutex's word with the thread's id. False: the system refuses.
    bint lock_for_life "rmc_lock_for_life"(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_rwlock_init(pthread_rwlock_t *lock, const void *attr)
    int pthread_rwlock_destroy(pthread_rwlock_t *lock)
    int pthread_rwlock_rdlock(pthread_rwlock_t *lock)
    int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
    int pthread_rwlock_unlock(pthread_rwlock_t *lock)
    int pthread_condattr_init(pthread_condattr_t *attr)
    int pthread_condattr_setclock(pthread_condattr_t *attr, int clock)
    int pthread_condattr_destroy(pthread_condattr_t *attr)
    int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
    int pthread_cond_destroy(pthread_cond_t *cond)
    int pthread_cond_signal(pthread_cond_t *cond)
    int pthread_cond_broadcast(pthread_cond_t *cond)
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
    int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const timespec *until)

cdef inline int start_thread(pthread_t *thread, const char *name, void *(*start)(void *) noexcept nogil,
                             void *arg) noexcept nogil:
    """Starts a thread with a name, of up to 15 characters. Returns 0 or an errno value."""
    cdef int error = pthread_create(thread, NULL, start, arg)
    if error == 0:
        pthread_setname_np(thread[0], name)
    return error

cdef inline int start_quiet_thread(pthread_t *thread, const char *name, void *(*start)(void *) noexcept nogil,
                                   void *arg) noexcept nogil:
    """start_thread, for a thread that handles no signals of the process: the program's own threads get them.

    The signals of faults stay unblocked: for a fault whose signal is blocked, the kernel ends the process without a
    call of the handler, such as Python's faulthandler.
    """
    cdef sigset_t quiet, before
    cdef int error
    sigfillset(&quiet)
    sigdelset(&quiet, SIGBUS)
    sigdelset(&quiet, SIGFPE)
    sigdelset(&quiet, SIGILL)
    sigdelset(&quiet, SIGSEGV)
    pthread_sigmask(SIG_SETMASK, &quiet, &before)
    error = start_thread(thread, name, start, arg)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    return error
