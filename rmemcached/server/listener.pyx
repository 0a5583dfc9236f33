"""Accepting connections within the limit of -c, and choosing their workers."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.string cimport memset, strlen

from posix.unistd cimport geteuid

from rmemcached.sys.atomics cimport (
    compare_exchange, counter_add, exchange, fetch_add, fetch_sub, relaxed_load, relaxed_store,
)
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport assert_owner
from rmemcached.sys.linux cimport (
    ECONNABORTED, EINTR, EMFILE, ENFILE, EPOLLIN, EPOLL_CTL_MOD, IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_CLOEXEC,
    SOCK_NONBLOCK, SOL_SOCKET, SO_INCOMING_NAPI_ID, SO_KEEPALIVE, SO_PEERCRED, TCP_NODELAY, accept4, close, epoll_ctl,
    epoll_event, errno, getsockopt, listen, send, setsockopt, sockaddr, socklen_t, ucred,
)
from rmemcached.logger cimport LOG_TCP, LOG_UDP, log_peer
from rmemcached.server.worker cimport worker_dispatch
from rmemcached.server.layout cimport MAIN_FDS, WORKER_FDS, listener, server
from rmemcached.server.worker cimport worker

cdef enum:
    ACCEPT_RETRY_NS = 1000000000     # accepting is tried again after this time even if no connection ended


cdef inline bint may_have(const server *s, uint64_t connections) noexcept nogil:
    """Whether -c allows so many connections. As in memcached, -c limits descriptors: memcached's own, listening sockets
    and inherited descriptors count besides connections. The counts are memcached's, whatever this process has; queue
    pairs do not count."""
    return (s.settings.inherited_fds + MAIN_FDS + WORKER_FDS * <uint64_t>s.settings.num_threads
            + connections) <= s.settings.maxconns


cdef bint has_room(const server *s, unsigned int more) noexcept nogil:
    return may_have(s, relaxed_load(&s.curr_connections) + more)


cdef void listen_to(server *s, uint32_t events, int backlog) noexcept nogil:
    """Sets the epoll events and the backlog of all listening sockets."""
    cdef epoll_event ev
    cdef unsigned int i
    assert_owner(s.owner)
    for i in range(s.nlisteners):
        if s.listeners[i].transport != LOG_UDP:
            ev.events = events
            ev.data.u64 = i
            epoll_ctl(s.epfd, EPOLL_CTL_MOD, s.listeners[i].fd, &ev)
            listen(s.listeners[i].fd, backlog)


cdef void stop_listening(server *s, const char *why) noexcept nogil:
    """Stops accepting, and makes the kernel's queue short (a backlog of 0), until resume_listening. A second stop for
    the same reason, without an accept in between, is neither reported nor counted."""
    if s.disabled_why != why:
        if relaxed_load(&s.hooks.verbose):
            fprintf(stderr, b"%s\n", why)
        counter_add(&s.listen_disabled_num, 1)
    s.disabled_why = why
    listen_to(s, 0, 0)
    s.disabled_at = now_ns()
    s.disabled_with = relaxed_load(&s.curr_connections)
    relaxed_store(&s.listen_disabled, 1)


cdef void resume_listening(server *s) noexcept nogil:
    cdef int64_t elapsed = now_ns() - s.disabled_at
    cdef uint64_t count = relaxed_load(&s.curr_connections)
    if not has_room(s, 1) or (count >= s.disabled_with and elapsed < ACCEPT_RETRY_NS):
        return
    counter_add(&s.time_in_listen_disabled_us, elapsed // 1000)
    relaxed_store(&s.listen_disabled, 0)
    listen_to(s, EPOLLIN, s.settings.backlog)


cdef worker *next_in_turn(server *s) noexcept nogil:
    """The next worker in turn, after taking back the turns of queue pairs' streams (turns_back)."""
    cdef unsigned int count = s.settings.num_threads
    cdef unsigned int back = 0
    if relaxed_load(&s.turns_back):
        back = <unsigned int>(exchange(&s.turns_back, 0) % count)
    s.next_worker = (s.next_worker + 1 + count - back) % count
    return &s.workers[s.next_worker]


cdef worker *select_worker(server *s, int fd) noexcept nogil:
    """The worker of a new connection: in turn or, with -N, by the receive queue of the network card (memcached:
    thread.c, select_thread_by_napi_id)."""
    cdef unsigned int napi_id = 0, i
    cdef socklen_t length = sizeof(napi_id)
    assert_owner(s.owner)
    if s.settings.num_napi_ids == 0:
        return next_in_turn(s)
    if getsockopt(fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi_id, &length) != 0 or napi_id == 0:
        counter_add(&s.round_robin_fallback, 1)
        return next_in_turn(s)
    for i in range(s.napi_known):
        if s.workers[i].napi_id == napi_id:
            return &s.workers[i]
    if s.napi_known == s.settings.num_threads:
        # There are more queues than workers: the assignment starts over.
        counter_add(&s.unexpected_napi_ids, 1)
        s.napi_known = 0
    i = s.napi_known
    s.workers[i].napi_id = napi_id
    s.napi_known += 1
    return &s.workers[i]


cdef bint admit_user(server *s, int fd) noexcept nogil:
    """Whether the peer's user may share memory with the daemon: at an abstract socket no permissions of a file decide.
    Tells the peer about a refusal."""
    cdef char text[128]
    cdef ucred peer
    cdef socklen_t length = sizeof(peer)
    if getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0:
        return False
    if peer.uid != s.overflow_uid and (peer.uid == 0 or peer.uid == geteuid()):
        return True
    snprintf(text, sizeof(text), b"SERVER_ERROR rdma: this socket is for user %u and root, not for user %u\r\n",
             geteuid(), peer.uid)
    send(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL)
    return False


cdef bint count_connection(server *s, unsigned int spare) noexcept nogil:
    """Counts a connection, in a single step: the main thread, the devices' thread and workers do so at the same time.
    False: the connection would leave no room for `spare` more."""
    cdef uint64_t count = relaxed_load(&s.curr_connections)
    cdef uint64_t most = relaxed_load(&s.most_connections)
    while may_have(s, count + 1 + spare):
        if compare_exchange(&s.curr_connections, &count, count + 1):
            break
    else:
        fetch_add(&s.rejected_connections, 1)
        return False
    count += 1
    fetch_add(&s.total_connections, 1)
    while count > most:
        # If another thread has stored a larger number meanwhile, the next pass puts the larger number back.
        most = exchange(&s.most_connections, count)
        count, most = most, count
    return True


cdef worker *admit_cm(void *arg) noexcept nogil:
    """Beyond -c, connections of rdma_cm are rejected even without maxconns_fast, because their clients do not wait long
    for an answer."""
    cdef server *s = <server *>arg
    assert_owner(s.devices.owner)
    if not count_connection(s, s.settings.maxconns_fast):
        return NULL
    s.next_cm_worker = (s.next_cm_worker + 1) % s.settings.num_threads
    return &s.workers[s.next_cm_worker]


cdef bint admit_lane(void *arg) noexcept nogil:
    """Any worker. Beyond -c, lanes are refused as connections of rdma_cm are."""
    cdef server *s = <server *>arg
    return count_connection(s, s.settings.maxconns_fast)


cdef void accept_all(server *s, const listener *l) noexcept nogil:
    cdef int sfd, one = 1
    cdef bint first = True
    cdef const char *full = b"ERROR Too many open connections\r\n"
    cdef log_peer peer
    cdef socklen_t length
    assert_owner(s.owner)
    while True:
        if not has_room(s, 1):
            # Only before the first accept a connection certainly waits. Later the queue may be empty.
            if first:
                stop_listening(s, b"Too many open connections")
            return
        first = False
        memset(&peer, 0, sizeof(peer))
        length = sizeof(peer.addr)
        peer.transport = l.transport
        if l.transport == LOG_TCP:
            sfd = accept4(l.fd, <sockaddr *>&peer.addr, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)
        else:
            sfd = accept4(l.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if sfd < 0:
            if errno == EINTR or errno == ECONNABORTED:
                continue
            if errno == EMFILE:
                stop_listening(s, b"Too many open files: raise the limit (ulimit -Hn), or lower -c")
            elif errno == ENFILE:
                stop_listening(s, b"Too many open files in the system: raise fs.file-max")
            return
        s.disabled_why = NULL
        if l.own_users and not admit_user(s, sfd):
            close(sfd)
            continue
        # A lane may have taken the room meanwhile.
        if not count_connection(s, s.settings.maxconns_fast):
            # As in memcached, also to clients of TLS, to whom the line is an error in the handshake.
            send(sfd, full, strlen(full), MSG_DONTWAIT | MSG_NOSIGNAL)
            close(sfd)
            continue
        if l.transport == LOG_TCP:
            setsockopt(sfd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            setsockopt(sfd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one))
        if not worker_dispatch(select_worker(s, sfd), sfd, l.prot, &peer, l.stream_only, l.tls):
            close(sfd)
            fetch_sub(&s.curr_connections, 1)
