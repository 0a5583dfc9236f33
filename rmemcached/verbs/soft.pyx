"""The software provider: an RNIC in this process, with the fabrics soft_iw (iWARP over TCP) and soft_shm (memory).

See docs/soft-rnic.md. The parts: soft_mr (memory regions), soft_cq (completions, events, progress domains), soft_mpa
(streams and their start-up), soft_tx (sending), soft_rx (receiving), soft_qp (queue pairs), soft_srq (shared receive
queues), soft_async (asynchronous events), shm_ring, shm_stream and shm_region (the stream of soft_shm, and its
one-sided access). The layout of all objects is in soft_layout.pxi, the coding of frames in iwarp.pxd.
"""

from libc cimport errno
from libc.errno cimport (
    EAGAIN,
    EALREADY,
    EBUSY,
    EFAULT,
    EINTR,
    EINVAL,
    EISCONN,
    ENOBUFS,
    ENODEV,
    ENOMEM,
    ENOTCONN,
    EOPNOTSUPP,
    EOVERFLOW,
    EPROTO,
)
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.signal cimport SIG_SETMASK, sigfillset, sigset_t
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, ftruncate, read, write

from rmemcached.sys.atomics cimport (
    fetch_add,
    fetch_sub,
    full_fence,
    load_acquire,
    relaxed_load,
    relaxed_store,
    relaxed_store_pointer,
    store_release,
    store_release_pointer,
)
from rmemcached.verbs.iwarp cimport *
from rmemcached.verbs.verbs cimport *


cdef extern from "<sched.h>" nogil:
    int sched_yield() noexcept
    int sched_getcpu() noexcept

cdef extern from "<sys/random.h>" nogil:
    ssize_t getrandom(void *buf, size_t length, unsigned int flags) noexcept

cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ
    int PROT_WRITE
    int MAP_PRIVATE
    int MAP_SHARED
    int MAP_ANONYMOUS
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset) noexcept
    int munmap(void *addr, size_t length) noexcept
    unsigned int MFD_CLOEXEC
    unsigned int MFD_ALLOW_SEALING
    int memfd_create(const char *name, unsigned int flags) noexcept

cdef extern from "<fcntl.h>" nogil:
    int F_ADD_SEALS
    int F_GET_SEALS
    int F_SEAL_SEAL
    int F_SEAL_SHRINK
    int F_SEAL_GROW
    int F_SEAL_FUTURE_WRITE

cdef extern from "<linux/magic.h>" nogil:
    long TMPFS_MAGIC

cdef extern from "<sys/vfs.h>" nogil:
    ctypedef struct struct_statfs "struct statfs":
        long f_type
    int fstatfs(int fd, struct_statfs *out) noexcept

cdef extern from "<poll.h>" nogil:
    short POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout) noexcept

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct msghdr:
        void *msg_name
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    int AF_INET
    int AF_INET6
    int AF_UNIX
    int SOCK_STREAM
    int SOL_SOCKET
    int SO_DOMAIN
    int SO_TYPE
    int SCM_RIGHTS
    int MSG_CMSG_CLOEXEC
    size_t CMSG_SPACE(size_t length) noexcept
    size_t CMSG_LEN(size_t length) noexcept
    cmsghdr *CMSG_FIRSTHDR(msghdr *message) noexcept
    cmsghdr *CMSG_NXTHDR(msghdr *message, cmsghdr *header) noexcept
    uint8_t *CMSG_DATA(cmsghdr *header) noexcept
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int MSG_TRUNC
    int SO_INCOMING_CPU
    int SHUT_WR
    ssize_t recv(int fd, void *buf, size_t length, int flags) noexcept
    ssize_t send(int fd, const void *buf, size_t length, int flags) noexcept
    ssize_t recvmsg(int fd, msghdr *message, int flags) noexcept
    ssize_t sendmsg(int fd, const msghdr *message, int flags) noexcept
    int shutdown(int fd, int how) noexcept
    struct sockaddr:
        pass
    int getsockname(int fd, sockaddr *address, socklen_t *length) noexcept
    int getpeername(int fd, sockaddr *address, socklen_t *length) noexcept
    int getsockopt(int fd, int level, int name, void *value, socklen_t *length) noexcept
    int setsockopt(int fd, int level, int name, const void *value, socklen_t length) noexcept

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        in_addr sin_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in6:
        uint16_t sin6_family
        in6_addr sin6_addr

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_CONGESTION
    int TCP_MAXSEG
    int TCP_NODELAY

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLET
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_DEL
    int EPOLL_CTL_MOD
    int epoll_create1(int flags) noexcept
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event) noexcept
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout) noexcept

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int value, int flags) noexcept

cdef extern from "<sys/timerfd.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int CLOCK_MONOTONIC
    int TFD_CLOEXEC
    int TFD_NONBLOCK
    int clock_gettime(int clock, timespec *out) noexcept
    int timerfd_create(int clock, int flags) noexcept
    int timerfd_settime(int fd, int flags, const itimerspec *due, itimerspec *was) noexcept

cdef extern from *:
    """
    static struct ibv_device rmc_soft_iw_device = {
        .node_type = IBV_NODE_RNIC,
        .transport_type = IBV_TRANSPORT_IWARP,
        .name = "soft_iw0",
        .dev_name = "soft_iw0",
    };
    static struct ibv_device rmc_soft_shm_device = {
        .node_type = IBV_NODE_RNIC,
        .transport_type = IBV_TRANSPORT_IWARP,
        .name = "soft_shm0",
        .dev_name = "soft_shm0",
    };
    typedef union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } rmc_control_space;
    static const char *const rmc_wc_status_names[] = {
        "success", "local length error", "local QP operation error", "local EE context operation error",
        "local protection error", "work request flushed", "memory window bind error", "bad response",
        "local access error", "remote invalid request", "remote access error", "remote operation error",
        "transport retries exceeded", "receiver not ready", "local RDD violation", "remote invalid RD request",
        "operation aborted", "invalid EE context number", "invalid EE context state", "fatal error",
        "response timeout", "general error",
    };
    """
    ibv_device rmc_soft_iw_device
    ibv_device rmc_soft_shm_device
    ctypedef struct control_space "rmc_control_space":
        pass
    const char *const *rmc_wc_status_names

cdef uint32_t MAX_MESSAGE = 0x80000000U

cdef enum:
    PROGRESS_EVENTS = 64
    POLLS_MAX = 64                   # in a row without progress
    EVENT_TIMER = 1                  # tag in epoll data; queue pairs are aligned
    START_SECONDS = 10               # for the MPA reply
    RX_BUFFER = 16384
    RX_BUFFER_CRC = 2 * 65536 + 4096
    RX_WINDOW = 4096                 # at a frame's start, at first
    RX_WINDOW_MIN = 512              # while large frames come in
    RX_SMALL = 4096                  # payloads that are as well copied as received for themselves
    RX_BYTES = 1 << 20               # in one turn of a queue pair
    TERMINATE_MAX = 256
    TX_IOVECS = 160
    TX_FRAMES = 64
    TX_REGIONS = 64
    TX_COPY = 1024                   # payloads of up to this are copied next to their header
    TX_FRAME_ARENA = UNTAGGED_HEADER + TX_COPY + FPDU_TRAILER_MAX
    TX_ARENA = 16384
    TX_BYTES = 1280 << 10            # in one sendmsg
    TX_BYTES_NEAR = 240 << 10        # to a peer on the same core: four FPDUs of loopback's size
    TX_BYTES_CRC = 128 << 10         # less, as a CRC of octets that do not fit the socket is made again
    CRC_PIECE = 10240                # beyond what compilers copy without the C library
    TX_TURN = 2 << 20                # in one turn of a queue pair
    BOUNCE_SIZE = TX_BYTES_CRC + 65536  # the FPDU that makes a batch full may be a long one
    DRAIN_BYTES = 16 << 20
    PAGE_SIZE = 4096
    SHM_FEW = 4                      # queue pairs that may as well be looked at for ever
    SHM_IDLE = 256                   # looks in vain after which more than these wait for their bells
    SHM_LOOKS = 16                   # of one poll in vain
    SHM_TURNS = 16                   # between looks at the clock
    SHM_CHECK_BELLS = 4000           # nanoseconds between looks at the sockets of those that wait for their bells
    SHM_CHECK_ENDS = 5000000         # and between looks for the death of peers


include "soft/shm/layout.pxd"
include "soft/layout.pxd"
include "soft/async_events.pyx"
include "soft/mr.pyx"
include "soft/cq.pyx"
include "soft/srq.pyx"
include "soft/shm/ring.pyx"
include "soft/shm/stream.pyx"
include "soft/shm/region.pyx"
include "soft/shm/message.pyx"
include "soft/tcp/mpa.pyx"
include "soft/rdmap_tx.pyx"
include "soft/predict.pyx"
include "soft/rdmap_rx.pyx"
include "soft/qp.pyx"
include "soft/thread.pyx"


cdef ibv_device **soft_get_device_list(int *num_devices) noexcept nogil:
    cdef ibv_device **devices = <ibv_device **> calloc(3, sizeof(ibv_device *))
    if devices == NULL:
        errno.errno = ENOMEM
        return NULL
    devices[0] = &rmc_soft_iw_device
    devices[1] = &rmc_soft_shm_device
    if num_devices != NULL:
        num_devices[0] = 2
    return devices


cdef void soft_free_device_list(ibv_device **devices) noexcept nogil:
    free(devices)


cdef const char *soft_get_device_name(ibv_device *device) noexcept nogil:
    return device.name


cdef ibv_context *soft_open_device(ibv_device *device) noexcept nogil:
    cdef soft_context *context
    cdef int i
    if device != &rmc_soft_iw_device and device != &rmc_soft_shm_device:
        errno.errno = ENODEV
        return NULL
    context = <soft_context *> calloc(1, sizeof(soft_context))
    if context == NULL:
        errno.errno = ENOMEM
        return NULL
    if not async_open(context):
        free(context)
        return NULL
    context.shm = device == &rmc_soft_shm_device
    if context.shm and not registry_open(context):
        async_close(context)
        free(context)
        return NULL
    if getrandom(&context.next_qp_num, sizeof(context.next_qp_num), 0) < 0:
        context.next_qp_num = 0
    pthread_mutex_init(&context.lock, NULL)
    thread_open(context)
    for i in range(MR_SHARDS):
        pthread_rwlock_init(&context.shards[i].lock, NULL)
    context.ibv.device = device
    context.ibv.cmd_fd = -1
    context.ibv.num_comp_vectors = 1
    context.ibv.ops.poll_cq = soft_poll_cq
    context.ibv.ops.req_notify_cq = soft_req_notify_cq
    context.ibv.ops.post_send = soft_post_send
    context.ibv.ops.post_recv = soft_post_recv
    context.ibv.ops.post_srq_recv = soft_post_srq_recv
    return &context.ibv


cdef int soft_close_device(ibv_context *ibcontext) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    cdef int i
    if load_acquire(&context.users):
        return EBUSY
    soft_stop_progress(ibcontext)
    pthread_mutex_destroy(&context.thread_lock)
    for i in range(MR_SHARDS):
        pthread_rwlock_destroy(&context.shards[i].lock)
        free(context.shards[i].buckets)
    if context.shm:
        registry_close(context)
    async_close(context)
    pthread_mutex_destroy(&context.lock)
    free(context)
    return 0


cdef int soft_query_device(ibv_context *context, ibv_device_attr *out) noexcept nogil:
    memset(out, 0, sizeof(out[0]))
    out.max_mr_size = <uint64_t> -1
    out.page_size_cap = 4096
    out.max_qp = 0xfffffd
    out.max_qp_wr = MAX_QP_WR
    out.max_sge = MAX_SGE
    out.max_sge_rd = MAX_SGE
    out.max_cq = 1 << 20
    out.max_cqe = MAX_CQE
    out.max_mr = 1 << 30
    out.max_pd = 1 << 30
    out.max_qp_rd_atom = MAX_READS
    out.max_qp_init_rd_atom = MAX_READS
    out.max_res_rd_atom = <int> (0x7fffffff)
    out.atomic_cap = IBV_ATOMIC_NONE
    out.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SRQ_RESIZE
    out.max_srq = 1 << 20
    out.max_srq_wr = MAX_SRQ_WR
    out.max_srq_sge = MAX_SGE
    out.max_pkeys = 1
    out.phys_port_cnt = 1
    return 0


cdef int soft_query_port(ibv_context *context, uint8_t port_num, ibv_port_attr *out) noexcept nogil:
    if port_num != 1:
        return EINVAL
    memset(out, 0, sizeof(out[0]))
    out.state = IBV_PORT_ACTIVE
    out.max_mtu = IBV_MTU_4096
    out.active_mtu = IBV_MTU_4096
    out.gid_tbl_len = 1
    out.pkey_tbl_len = 1
    out.max_msg_sz = MAX_MESSAGE
    out.max_vl_num = 1
    out.active_width = 1
    out.active_speed = 1
    out.phys_state = 5
    out.link_layer = IBV_LINK_LAYER_ETHERNET
    return 0


cdef int soft_query_gid(ibv_context *context, uint8_t port_num, int index, ibv_gid *out) noexcept nogil:
    """The one GID is the IPv4-mapped loopback address: the device has no address of its own, its streams have."""
    if port_num != 1 or index != 0:
        errno.errno = EINVAL
        return -1
    memset(out, 0, sizeof(out[0]))
    out.raw[10] = 0xff
    out.raw[11] = 0xff
    out.raw[12] = 127
    out.raw[15] = 1
    return 0


cdef int soft_query_pkey(ibv_context *context, uint8_t port_num, int index, uint16_t *out) noexcept nogil:
    if port_num != 1 or index != 0:
        errno.errno = EINVAL
        return -1
    out[0] = 0xffff
    return 0


cdef ibv_pd *soft_alloc_pd(ibv_context *context) noexcept nogil:
    cdef soft_pd *pd = <soft_pd *> calloc(1, sizeof(soft_pd))
    if pd == NULL:
        errno.errno = ENOMEM
        return NULL
    pd.ibv.context = context
    fetch_add(&(<soft_context *> context).users, 1)
    return &pd.ibv


cdef int soft_dealloc_pd(ibv_pd *ibpd) noexcept nogil:
    cdef soft_pd *pd = <soft_pd *> ibpd
    if load_acquire(&pd.users):
        return EBUSY
    fetch_sub(&(<soft_context *> ibpd.context).users, 1)
    free(pd)
    return 0


cdef const char *soft_wc_status_str(ibv_wc_status status) noexcept nogil:
    if <int> status < 0 or <int> status > IBV_WC_GENERAL_ERR:
        return b"unknown"
    return rmc_wc_status_names[<int> status]


cdef verbs_provider provider

provider.name = b"soft"
provider.get_device_list = soft_get_device_list
provider.free_device_list = soft_free_device_list
provider.get_device_name = soft_get_device_name
provider.open_device = soft_open_device
provider.close_device = soft_close_device
provider.query_device = soft_query_device
provider.query_port = soft_query_port
provider.query_gid = soft_query_gid
provider.query_pkey = soft_query_pkey
provider.get_async_event = soft_get_async_event
provider.ack_async_event = soft_ack_async_event
provider.alloc_pd = soft_alloc_pd
provider.dealloc_pd = soft_dealloc_pd
provider.reg_mr = soft_reg_mr
provider.dereg_mr = soft_dereg_mr
provider.create_comp_channel = soft_create_comp_channel
provider.destroy_comp_channel = soft_destroy_comp_channel
provider.create_cq = soft_create_cq
provider.resize_cq = soft_resize_cq
provider.destroy_cq = soft_destroy_cq
provider.get_cq_event = soft_get_cq_event
provider.ack_cq_events = soft_ack_cq_events
provider.create_srq = soft_create_srq
provider.modify_srq = soft_modify_srq
provider.query_srq = soft_query_srq
provider.destroy_srq = soft_destroy_srq
provider.create_qp = soft_create_qp
provider.modify_qp = soft_modify_qp
provider.query_qp = soft_query_qp
provider.destroy_qp = soft_destroy_qp
provider.wc_status_str = soft_wc_status_str
provider.event_type_str = soft_event_type_str


cdef const verbs_provider *soft_provider() noexcept nogil:
    return &provider
