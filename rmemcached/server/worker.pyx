"""Worker threads and the epoll engine.

A worker waits in epoll_wait for its sockets, for the eventfd through which the listener hands connections over, and
for its RDMA completion channel. What arrives is read into one buffer per worker (a payload straight into its item),
the drive machine is run over it, and the replies to everything that was in one read leave in one sendmsg. A connection
owns a read buffer only while a command is incomplete, so an idle one costs its structure alone.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, cpu_relax, fetch_sub, load_acquire
from rmemcached.drive_machine cimport drive_machine
from rmemcached.sys.linux cimport (
    CLOCK_MONOTONIC, EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL,
    EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, clock_gettime, close,
    epoll_create1, epoll_ctl, epoll_event, epoll_wait, errno, eventfd, msghdr, pthread_cond_signal, pthread_create,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_setname_np, read,
    readv, recv, sched_yield, send, sendmsg, strerror, timespec, write,
)
from rmemcached.logger cimport (
    IDLE_TIMEOUT_CLOSE, LOG_CONNEVENTS, LOG_LOCAL, LOG_RDMA, LOG_TCP, NORMAL_CLOSE, close_reasons, log_conn_close,
    log_conn_new, log_thread_sfd, log_wants,
)
from rmemcached.protocol.conn cimport (
    AUTH_LINE, WANT_CLOSE, WANT_FLUSH, WANT_INPUT, WANT_LENT, WANT_PAYLOAD, WANT_YIELD, ascii_prot, binary_prot, conn,
    conn_engine, conn_gather, conn_init, conn_logs, conn_memory, conn_new_cmd, conn_payload_iov, conn_payload_received,
    conn_read, conn_release, conn_sent, conn_set_state, conn_thread, conn_thread_release, conn_want, lend_result,
    protocol, stat_buf, stat_reply,
)
from rmemcached.protocol.dump cimport dump_kind
from rmemcached.rdma.wire cimport TRANSPORT_SOFT_IW, TRANSPORT_SOFT_SHM
from rmemcached.rdma_conn cimport (
    RDMA_DEVICES, rdma_cm_accept, rdma_conn, rdma_conn_destroy,
    rdma_conn_finish, rdma_conn_last_cmd, rdma_conn_probe, rdma_conn_thread, rdma_device, rdma_exchange, rdma_request,
    rdma_stream_request, rdma_thread_arm, rdma_thread_create, rdma_thread_destroy, rdma_thread_fd, rdma_thread_poll,
    rdma_thread_run,
)
from rmemcached.server.dumps cimport dumps_start
from rmemcached.server.udp cimport UDP_TAG, udp_close, udp_open, udp_ready, udp_socket
from rmemcached.server.watchers cimport watchers_add
from rmemcached.store.store cimport crawler_result_type, store_time
from rmemcached.verbs.system_cm cimport cm_ended

cdef enum:
    REQUEST_KEY_LENGTH = 16      # octets by which a request for a stream is known
    STREAM_REQUEST_MAX = 532     # octets of the longest MPA request frame
    STREAM_REQUEST_SECONDS = 10  # time a peer has to complete it
    PROBE_SECONDS = 30           # a connection of rdma_cm that is silent for so long is probed
    SEND_BATCH = 4 * 1024 * 1024
    RECEIVE_SIZE = 64 * 1024     # of a payload at once: while more is copied nothing is acknowledged, and BBR paces
    RECEIVE_BATCH = 4 * 1024 * 1024  # of a payload in one turn, after which others have theirs
    MAX_BUFFERED = 64 * 1024 * 1024
    RING_LOOKS = 32              # between two turns of a worker that polls
    SPIN_FLOOR = 16              # spinning is tried for a 16th of spin_max when it does not pay


# ---- what the engine can do for its connections ----------------------------------------------------------------------

cdef const char *connection_exchange(conn *c, const char *line, size_t length, char *reply,
                                     size_t reply_size) noexcept nogil:
    cdef connection *cn = <connection *>c
    cdef rdma_conn *rc
    if not has_device(cn.w):
        return b"SERVER_ERROR rdma: no transport is available here\r\n"
    rc = rdma_exchange(cn.w.rdma, cn, cn.fd, cn.rdma != NULL, line, length, reply, reply_size)
    if rc != NULL:
        cn.rdma = rc
        c.engine = &lifeline_engine
    return reply


cdef lend_result connection_watch(conn *c, uint32_t eflags) noexcept nogil:
    cdef connection *cn = <connection *>c
    return watchers_add(cn.w.watchers, cn, cn.fd, eflags)


cdef crawler_result_type connection_dump(conn *c, dump_kind kind, const char *classes, size_t length) noexcept nogil:
    cdef connection *cn = <connection *>c
    return dumps_start(cn.w.dumps, cn, cn.fd, kind, classes, length)


cdef conn_engine socket_engine = conn_engine(
    exchange=connection_exchange, watch=connection_watch, dump=connection_dump, remote=False, datagrams=False)

# A lifeline's queue pair can end at any moment, which is no time for its socket to be lent.
cdef conn_engine lifeline_engine = conn_engine(
    exchange=connection_exchange, watch=NULL, dump=NULL, remote=False, datagrams=False)


cdef bint has_device(const worker *w) noexcept nogil:
    cdef unsigned int i
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[i] != NULL:
            return True
    return False


# ---- connections -----------------------------------------------------------------------------------------------------

cdef void connection_interest(connection *cn, uint32_t events) noexcept nogil:
    cdef epoll_event ev
    if cn.events == events:
        return
    ev.events = events
    ev.data.ptr = cn
    epoll_ctl(cn.w.epfd, EPOLL_CTL_MOD, cn.fd, &ev)
    cn.events = events


cdef void set_buffer(connection *cn, char *buffer, uint32_t size) noexcept nogil:
    cdef conn_thread *t = &cn.w.thread
    cn.rbuf = buffer
    cn.rsize = size
    counter_add(&t.stats.read_buf_count, 1)
    counter_add(&t.stats.read_buf_bytes, size)


cdef void free_buffer(connection *cn) noexcept nogil:
    cdef conn_thread *t = &cn.w.thread
    counter_add(&t.stats.read_buf_count, -1)
    counter_add(&t.stats.read_buf_bytes, -<int64_t>cn.rsize)
    free(cn.rbuf)
    cn.rbuf = NULL
    cn.rsize = 0


cdef connection *connection_open(worker *w, int fd, protocol prot, const log_peer *peer,
                                 unsigned int flags) noexcept nogil:
    cdef connection *cn = <connection *>calloc(1, sizeof(connection))
    cdef epoll_event ev
    if cn == NULL:
        return NULL
    conn_init(&cn.c, &w.thread, &socket_engine)
    cn.c.sfd = fd
    cn.c.protocol = prot
    if w.thread.hooks.authenticate != NULL:
        cn.c.auth_wanted = AUTH_LINE
    cn.peer = peer[0]
    if conn_logs(&cn.c):
        fprintf(stderr, b"<%d new %s\n", fd, <const char *>b"ascii client connection." if prot == ascii_prot else
                <const char *>b"binary client connection." if prot == binary_prot else
                <const char *>b"auto-negotiating client connection")
    cn.w = w
    cn.fd = fd
    cn.flags = <uint8_t>flags
    cn.opened = store_time(w.thread.store)
    cn.events = EPOLLIN
    ev.events = EPOLLIN
    ev.data.ptr = cn
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, fd, &ev) != 0:
        free(cn)
        return NULL
    w.nstreams += flags & CONNECTION_STREAM != 0
    w.ncm += flags & CONNECTION_CM != 0
    pthread_mutex_lock(&w.list_lock)
    cn.next = w.connections
    if cn.next != NULL:
        cn.next.prev = cn
    w.connections = cn
    pthread_mutex_unlock(&w.list_lock)
    if log_wants(w.thread.log, LOG_CONNEVENTS):
        log_conn_new(w.thread.log, &cn.peer, fd)
    return cn


cdef void connection_end(connection *cn, bint close_fd) noexcept nogil:
    """Releases all the connection holds. The structure itself is freed at the end of the turn: events of it may be
    pending."""
    cdef worker *w = cn.w
    if cn.fd < 0:
        return
    pthread_mutex_lock(&w.list_lock)
    if cn.prev != NULL:
        cn.prev.next = cn.next
    else:
        w.connections = cn.next
    if cn.next != NULL:
        cn.next.prev = cn.prev
    pthread_mutex_unlock(&w.list_lock)
    if cn.rdma != NULL:
        rdma_conn_destroy(cn.rdma)
        cn.rdma = NULL
    if log_wants(w.thread.log, LOG_CONNEVENTS):
        log_conn_close(w.thread.log, &cn.peer, cn.fd, <close_reasons>cn.c.close_reason)
    if conn_logs(&cn.c):
        fprintf(stderr, b"<%d connection closed.\n", cn.fd)
    if close_fd:
        close(cn.fd)
    cn.fd = -1
    if cn.flags & CONNECTION_STREAM:
        w.nstreams -= 1
    if cn.flags & CONNECTION_CM:
        w.ncm -= 1
    conn_release(&cn.c)
    if cn.rbuf != NULL:
        free_buffer(cn)
    free(cn.rest)
    cn.rest = NULL
    cn.next = w.dead
    w.dead = cn
    fetch_sub(w.curr_connections, 1)


cdef void connection_rdma_failed(void *owner, const char *line) noexcept nogil:
    """The queue pair of a lifeline is in error: says so there, unless that would garble a reply, and ends it."""
    cdef connection *cn = <connection *>owner
    if cn.flags & CONNECTION_CM:
        # Its peer sees that it ends, and there is nothing to say why with.
        if line != NULL and conn_logs(&cn.c):
            fprintf(stderr, b"<%d %s", cn.fd, line)
    elif line != NULL and cn.c.npending == 0:
        send(cn.fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT)
    connection_end(cn, True)


cdef bint keep_input(connection *cn) noexcept nogil:
    """Moves unparsed bytes into a buffer of the connection's own. False: out of memory."""
    cdef conn *c = &cn.c
    cdef size_t want
    cdef char *fresh
    if c.rbytes == 0:
        if cn.rbuf != NULL:
            free_buffer(cn)
        return True
    if cn.rbuf != NULL and cn.rbuf <= c.rcurr < cn.rbuf + cn.rsize:
        return True
    want = 2048
    while want <= c.rbytes:
        want *= 2
    fresh = <char *>malloc(want) if conn_memory(c.thread, want) else NULL
    if fresh == NULL:
        counter_add(&c.thread.stats.read_buf_oom, 1)
        return False
    memcpy(fresh, c.rcurr, c.rbytes)
    if cn.rbuf != NULL:
        free_buffer(cn)
    set_buffer(cn, fresh, <uint32_t>want)
    c.rcurr = fresh
    return True


cdef bint make_room(connection *cn) noexcept nogil:
    """Makes space behind the unparsed bytes of the own buffer. False: out of memory, or a command of absurd length."""
    cdef conn *c = &cn.c
    cdef uint32_t size
    cdef char *fresh
    if c.rcurr + c.rbytes < cn.rbuf + cn.rsize:
        return True
    if c.rcurr != cn.rbuf:
        memmove(cn.rbuf, c.rcurr, c.rbytes)
        c.rcurr = cn.rbuf
        return True
    # A full buffer that is still one incomplete command: a long multiget.
    if cn.rsize >= MAX_BUFFERED:
        return False
    fresh = <char *>malloc(<size_t>cn.rsize * 2) if conn_memory(c.thread, cn.rsize) else NULL
    if fresh == NULL:
        counter_add(&c.thread.stats.read_buf_oom, 1)
        return False
    memcpy(fresh, c.rcurr, c.rbytes)
    size = cn.rsize * 2
    free_buffer(cn)
    set_buffer(cn, fresh, size)
    c.rcurr = fresh
    return True


cdef int connection_flush(connection *cn) noexcept nogil:
    """Sends what is queued. 1: all has left; 0: the socket is full; -1: the connection is broken."""
    cdef iovec iov[IOV_BATCH]
    cdef msghdr msg
    cdef ssize_t n
    cdef size_t total
    cdef int i, count
    while cn.c.npending:
        count = conn_gather(&cn.c, iov, IOV_BATCH, SEND_BATCH)
        if count == 0:
            conn_sent(&cn.c, 0)
            break
        total = 0
        for i in range(count):
            total += iov[i].iov_len
        if count == 1:
            n = send(cn.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL)
        else:
            memset(&msg, 0, sizeof(msg))
            msg.msg_iov = iov
            msg.msg_iovlen = count
            n = sendmsg(cn.fd, &msg, MSG_NOSIGNAL)
        if n < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                return 0
            return -1
        counter_add(&cn.w.thread.stats.bytes_written, <uint64_t>n)
        conn_sent(&cn.c, <size_t>n)
        if <size_t>n < total:
            return 0
    return 1


cdef void connection_lent(connection *cn) noexcept nogil:
    """A side thread has taken the socket over. Input behind the command waits until it is given back."""
    if not keep_input(cn):
        cn.flags |= CONNECTION_CLOSING
        cn.c.rbytes = 0
    cn.flags |= CONNECTION_LENT
    epoll_ctl(cn.w.epfd, EPOLL_CTL_DEL, cn.fd, NULL)


cdef void connection_returned(connection *cn) noexcept nogil:
    """A side thread gave the connection back."""
    cdef epoll_event ev
    cdef stat_buf out
    cdef int left
    cn.flags &= ~CONNECTION_LENT
    ev.events = cn.events = EPOLLIN
    ev.data.ptr = cn
    if cn.ended_by_side or cn.flags & CONNECTION_CLOSING or epoll_ctl(cn.w.epfd, EPOLL_CTL_ADD, cn.fd, &ev) != 0:
        connection_end(cn, True)
        return
    conn_set_state(&cn.c, conn_new_cmd)
    if cn.rest != NULL:
        memset(&out, 0, sizeof(out))
        out.data = cn.rest
        out.used = cn.rest_length
        cn.rest = NULL
        stat_reply(&cn.c, &out)
        # First of all: another command that lends the connection may be in the input, and wants no output before it.
        left = connection_flush(cn)
        if left == 0:
            cn.flags |= CONNECTION_BLOCKED
            connection_interest(cn, EPOLLOUT)
            return
        if left < 0:
            connection_end(cn, True)
            return
    connection_run(cn)


cdef void connection_run(connection *cn) noexcept nogil:
    """Runs the machine over the input that is there, sends the replies, and arranges for what is wanted next."""
    cdef conn_want want
    cdef int left
    cdef worker *w = cn.w
    while True:
        want = drive_machine(&cn.c)
        left = connection_flush(cn)
        if left < 0:
            connection_end(cn, True)
            return
        if want == WANT_CLOSE:
            cn.flags |= CONNECTION_CLOSING
        if left == 0:
            if not keep_input(cn):
                connection_end(cn, True)
                return
            cn.flags |= CONNECTION_BLOCKED
            connection_interest(cn, EPOLLOUT)
            return
        if want == WANT_FLUSH:
            continue
        if want == WANT_INPUT or want == WANT_PAYLOAD:
            if not keep_input(cn):
                connection_end(cn, True)
            return
        if want == WANT_LENT:
            connection_lent(cn)
            return
        if want == WANT_YIELD:
            if not keep_input(cn):
                connection_end(cn, True)
                return
            if not cn.flags & CONNECTION_RUNNABLE:
                cn.flags |= CONNECTION_RUNNABLE
                cn.run_next = NULL
                w.run_tail[0] = cn
                w.run_tail = &cn.run_next
            return
        # WANT_CLOSE; WANT_REMOTE_PAYLOAD cannot be: socket_engine.remote is false
        connection_end(cn, True)
        return


cdef rdma_device *stream_device(const connection *cn) noexcept nogil:
    """The device whose streams come over sockets of this kind, if there is one."""
    return cn.w.devices[TRANSPORT_SOFT_SHM if cn.peer.transport == LOG_LOCAL else TRANSPORT_SOFT_IW]


cdef inline bint begins_stream(const connection *cn, char first) noexcept nogil:
    """Whether it may be a request for a stream."""
    return first == (c'S' if cn.peer.transport == LOG_LOCAL else c'M') and stream_device(cn) != NULL


cdef void stream_readable(connection *cn) noexcept nogil:
    """The connection began like a stream's request: collects the frame and hands the socket to its queue pair."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef int done
    cdef const char *request = b"SHM ID Req Frame" if cn.peer.transport == LOG_LOCAL else b"MPA ID Req Frame"
    if memcmp(c.rcurr, request, c.rbytes if c.rbytes < REQUEST_KEY_LENGTH else REQUEST_KEY_LENGTH) != 0:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
        # A line that begins with the same letters.
        if cn.flags & CONNECTION_STREAM:
            cn.flags &= ~CONNECTION_STREAM
            w.nstreams -= 1
        connection_run(cn)
        return
    done = rdma_stream_request(stream_device(cn), cn.fd, c.rcurr, c.rbytes)
    if done == 0:
        if c.rbytes >= STREAM_REQUEST_MAX or not keep_input(cn):
            connection_end(cn, True)
        elif not cn.flags & CONNECTION_STREAM:
            cn.flags |= CONNECTION_STREAM
            w.nstreams += 1
        return
    if done == 1:
        # The socket lives on in the queue pair: it must leave this epoll set by hand.
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, cn.fd, NULL)
    connection_end(cn, done != 1)


cdef void connection_gone(connection *cn) noexcept nogil:
    """The peer has ended it. What it has sent before is still done."""
    cn.c.close_reason = NORMAL_CLOSE
    if cn.rdma != NULL:
        rdma_conn_finish(cn.rdma)
    connection_end(cn, True)


cdef inline bint payload_follows(connection *cn, bint filled) noexcept nogil:
    """After the machine has run over what was read: whether the payload of its last command is to be read now, straight
    into the item. filled: the read took all it had room for.

    What precedes that is copied out of the read buffer, so where a payload is large little of it is to come there; to
    copy one that the buffer holds costs less than another system call.
    """
    cdef conn *c = &cn.c
    if cn.fd < 0 or cn.flags & (CONNECTION_BLOCKED | CONNECTION_LENT):
        return False
    if c.rlbytes == 0:
        if filled:
            cn.bulk = False
        return False
    cn.bulk = c.roffset + c.rlbytes > READ_BUFFER_SIZE
    return filled


cdef void connection_readable(connection *cn) noexcept nogil:
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef iovec iov[IOV_BATCH]
    cdef char *space
    cdef size_t room, taken = 0
    cdef ssize_t n
    cdef int i, count
    while True:
        if c.rlbytes and c.rbytes == 0:
            count = conn_payload_iov(c, iov, IOV_BATCH)
            room = RECEIVE_SIZE
            for i in range(count):
                if iov[i].iov_len >= room:
                    iov[i].iov_len = room
                    count = i + 1
                    break
                room -= iov[i].iov_len
            if count == 1:
                n = recv(cn.fd, iov[0].iov_base, iov[0].iov_len, 0)
            else:
                n = readv(cn.fd, iov, count)
            if n > 0:
                counter_add(&w.thread.stats.bytes_read, <uint64_t>n)
                conn_payload_received(c, <size_t>n)
                taken += <size_t>n
                if c.rlbytes and taken < RECEIVE_BATCH:
                    # Even if the socket was empty: a sender on another core has been filling it meanwhile, and to sleep
                    # would have it wake this thread.
                    continue
                if c.rlbytes == 0:
                    connection_run(cn)
                return
        else:
            if cn.rbuf != NULL:
                if not make_room(cn):
                    connection_end(cn, True)
                    return
                space = c.rcurr + c.rbytes
                room = cn.rsize - <size_t>(space - cn.rbuf)
            else:
                space = w.rbuf
                room = BULK_READ_SIZE if cn.bulk else READ_BUFFER_SIZE
            n = recv(cn.fd, space, room, 0)
            if n > 0:
                counter_add(&w.thread.stats.bytes_read, <uint64_t>n)
                if cn.rbuf == NULL:
                    c.rcurr = space
                c.rbytes += <size_t>n
                if cn.flags & (CONNECTION_FRESH | CONNECTION_STREAM):
                    if cn.flags & CONNECTION_STREAM or begins_stream(cn, c.rcurr[0]):
                        cn.flags &= ~CONNECTION_FRESH
                        stream_readable(cn)
                        return
                    cn.flags &= ~CONNECTION_FRESH
                connection_run(cn)
                if payload_follows(cn, <size_t>n == room):
                    continue
                return
        if n == 0:
            connection_gone(cn)
            return
        if errno == EINTR:
            continue
        if errno != EAGAIN:
            connection_end(cn, True)
        return


cdef void connection_writable(connection *cn) noexcept nogil:
    cdef int left = connection_flush(cn)
    if left < 0:
        connection_end(cn, True)
    elif left == 1:
        if cn.flags & CONNECTION_CLOSING:
            connection_end(cn, True)
            return
        cn.flags &= ~CONNECTION_BLOCKED
        connection_interest(cn, EPOLLIN)
        connection_run(cn)


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef bint take_device(worker *w, unsigned int transport, rdma_device *device) noexcept nogil:
    """Makes the worker's part of a device. False: errno."""
    cdef epoll_event ev
    cdef rdma_thread *t = rdma_thread_create(device, &w.thread)
    if t == NULL:
        return False
    ev.events = EPOLLIN
    ev.data.ptr = &w.rdma[transport]
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, rdma_thread_fd(t), &ev) != 0:
        rdma_thread_destroy(t)
        return False
    w.rdma[transport] = t
    return True


cdef void give_up_device(worker *w, unsigned int transport, const char *line) noexcept nogil:
    """Ends all connections on a device, and the worker's part of it."""
    cdef rdma_thread *t = w.rdma[transport]
    cdef connection *cn = w.connections
    cdef connection *following
    if t == NULL:
        return
    while cn != NULL:
        following = cn.next
        if cn.rdma != NULL and rdma_conn_thread(cn.rdma) == t:
            connection_rdma_failed(cn, line)
        cn = following
    epoll_ctl(w.epfd, EPOLL_CTL_DEL, rdma_thread_fd(t), NULL)
    rdma_thread_destroy(t)
    w.rdma[transport] = NULL


cdef void change_device(worker *w, worker_change *change) noexcept nogil:
    if change.device == NULL:
        give_up_device(w, change.transport, change.line)
    elif not take_device(w, change.transport, change.device):
        fprintf(stderr, b"RDMA: a worker thread cannot use the device: %s\n", strerror(errno))
    pthread_mutex_lock(&change.lock)
    change.pending -= 1
    if change.pending == 0:
        pthread_cond_signal(&change.done)
    pthread_mutex_unlock(&change.lock)


cdef void cm_open_connection(worker *w, const handover *h) noexcept nogil:
    """Takes a connection of rdma_cm, or rejects it."""
    cdef connection *cn = connection_open(w, h.fd, h.prot, &h.peer, CONNECTION_CM)
    cdef rdma_conn *rc
    if cn == NULL:
        close(h.fd)
        fetch_sub(w.curr_connections, 1)
        return
    rc = rdma_cm_accept(w.rdma, cn, h.fd, &h.request)
    if rc == NULL:
        connection_end(cn, True)
        return
    # Statistics look at what is behind it.
    pthread_mutex_lock(&w.list_lock)
    cn.rdma = rc
    pthread_mutex_unlock(&w.list_lock)


cdef void take_handovers(worker *w) noexcept nogil:
    cdef handover *h
    cdef handover *following
    cdef connection *cn
    cdef connection *next_back
    cdef worker_change *change
    cdef uint64_t count
    if read(w.notify_fd, &count, sizeof(count)) < 0 and errno != EAGAIN:
        return
    pthread_mutex_lock(&w.queue_lock)
    h = w.queue_head
    w.queue_head = NULL
    w.queue_tail = &w.queue_head
    cn = w.given_back
    w.given_back = NULL
    change = w.change
    w.change = NULL
    pthread_mutex_unlock(&w.queue_lock)
    if change != NULL:
        change_device(w, change)
    while cn != NULL:
        next_back = cn.run_next
        connection_returned(cn)
        cn = next_back
    while h != NULL:
        following = h.next
        if h.by_cm:
            cm_open_connection(w, h)
        elif connection_open(w, h.fd, h.prot, &h.peer, CONNECTION_STREAM | CONNECTION_STREAM_ONLY if h.stream_only else
                             CONNECTION_FRESH) == NULL:
            close(h.fd)
            fetch_sub(w.curr_connections, 1)
        free(h)
        h = following


cdef void run_runnable(worker *w) noexcept nogil:
    """One more turn for each connection that gave way; those that give way again wait for the next."""
    cdef connection *cn = w.run_head
    cdef connection *following
    w.run_head = NULL
    w.run_tail = &w.run_head
    while cn != NULL:
        following = cn.run_next
        cn.flags &= ~CONNECTION_RUNNABLE
        if cn.fd >= 0 and not cn.flags & CONNECTION_BLOCKED:
            connection_run(cn)
        cn = following


cdef void free_dead(worker *w) noexcept nogil:
    """Frees ended connections, except those that the run queue still names."""
    cdef connection *cn = w.dead
    cdef connection *following
    w.dead = NULL
    while cn != NULL:
        following = cn.next
        if cn.flags & CONNECTION_RUNNABLE:
            cn.next = w.dead
            w.dead = cn
        else:
            free(cn)
        cn = following


cdef void drop_slow_streams(worker *w) noexcept nogil:
    cdef connection *cn = w.connections
    cdef connection *following
    cdef uint32_t now = store_time(w.thread.store)
    if now == w.streams_checked:
        return
    w.streams_checked = now
    while cn != NULL:
        following = cn.next
        if cn.flags & CONNECTION_STREAM and now - cn.opened > STREAM_REQUEST_SECONDS:
            connection_end(cn, True)
        cn = following


cdef void probe_silent(worker *w) noexcept nogil:
    """Finds out whether the peers of rdma_cm that have been silent are still there. A process that ends says so, a host
    that does not; a TCP connection has keepalive for that."""
    cdef connection *cn = w.connections
    cdef connection *following
    cdef uint32_t now = store_time(w.thread.store)
    if now < w.probes_due:
        return
    w.probes_due = now + PROBE_SECONDS // 3
    while cn != NULL:
        following = cn.next
        if (cn.flags & CONNECTION_CM and cn.rdma != NULL
                and now - max(cn.opened, cn.probed, rdma_conn_last_cmd(cn.rdma)) >= PROBE_SECONDS):
            cn.probed = now
            rdma_conn_probe(cn.rdma)
        cn = following


cdef void close_idle(worker *w) noexcept nogil:
    """Closes connections of TCP and rdma_cm that have been silent for longer than idle_timeout, between commands."""
    cdef uint32_t now = store_time(w.thread.store)
    cdef uint32_t oldest = now
    cdef uint32_t last
    cdef connection *cn = w.connections
    cdef connection *following
    if now < w.idle_due:
        return
    while cn != NULL:
        following = cn.next
        last = cn.c.last_cmd_time
        if cn.rdma != NULL:
            last = max(last, rdma_conn_last_cmd(cn.rdma))
        if ((cn.peer.transport == LOG_TCP or cn.peer.transport == LOG_RDMA)
                and (cn.c.state == conn_new_cmd or cn.c.state == conn_read)):
            if now - last > w.idle_timeout:
                if conn_logs(&cn.c):
                    fprintf(stderr, b"Closing idle fd %d\n", cn.fd)
                counter_add(&w.thread.stats.idle_kicks, 1)
                cn.c.close_reason = IDLE_TIMEOUT_CLOSE
                connection_end(cn, True)
            else:
                oldest = min(oldest, last)
        cn = following
    w.idle_due = oldest + w.idle_timeout + 1


cdef uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef int wait_time(worker *w) noexcept nogil:
    """The timeout of the next epoll_wait, in ms.

    After RDMA work the worker polls for a moment instead of sleeping: a wake-up costs more than most transfers take.
    The moment grows to spin_max while RDMA events come within it, and shrinks when they do not. Those of sockets do not
    prolong it: their peers sleep as well, and may want the core.
    """
    cdef uint64_t now
    if w.run_head != NULL or w.rdma_runnable:
        return 0
    if w.spin_max and w.rdma_recent:
        now = now_ns()
        if w.spin_until == 0:
            w.spin_until = now + w.spin_ns
        if now < w.spin_until:
            # Whoever is to send the next event may be waiting for this very core.
            sched_yield()
            return 0
        w.spin_ns = max(w.spin_ns // 2, w.spin_max // SPIN_FLOOR)
        w.spin_until = 0
        w.rdma_recent = False
    return 1000 if w.nstreams or w.ncm or w.idle_timeout else -1


cdef unsigned int poll_rings(worker *w, int *timeout) noexcept nogil:
    """Looks for what a descriptor does not tell of while the worker polls: a bit for each device with something to do.

    Before the worker sleeps it asks to be woken for that as well; what has come meanwhile makes it stay awake.
    """
    cdef unsigned int found = 0
    cdef unsigned int k
    cdef int _look
    cdef int looks = RING_LOOKS if w.spin_until and w.run_head == NULL else 1
    if w.rdma[TRANSPORT_SOFT_SHM] == NULL:
        return 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] == NULL:
            continue
        if timeout[0] != 0:
            if not rdma_thread_arm(w.rdma[k]):
                continue
            timeout[0] = 0
        for _look in range(looks):
            if rdma_thread_poll(w.rdma[k], False):
                found |= 1 << k
                break
            cpu_relax()
    return found


cdef void *worker_main(void *arg) noexcept nogil:
    cdef worker *w = <worker *>arg
    cdef epoll_event events[MAX_EVENTS]
    cdef connection *cn
    cdef int i, n
    cdef unsigned int k
    cdef int timeout
    cdef unsigned int polled         # bits per device, as are the next and rdma_runnable
    cdef unsigned int rdma_ready
    log_thread_sfd(&w.thread.cur_sfd)
    while not load_acquire(w.stop):
        timeout = wait_time(w)
        polled = poll_rings(w, &timeout)
        n = epoll_wait(w.epfd, events, MAX_EVENTS, timeout)
        rdma_ready = w.rdma_runnable | polled
        for i in range(n):
            if events[i].data.ptr == NULL:
                take_handovers(w)
            elif <void *>&w.rdma[0] <= events[i].data.ptr < <void *>&w.rdma[RDMA_DEVICES]:
                k = <unsigned int>(<rdma_thread **>events[i].data.ptr - &w.rdma[0])
                if w.rdma[k] != NULL:
                    rdma_thread_poll(w.rdma[k], True)
                rdma_ready |= 1 << k
            elif events[i].data.u64 & UDP_TAG:
                udp_ready(<udp_socket *><uintptr_t>(events[i].data.u64 - UDP_TAG))
            else:
                cn = <connection *>events[i].data.ptr
                if cn.fd < 0:
                    continue
                if cn.flags & CONNECTION_CM:
                    if cm_ended(cn.fd) != 0:
                        connection_gone(cn)
                elif cn.flags & CONNECTION_BLOCKED:
                    if events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP):
                        connection_writable(cn)
                elif not cn.flags & CONNECTION_RUNNABLE:
                    connection_readable(cn)
        if rdma_ready:
            if w.spin_until:
                if now_ns() < w.spin_until:
                    w.spin_ns = min(w.spin_ns * 2, w.spin_max)
                w.spin_until = 0
            w.rdma_runnable = 0
            for k in range(<unsigned int>RDMA_DEVICES):
                if rdma_ready >> k & 1 and w.rdma[k] != NULL and rdma_thread_run(w.rdma[k]):
                    w.rdma_runnable |= 1 << k
            w.rdma_recent = True
        if w.run_head != NULL:
            run_runnable(w)
        if w.nstreams:
            drop_slow_streams(w)
        if w.ncm:
            probe_silent(w)
        if w.idle_timeout:
            close_idle(w)
        if w.dead != NULL:
            free_dead(w)
    return NULL


cdef int worker_init(worker *w) noexcept nogil:
    """Makes the descriptors and buffers; `thread`, `devices` and shared pointers are set by the caller. -1: errno."""
    cdef epoll_event ev
    cdef unsigned int i
    w.epfd = epoll_create1(EPOLL_CLOEXEC)
    w.notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    w.rbuf = <char *>malloc(READ_BUFFER_SIZE)
    w.queue_tail = &w.queue_head
    w.run_tail = &w.run_head
    pthread_mutex_init(&w.queue_lock, NULL)
    pthread_mutex_init(&w.list_lock, NULL)
    if w.epfd < 0 or w.notify_fd < 0 or w.rbuf == NULL:
        return -1
    ev.events = EPOLLIN
    ev.data.ptr = NULL
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, w.notify_fd, &ev) != 0:
        return -1
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.devices[i] != NULL and not take_device(w, i, w.devices[i]):
            return -1
    return 0


cdef int worker_add_udp(worker *w, int fd) noexcept nogil:
    """Gives the worker, which has not been started, a UDP socket to serve; it closes it. -1: errno."""
    cdef udp_socket *u = udp_open(&w.thread, w.epfd, fd)
    if u == NULL:
        return -1
    u.next = w.udp
    w.udp = u
    return 0


cdef int worker_start(worker *w) noexcept nogil:
    """Starts the thread. Returns 0 or an errno."""
    cdef int err = pthread_create(&w.id, NULL, worker_main, w)
    if err == 0:
        pthread_setname_np(w.id, b"mc-worker")
    return err


cdef void worker_wake(worker *w) noexcept nogil:
    cdef uint64_t one = 1
    while write(w.notify_fd, &one, sizeof(one)) < 0 and errno == EINTR:
        pass


cdef void enqueue(worker *w, handover *h) noexcept nogil:
    pthread_mutex_lock(&w.queue_lock)
    w.queue_tail[0] = h
    w.queue_tail = &h.next
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


cdef int worker_dispatch(worker *w, int fd, protocol prot, const log_peer *peer, bint stream_only) noexcept nogil:
    """Hands an accepted, non-blocking socket to the worker, which speaks prot on it. Any thread. -1: out of memory, fd
    is still the caller's."""
    cdef handover *h = <handover *>calloc(1, sizeof(handover))
    if h == NULL:
        return -1
    h.fd = fd
    h.prot = prot
    h.stream_only = stream_only
    h.peer = peer[0]
    enqueue(w, h)
    return 0


cdef int worker_dispatch_cm(worker *w, int fd, const rdma_request *request) noexcept nogil:
    cdef handover *h = <handover *>calloc(1, sizeof(handover))
    if h == NULL:
        return -1
    h.fd = fd
    h.prot = w.thread.binding_protocol
    h.by_cm = True
    h.request = request[0]
    h.peer.addr = request.where.peer
    h.peer.transport = LOG_RDMA
    enqueue(w, h)
    return 0


cdef void worker_give_back(connection *cn, bint ended, char *rest, size_t length) noexcept nogil:
    cdef worker *w = cn.w
    cn.ended_by_side = ended
    cn.rest = rest
    cn.rest_length = <uint32_t>length
    pthread_mutex_lock(&w.queue_lock)
    cn.run_next = w.given_back
    w.given_back = cn
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


cdef void worker_change_device(worker *w, worker_change *change) noexcept nogil:
    pthread_mutex_lock(&w.queue_lock)
    w.change = change
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


cdef void worker_destroy(worker *w) noexcept nogil:
    """Ends all connections and frees everything. The thread has been joined, or was never started."""
    cdef handover *h
    cdef unsigned int i
    cdef udp_socket *u
    while w.connections != NULL:
        connection_end(w.connections, True)
    while w.udp != NULL:
        u = w.udp
        w.udp = u.next
        udp_close(u)
    w.run_head = NULL
    while w.dead != NULL:
        w.dead.flags &= ~CONNECTION_RUNNABLE
        cn = w.dead
        w.dead = cn.next
        free(cn)
    while w.queue_head != NULL:
        h = w.queue_head
        w.queue_head = h.next
        close(h.fd)
        free(h)
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[i] != NULL:
            rdma_thread_destroy(w.rdma[i])
            w.rdma[i] = NULL
    conn_thread_release(&w.thread)
    if w.epfd >= 0:
        close(w.epfd)
    if w.notify_fd >= 0:
        close(w.notify_fd)
    free(w.rbuf)
    w.rbuf = NULL
    pthread_mutex_destroy(&w.queue_lock)
    pthread_mutex_destroy(&w.list_lock)
