# soft_shm: a queue pair's stream over a UNIX socket and two rings: attachment, records, waiting, its end.


cdef int shm_memfd(const char *name, size_t size) noexcept nogil:
    """A memfd of this size, not yet sealed. -1 with errno."""
    cdef int error
    cdef int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    if fd >= 0 and ftruncate(fd, <long> size) < 0:
        error = errno.errno
        close(fd)
        errno.errno = error
        return -1
    return fd


cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil:
    """Memory that only this mapping can change. NULL with errno. *fd is what others map it with."""
    cdef int error
    cdef void *memory
    fd[0] = shm_memfd(name, size)
    if fd[0] < 0:
        return NULL
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd[0], 0)
    if memory == MAP_FAILED or fcntl(
            fd[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0:
        error = errno.errno
        if memory != MAP_FAILED:
            munmap(memory, size)
        close(fd[0])
        fd[0] = -1
        errno.errno = error
        return NULL
    return memory


cdef void *shm_map(int fd, size_t size, int protection) noexcept nogil:
    """Maps what a peer sent. NULL unless no access to it can end in SIGBUS: memory that cannot shrink, of this size."""
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef struct_stat status
    cdef struct_statfs system
    cdef void *memory
    if seals < 0 or not seals & F_SEAL_SHRINK or fstat(fd, &status) < 0 or fstatfs(fd, &system) < 0:
        return NULL
    # Huge pages, which have another file system, may not be there when they are touched.
    if system.f_type != TMPFS_MAGIC or status.st_size < 0 or <uint64_t> status.st_size < size:
        return NULL
    memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0)
    return NULL if memory == MAP_FAILED else memory


cdef bint shm_post(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil:
    """Sends a record. False: not now."""
    cdef shm_stream *shm = qp.shm
    cdef iovec iov
    cdef msghdr message
    cdef control_space control
    cdef cmsghdr *header
    cdef ssize_t n
    memset(&message, 0, sizeof(message))
    iov.iov_base = <void *> record
    iov.iov_len = SHM_RECORD_SIZE
    message.msg_iov = &iov
    message.msg_iovlen = 1
    if nfds:
        memset(&control, 0, sizeof(control))
        message.msg_control = &control
        message.msg_controllen = CMSG_SPACE(nfds * sizeof(int))
        header = CMSG_FIRSTHDR(&message)
        header.cmsg_level = SOL_SOCKET
        header.cmsg_type = SCM_RIGHTS
        header.cmsg_len = CMSG_LEN(nfds * sizeof(int))
        memcpy(CMSG_DATA(header), fds, nfds * sizeof(int))
    while True:
        n = sendmsg(qp.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            break
    if n != SHM_RECORD_SIZE:
        return False
    shm.records_sent += 1
    store_release(&shm.ours.records, shm.records_sent)
    return True


cdef void shm_drop_fds(shm_stream *shm) noexcept nogil:
    while shm.nfds:
        shm.nfds -= 1
        close(shm.fds[shm.nfds])


cdef void shm_keep_fds(shm_stream *shm, msghdr *message) noexcept nogil:
    """Takes the descriptors of a message; more than a record can have are closed."""
    cdef cmsghdr *header = CMSG_FIRSTHDR(message)
    cdef size_t i, count
    cdef int fd
    while header != NULL:
        if header.cmsg_level == SOL_SOCKET and header.cmsg_type == SCM_RIGHTS:
            count = (header.cmsg_len - CMSG_LEN(0)) // sizeof(int)
            for i in range(count):
                memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int))
                if shm.nfds < 2:
                    shm.fds[shm.nfds] = fd
                    shm.nfds += 1
                else:
                    close(fd)
        header = CMSG_NXTHDR(message, header)


cdef void shm_socket(soft_qp *qp) noexcept nogil:
    """Reads all records that are there. qp.lock is held."""
    cdef shm_stream *shm = qp.shm
    cdef iovec iov
    cdef msghdr message
    cdef control_space control
    cdef ssize_t n
    cdef int32_t ahead
    while not shm.eof and not shm.broken:
        ahead = shm_records_ahead(shm) if shm.theirs != NULL else 0
        memset(&message, 0, sizeof(message))
        iov.iov_base = <uint8_t *> &shm.record + shm.record_have
        iov.iov_len = SHM_RECORD_SIZE - shm.record_have
        message.msg_iov = &iov
        message.msg_iovlen = 1
        message.msg_control = &control
        message.msg_controllen = sizeof(control)
        n = recvmsg(qp.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
        if n < 0 and errno.errno == EINTR:
            continue
        if n < 0 and errno.errno == EAGAIN:
            # A record is sent before it is counted.
            shm.broken = ahead > 0
            return
        if n <= 0:
            shm.eof = True
            return
        shm_keep_fds(shm, &message)
        shm.record_have += <uint32_t> n
        if shm.record_have == SHM_RECORD_SIZE:
            shm.record_have = 0
            relaxed_store(&shm.records_seen, shm.records_seen + 1)
            if not shm_take(qp, &shm.record):
                shm.broken = True
            shm_drop_fds(shm)


cdef bint shm_take(soft_qp *qp, const shm_record *record) noexcept nogil:
    """What a record says. False: no correct peer says so."""
    cdef shm_stream *shm = qp.shm
    if record.kind == SHM_HELLO:
        return shm_hello(qp, record)
    if shm.theirs == NULL:
        return False
    if record.kind == SHM_BELL:
        shm.wished = False
        return True
    if record.kind == SHM_OFFER and shm.nfds == 1:
        return shm_accept_offer(shm, record)
    return False


cdef bint shm_hello(soft_qp *qp, const shm_record *record) noexcept nogil:
    cdef shm_stream *shm = qp.shm
    cdef void *page
    cdef void *registry
    if (shm.theirs != NULL or shm.nfds != 2 or record.version != SHM_VERSION or record.ring_size != SHM_RING_SIZE
            or qp.phase != STREAM_REQUESTED):
        return False
    page = shm_map(shm.fds[0], SHM_SIZE, PROT_READ)
    if page == NULL:
        return False
    registry = shm_map(shm.fds[1], SHM_REGISTRY_SIZE, PROT_READ)
    if registry == NULL or not stream_open(qp):
        munmap(page, SHM_SIZE)
        if registry != NULL:
            munmap(registry, SHM_REGISTRY_SIZE)
        return False
    shm.their_ring = <const uint8_t *> page + SHM_RING_AT
    shm.registry = <const shm_generation *> registry
    # Last: it may be looked at from now on.
    store_release_pointer(&shm.theirs, page)
    if qp.ord > record.ird:
        qp.ord = record.ird
    qp.tx_gate = True
    return True


cdef void shm_unmap(shm_stream *shm) noexcept nogil:
    """Gives back the pages, rings and registry. No thread looks at them any more."""
    if shm.ours != NULL:
        munmap(shm.ours, SHM_SIZE)
    if shm.theirs != NULL:
        munmap(<void *> shm.theirs, SHM_SIZE)
        munmap(<void *> shm.registry, SHM_REGISTRY_SIZE)
    shm.ours = NULL
    shm.theirs = NULL


cdef void shm_close(soft_qp *qp) noexcept nogil:
    """The stream ends. Its memory stays until the next attachment, or the queue pair's end: it may be looked at."""
    cdef shm_stream *shm = qp.shm
    store_release(&shm.ours.closed, 1)
    shm_drop_fds(shm)
    shm_close_windows(shm)
    shm_release(shm)


cdef int soft_shm_attach(ibv_qp *ibqp, int fd, uint16_t ird, uint16_t ord) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef soft_context *context = qp.context
    cdef shm_record hello
    cdef shm_stream *shm
    cdef int fds[2]
    cdef int family = 0
    cdef int kind = 0
    cdef socklen_t size = sizeof(int)
    cdef int i, error
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) < 0
            or getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) < 0):
        return -1
    if family != AF_UNIX or kind != SOCK_STREAM:
        errno.errno = EINVAL
        return -1
    if stream_begin(qp, True) < 0:
        return -1
    for i in range(qp.ndomains):
        if qp.links[i].domain == NULL:
            domain_add(qp.domains[i], &qp.links[i], qp)
        pthread_mutex_lock(&qp.domains[i].progress)
        shm_unheat(qp.domains[i], &qp.links[i])
        pthread_mutex_unlock(&qp.domains[i].progress)
    # Nobody looks at the rings of an earlier stream now.
    pthread_mutex_lock(&qp.lock)
    if qp.shm == NULL:
        qp.shm = <shm_stream *> malloc(sizeof(shm_stream))
        if qp.shm == NULL:
            return stream_undo(qp, ENOMEM)
    else:
        shm_unmap(qp.shm)
    shm = qp.shm
    memset(shm, 0, sizeof(shm_stream))
    if qp.phase != STREAM_ATTACHING:
        return stream_undo(qp, EINVAL)
    shm.ours = <shm_page *> shm_make(b"rmemcached ring", SHM_SIZE, &fds[0])
    if shm.ours == NULL:
        return stream_undo(qp, errno.errno)
    shm.our_ring = <uint8_t *> shm.ours + SHM_RING_AT
    fds[1] = context.registry_fd
    qp.ird = depth(ird, qp.attr.max_dest_rd_atomic)
    qp.ord = depth(ord, qp.attr.max_rd_atomic)
    memset(&hello, 0, sizeof(hello))
    hello.kind = SHM_HELLO
    hello.version = SHM_VERSION
    hello.ring_size = SHM_RING_SIZE
    hello.ird = qp.ird
    hello.ord = qp.ord
    error = 0
    if not stream_buffers(qp):
        error = ENOMEM
    relaxed_store(&qp.fd, fd)
    qp.deadline = monotonic() + START_SECONDS * <int64_t> 1000000000
    qp.phase = STREAM_REQUESTED
    for i in range(qp.ndomains):
        if not error and not stream_watch(qp, &qp.links[i]):
            error = errno.errno
    if not error and not shm_post(qp, &hello, fds, 2):
        error = errno.errno
    close(fds[0])
    if error:
        return stream_undo(qp, error)
    pthread_mutex_unlock(&qp.lock)
    return 0


cdef void shm_progress(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil:
    """Does what the stream allows now; `socket`: its socket is readable. The progress lock of `domain` is held."""
    cdef shm_stream *shm
    cdef uint64_t word
    cdef bint closing
    pthread_mutex_lock(&qp.lock)
    shm = qp.shm
    while qp.fd >= 0:
        if socket or (shm.theirs != NULL and shm_records_ahead(shm) > 0):
            shm_socket(qp)
        socket = False
        closing = shm.eof
        if qp.phase == STREAM_OPEN:
            closing = closing or load_acquire(&shm.theirs.closed) != 0
            if not qp_receive(qp):
                break
            if tx_pending(qp):
                qp_transmit(qp)
                if qp.fd < 0:
                    break
            # What the peer had written before its end is received.
            closing = closing and not shm_there(shm, &word)
        if closing or shm.broken:
            qp_lost(qp)
            break
        if qp.phase != STREAM_OPEN or not shm_sleepy(qp) or not shm_wish(qp):
            break
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, domain)


cdef void shm_heat(soft_domain *domain, soft_link *link) noexcept nogil:
    """From now on the queue pair's ring is looked at. The progress lock is held, as in the next functions."""
    link.idle = 0
    if link.hot:
        return
    link.hot_prev = NULL
    link.hot_next = domain.hot
    if link.hot_next != NULL:
        link.hot_next.hot_prev = link
    relaxed_store_pointer(&domain.hot, link)
    domain.nhot += 1
    relaxed_store(&link.hot, True)


cdef void shm_unheat(soft_domain *domain, soft_link *link) noexcept nogil:
    if not link.hot:
        return
    if link.hot_prev != NULL:
        link.hot_prev.hot_next = link.hot_next
    else:
        relaxed_store_pointer(&domain.hot, link.hot_next)
    if link.hot_next != NULL:
        link.hot_next.hot_prev = link.hot_prev
    domain.nhot -= 1
    relaxed_store(&link.hot, False)


cdef void shm_cool(soft_domain *domain, soft_link *link) noexcept nogil:
    """Waits for the queue pair's bell instead of looking at its ring, unless there is something to do already."""
    cdef soft_qp *qp = link.qp
    cdef bint busy
    shm_unheat(domain, link)
    pthread_mutex_lock(&qp.lock)
    busy = qp.fd >= 0 and qp.phase == STREAM_OPEN and shm_wish(qp)
    pthread_mutex_unlock(&qp.lock)
    if busy:
        shm_heat(domain, link)
        relaxed_store(&domain.work, True)


cdef void shm_arm(soft_domain *domain) noexcept nogil:
    """Makes the domain's descriptor tell of everything that comes from now on."""
    cdef soft_link *link = domain.hot
    cdef soft_link *following
    while link != NULL:
        following = link.hot_next
        shm_cool(domain, link)
        link = following


cdef bint shm_domain_poll(soft_domain *domain) noexcept nogil:
    """Looks at the sockets: bells, ends, introductions. Whether there were any."""
    cdef epoll_event ready[PROGRESS_EVENTS]
    cdef soft_qp *qp
    cdef bint found = False
    cdef int i, n
    n = epoll_wait(domain.epoll_fd, ready, PROGRESS_EVENTS, 0)
    for i in range(n):
        if ready[i].data.u64 == 0:
            continue
        found = True
        qp = <soft_qp *> <uintptr_t> (ready[i].data.u64 & ~<uint64_t> EVENT_TIMER)
        if ready[i].data.u64 & EVENT_TIMER:
            qp_deadline(qp, domain)
        else:
            shm_heat(domain, &qp.links[0] if qp.domains[0] == domain else &qp.links[1])
            shm_progress(qp, True, domain)
    return found


cdef bint shm_domain_progress(soft_domain *domain, bint waits) noexcept nogil:
    """Progress of a domain of soft_shm; `waits`: for a caller that waits next. Sockets are looked at now and then.

    Whether there was something to do.
    """
    cdef soft_link *link = domain.hot
    cdef soft_link *following
    cdef bint all = waits
    cdef bint found = False
    cdef int64_t time
    relaxed_store(&domain.work, False)
    while link != NULL:
        following = link.hot_next
        if <int> relaxed_load(&link.qp.fd) < 0:
            shm_unheat(domain, link)
        elif shm_ready(link.qp):
            link.idle = 0
            found = True
            shm_progress(link.qp, False, domain)
        elif domain.nhot > SHM_FEW:
            link.idle += 1
            if link.idle >= SHM_IDLE:
                shm_cool(domain, link)
        link = following
    domain.turns += 1
    if domain.hot == NULL:
        all = True
    elif domain.turns >= SHM_TURNS:
        domain.turns = 0
        time = monotonic()
        if time - domain.checked >= (SHM_CHECK_BELLS if domain.nhot < domain.nlinks else SHM_CHECK_ENDS):
            domain.checked = time
            all = True
    if all:
        found |= shm_domain_poll(domain)
    # Who has armed a queue may wait next.
    if (domain.event_fd >= 0 and domain.hot != NULL and not relaxed_load(&domain.polling)
            and (waits or relaxed_load(&domain.armed))):
        shm_arm(domain)
    return found
