"""Worker threads and the epoll engine.

A worker waits in epoll_wait for its sockets, for the eventfd of its queue, and for its RDMA completion channel. Input
goes into the worker's read buffer (a payload straight into its item), and the drive machine runs over the input. The
replies to all commands of a read leave in one sendmsg. A connection owns a read buffer only while a command is
incomplete, so an idle connection costs its structure alone.
"""

from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, cpu_relax, fetch_add, fetch_sub, load_acquire
from rmemcached.drive_machine cimport drive_machine
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport (
    LIVE_SERVER_CONN, LIVE_WORKER, assert_owner, assert_that, live_add, live_sub, thread_id,
)
from rmemcached.sys.linux cimport (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD,
    EPOLL_CTL_DEL, EPOLL_CTL_MOD, MSG_PEEK, SIOCOUTQ, close, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait, errno, eventfd, eventfd_clear, eventfd_signal, ioctl, pthread_cond_signal,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, recv, sched_yield,
    start_thread, strerror,
)
from rmemcached.sys.pause cimport YIELD_LONG, pause_begin, pause_look, pause_undisturbed
from rmemcached.logger cimport (
    ERROR_CLOSE, IDLE_TIMEOUT_CLOSE, LOG_CONNEVENTS, LOG_LOCAL, LOG_RDMA, LOG_TCP, NORMAL_CLOSE, log_conn_close,
    log_conn_new, log_thread_sfd, log_wants, logger,
)
from rmemcached.protocol.conn cimport (
    CONN_NAME, WANT_AUTH, WANT_CLOSE, WANT_FLUSH, WANT_INPUT, WANT_LENT, WANT_PAYLOAD, WANT_YIELD, ascii_prot,
    binary_prot, conn, conn_auth, conn_engine, conn_gather, conn_init, conn_logs, conn_memory, conn_name, conn_new_cmd,
    conn_complete, conn_payload_iov, conn_payload_received, conn_read, conn_release, conn_sent, conn_set_state,
    conn_swallow, conn_thread, conn_thread_release, conn_waits, conn_want, lend_result, protocol, resp_wait,
    sasl_hooks, sasl_session, thread_stats,
)
from rmemcached.protocol.ascii cimport command_ahead
from rmemcached.protocol.binary cimport complete_sasl_binary
from rmemcached.protocol.reply cimport stat_reply
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.protocol.dump cimport dump_kind
from rmemcached.rdma.cm cimport rdma_request
from rmemcached.rdma.device cimport RDMA_DEVICES, rdma_device, transport_ops
from rmemcached.rdma.transport cimport STREAM_KEY_LENGTH, STREAM_REQUEST_MAX, transport_of
from rmemcached.rdma.wire cimport rdma_transport
from rmemcached.rdma_conn cimport (
    rdma_cm_accept, rdma_conn, rdma_conn_end_idle, rdma_conn_finish, rdma_conn_free, rdma_conn_has_views,
    rdma_conn_last_active, rdma_conn_probe, rdma_conn_stalled_since, rdma_conn_stop, rdma_conn_thread,
    rdma_event_taken, rdma_exchange,
    rdma_thread_arm, rdma_thread_attach, rdma_thread_begin_turn, rdma_thread_create, rdma_thread_destroy,
    rdma_thread_end_late, rdma_thread_end_turns, rdma_thread_event, rdma_thread_expected, rdma_thread_fd,
    rdma_thread_gives_way, rdma_thread_pending, rdma_thread_poll, rdma_thread_polled, rdma_thread_polls,
    rdma_thread_refuse, rdma_thread_route, rdma_thread_run, rdma_thread_waits, rdma_thread_was_busy,
)
from rmemcached.server.dumps cimport dumps_start
from rmemcached.server.handshakes cimport handshakes_add
from rmemcached.server.udp cimport udp_close, udp_open, udp_ready, udp_socket
from rmemcached.server.watchers cimport watchers_add
from rmemcached.store.store cimport crawler_result_type, items_ahead, key_ahead, store_time
from rmemcached.streams.stream cimport plain_stream, stream_move, stream_send
from rmemcached.streams.tls cimport (
    HANDSHAKE_DONE, HANDSHAKE_FAILED, HANDSHAKE_WRITES, TLS_OFF, handshake_result, tls_abandon, tls_begin, tls_session,
)
from rmemcached.verbs.soft cimport soft_channel_event, soft_event_qp
from rmemcached.verbs.system_cm cimport cm_ended

include "worker/connection.pyx"
include "worker/socket_io.pyx"
include "worker/stream.pyx"
include "worker/handshake.pyx"
include "worker/engine.pyx"
include "worker/handover.pyx"
include "worker/lanes.pyx"
include "worker/polling.pyx"
include "worker/rdma.pyx"
include "worker/timeouts.pyx"
include "worker/loop.pyx"
