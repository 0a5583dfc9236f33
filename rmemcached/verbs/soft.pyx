"""The software provider: an RNIC in this process, with the fabrics soft_iw (iWARP over TCP) and soft_shm (memory).

soft.pxd has what programs call, and the header of each part. docs/soft-rnic.md says how it works.
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
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport geteuid

from rmemcached.streams.stream cimport stream_move, stream_send
from rmemcached.sys.atomics cimport (
    counter_add,
    exchange,
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
from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.debug cimport (
    LIVE_CHANNEL, LIVE_CONTEXT, LIVE_CQ, LIVE_MR, LIVE_PD, LIVE_QP, LIVE_SRQ, assert_held, assert_owner,
    assert_read_held, assert_that, assert_write_held, live_add, live_sub, lock_ranked, lock_read_ranked,
    lock_write_ranked, thread_id, trylock_ranked, unlock_ranked, unlock_rw_ranked,
)
from rmemcached.sys.linux cimport (
    AF_INET, AF_INET6, AF_UNIX, CLOCK_MONOTONIC, CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, CMSG_SPACE,
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD,
    EPOLL_CTL_DEL, EPOLL_CTL_MOD, F_ADD_SEALS, F_GETFL, F_GET_SEALS, F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL,
    F_SEAL_SHRINK, F_SETFL, HUGE_PAGE, IPPROTO_TCP, MADV_DONTNEED, MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED,
    MFD_ALLOW_SEALING, MFD_CLOEXEC, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC,
    O_CLOEXEC, O_NONBLOCK, O_RDONLY, POLLIN, PROT_NONE, PROT_READ, PROT_WRITE, SCM_RIGHTS, SHUT_RDWR, SHUT_WR,
    SOCK_STREAM, SOL_SOCKET, SO_DOMAIN, SO_INCOMING_CPU, SO_PEERCRED, SO_TYPE, TCP_CONGESTION, TCP_MAXSEG, TCP_NODELAY,
    TFD_CLOEXEC, TFD_NONBLOCK, TMPFS_MAGIC, cached_pages, close, cmsghdr, epoll_create1, epoll_ctl, epoll_event,
    epoll_wait, eventfd, eventfd_signal, fcntl, fstatfs, ftruncate, getpeername, getrandom, getsockname, getsockopt,
    itimerspec, madvise, memfd_create, mincore, mmap, mprotect, msghdr, munlock, munmap, open, poll, pollfd,
    populate_read, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_destroy, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_detach, pthread_join, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_rwlock_destroy, pthread_rwlock_init,
    read, recv, recvmsg, sched_getcpu, sched_yield, send, sendmsg, setsockopt, shutdown, snprintf,
    sockaddr, sockaddr_in, sockaddr_in6, socklen_t, start_quiet_thread, struct_statfs, timerfd_create, timerfd_settime,
    timespec, ucred, write,
)
from rmemcached.verbs.iwarp cimport *
from rmemcached.verbs.verbs cimport *

include "soft/async_events.pyx"
include "soft/mr.pyx"
include "soft/mw.pyx"
include "soft/device.pyx"
include "soft/domain.pyx"
include "soft/channel.pyx"
include "soft/cq.pyx"
include "soft/srq.pyx"
include "soft/rdmap_tx.pyx"
include "soft/predict.pyx"
include "soft/rdmap_rx.pyx"
include "soft/stream.pyx"
include "soft/qp.pyx"
include "soft/thread.pyx"
include "soft/fabric.pyx"

include "soft/tcp/mpa.pyx"
include "soft/tcp/stream.pyx"

include "soft/shm/memory.pyx"
include "soft/shm/closer.pyx"
include "soft/shm/record.pyx"
include "soft/shm/bell.pyx"
include "soft/shm/ring.pyx"
include "soft/shm/wait.pyx"
include "soft/shm/region.pyx"
include "soft/shm/message.pyx"
include "soft/shm/stream.pyx"

# The fabrics, in the order of their devices. A new fabric needs a folder, includes above, an entry here, FABRICS + 1.
cdef enum:
    FABRICS = 2

cdef const soft_fabric *fabrics[FABRICS]


cdef extern from *:
    """
    static const char *const rmc_wc_status_names[] = {
        "success", "local length error", "local QP operation error", "local EE context operation error",
        "local protection error", "work request flushed", "memory window bind error", "bad response",
        "local access error", "remote invalid request", "remote access error", "remote operation error",
        "transport retries exceeded", "receiver not ready", "local RDD violation", "remote invalid RD request",
        "operation aborted", "invalid EE context number", "invalid EE context state", "fatal error",
        "response timeout", "general error",
    };
    """
    const char *const *rmc_wc_status_names


cdef const char *soft_wc_status_str(ibv_wc_status status) noexcept nogil:
    if <int> status < 0 or <int> status > IBV_WC_GENERAL_ERR:
        return b"unknown"
    return rmc_wc_status_names[<int> status]


cdef verbs_provider provider


cdef void soft_fill_tables() noexcept nogil:
    tcp_fill_table()
    shm_fill_table()
    fabrics[0] = &tcp_fabric
    fabrics[1] = &shm_fabric
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


soft_fill_tables()


cdef const verbs_provider *soft_provider() noexcept nogil:
    return &provider
