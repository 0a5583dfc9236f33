# soft_shm: records through the socket; see record.pxd.

cdef enum:
    # The work of reading a record from an untrusted peer: two system calls. The peek walks over the socket's whole
    # content (in Linux), and the read may wake up a peer whose socket was full.
    WORK_RECORD = 64 << 10
    CONTROL_WORDS = 2 + SHM_FDS      # of 8 bytes: a header has two, and a descriptor is shorter than one


cdef bint shm_send_record(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef iovec iov
    cdef msghdr message
    cdef uint64_t control[CONTROL_WORDS]
    cdef cmsghdr *header
    cdef ssize_t n
    assert_held(&qp.lock)
    memset(&message, 0, sizeof(message))
    iov.iov_base = <void *> record
    iov.iov_len = SHM_RECORD_SIZE
    message.msg_iov = &iov
    message.msg_iovlen = 1
    if nfds:
        assert_that(CMSG_SPACE(nfds * sizeof(int)) <= sizeof(control))
        memset(control, 0, sizeof(control))
        message.msg_control = control
        message.msg_controllen = CMSG_SPACE(nfds * sizeof(int))
        header = CMSG_FIRSTHDR(&message)
        header.cmsg_level = SOL_SOCKET
        header.cmsg_type = SCM_RIGHTS
        header.cmsg_len = CMSG_LEN(nfds * sizeof(int))
        memcpy(CMSG_DATA(header), fds, nfds * sizeof(int))
    while True:
        n = sendmsg(qp.stream.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            break
    if n != SHM_RECORD_SIZE:
        return False
    shm.records_sent += 1
    store_release(&shm.ours.records, shm.records_sent)
    return True


cdef void shm_close_passed(soft_qp *qp, int fd) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef uint64_t number = closer_take_fd(shm_context_of(qp.context), fd)
    assert_held(&qp.lock)
    if number:
        shm.closing[shm.nclosing % CLOSER_EACH] = number
        shm.nclosing += 1


cdef void shm_drop_fds(soft_qp *qp) noexcept nogil:
    cdef shm_reader *reader = &shm_of(qp).reader
    while reader.nfds:
        reader.nfds -= 1
        shm_close_passed(qp, reader.fds[reader.nfds])
    reader.lost_fds = False


cdef void shm_close_mapped(shm_reader *reader) noexcept nogil:
    while reader.nfds:
        reader.nfds -= 1
        close(reader.fds[reader.nfds])


cdef uint32_t shm_keep_fds(shm_reader *reader, msghdr *message, shm_context *shared) noexcept nogil:
    """Takes the descriptors of a message, up to a record's number. Returns the number received."""
    cdef cmsghdr *header = CMSG_FIRSTHDR(message)
    cdef uint32_t came = 0
    cdef size_t i, count
    cdef int fd
    while header != NULL:
        if header.cmsg_level == SOL_SOCKET and header.cmsg_type == SCM_RIGHTS:
            count = (header.cmsg_len - CMSG_LEN(0)) // sizeof(int)
            for i in range(count):
                memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int))
                came += 1
                if reader.nfds < SHM_FDS:
                    reader.fds[reader.nfds] = fd
                    reader.nfds += 1
                else:
                    closer_take_fd(shared, fd)
        header = CMSG_NXTHDR(message, header)
    return came


cdef int32_t shm_records_ahead(const shm_stream *shm) noexcept nogil:
    """The number of unread records already counted by the peer. Negative while a record is sent and not yet counted."""
    return <int32_t> (<uint32_t> load_acquire(&shm.theirs.records) - <uint32_t> relaxed_load(&shm.records_seen))


cdef bint shm_may_read(const shm_stream *shm) noexcept nogil:
    return shm_records_ahead(shm) > 0 and not load_acquire(&shm.hold.held)


cdef ssize_t shm_receive_record(soft_qp *qp, int flags) noexcept nogil:
    """recvmsg into the missing part of the next record. The reader keeps the received descriptors."""
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_reader *reader = &shm.reader
    cdef int before = reader.nfds
    cdef uint32_t came
    cdef iovec iov
    cdef msghdr message
    cdef uint64_t control[CONTROL_WORDS]
    cdef ssize_t n
    memset(&message, 0, sizeof(message))
    iov.iov_base = <uint8_t *> &reader.record + reader.have
    iov.iov_len = SHM_RECORD_SIZE - reader.have
    message.msg_iov = &iov
    message.msg_iovlen = 1
    message.msg_control = control
    message.msg_controllen = CMSG_LEN(SHM_FDS * sizeof(int))
    while True:
        n = recvmsg(qp.stream.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags)
        if n >= 0 or errno.errno != EINTR:
            break
    if n <= 0:
        return n
    came = shm_keep_fds(reader, &message, shm_context_of(qp.context))
    if message.msg_flags & MSG_CTRUNC and came < SHM_FDS:
        reader.lost_fds = True
    elif message.msg_flags & MSG_CTRUNC or before + <int> came > SHM_FDS:
        shm.broken = b"more descriptors came than a record has"
    return n


cdef void shm_close_seen(shm_reader *reader, int kept) noexcept nogil:
    """Closes descriptors of a message still in the socket. The message keeps its own references."""
    while reader.nfds > kept:
        reader.nfds -= 1
        close(reader.fds[reader.nfds])


cdef ssize_t shm_receive_guarded(soft_qp *qp) noexcept nogil:
    """shm_receive_record for an untrusted peer: this thread never closes the last reference to a file of the peer.
    EBUSY: the caller must not read a record now.

    The system closes received descriptors for which recvmsg has no room, or this process no number left. So this
    function first peeks at the message, which gives this process descriptors of its own, and then receives the message
    without any: the references given up by the system then are not the last. Where closing must not happen in this
    thread, the message stays in the socket, with all its descriptors.
    """
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_reader *reader = &shm.reader
    cdef int before = reader.nfds
    cdef iovec iov
    cdef msghdr message
    cdef ssize_t n = shm_receive_record(qp, MSG_PEEK)
    if n <= 0:
        return n
    if reader.lost_fds or shm.broken != NULL:
        shm_close_seen(reader, before)
        if shm.broken == NULL and shm.theirs == NULL:
            shm.broken = b"this process has no descriptors left"
        elif shm.broken == NULL:
            reader.lost_fds = False
            closer_hold(qp, True)
        errno.errno = EBUSY
        return -1
    memset(&message, 0, sizeof(message))
    iov.iov_base = <uint8_t *> &reader.record + reader.have
    iov.iov_len = <size_t> n
    message.msg_iov = &iov
    message.msg_iovlen = 1
    while recvmsg(qp.stream.fd, &message, MSG_DONTWAIT) < 0:
        if errno.errno != EINTR:
            return -1
    # The peek shows the descriptors of the next message with descriptors, perhaps not of the message just received.
    if not message.msg_flags & MSG_CTRUNC:
        shm_close_seen(reader, before)
    return n


cdef void shm_read_records(soft_qp *qp, uint32_t *share) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_reader *reader = &shm.reader
    cdef bint guarded = closer_runs(shm_context_of(qp.context))
    cdef ssize_t n
    cdef int32_t ahead
    assert_held(&qp.lock)
    while share[0] and not shm.eof and not shm.broken and not load_acquire(&shm.hold.held):
        if shm.arrival.looking:
            # Records behind the region wait until the whole region was examined.
            return
        if not closer_keeps_up(qp) and closer_hold(qp, False):
            # The peer passes memory faster than this process can close it: new records stay in the socket.
            return
        share_spend(share, WORK_RECORD if guarded else WORK_CALL)
        ahead = shm_records_ahead(shm) if shm.theirs != NULL else 0
        n = shm_receive_guarded(qp) if guarded else shm_receive_record(qp, 0)
        if shm.broken or n < 0 and errno.errno == EBUSY:
            return
        if n < 0 and errno.errno == EAGAIN:
            # A peer sends a record before it counts the record.
            if ahead > 0:
                shm.broken = b"records are counted that were not sent"
            return
        if n <= 0:
            shm.eof = True
            return
        reader.have += <uint32_t> n
        if reader.have == SHM_RECORD_SIZE:
            reader.have = 0
            relaxed_store(&shm.records_seen, shm.records_seen + 1)
            if not shm_handle_record(qp, &reader.record, share) and shm.broken == NULL:
                shm.broken = b"a record came that no correct peer sends"
            shm_drop_fds(qp)


cdef bint shm_handle_record(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil:
    """Carries out a record. False: no correct peer sends it."""
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    if record.kind == SHM_HELLO:
        return shm_hello(qp, record)
    if shm.theirs == NULL:
        return False
    if record.kind != SHM_OFFER and (shm.reader.nfds or shm.reader.lost_fds):
        return False
    if record.kind == SHM_WAKEUP:
        shm.wakeup_pending = False
        return True
    if record.kind == SHM_ANSWER:
        return shm_offer_answered(qp, record)
    if record.kind == SHM_SEALED:
        return shm_offer_sealed(qp, record, share)
    if record.kind != SHM_OFFER:
        return False
    if shm.reader.lost_fds:
        shm_decline_offer(qp, record, share)
        return True
    return shm.reader.nfds == 1 and shm_accept_offer(qp, record, share)
