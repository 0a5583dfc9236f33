# soft_shm: records through the socket; see record.pxd.

# As many descriptors as a message can have (the kernel's SCM_MAX_FD): it would close those for which there is no room,
# in this thread.
cdef extern from *:
    """
    typedef union {
        struct cmsghdr header;
        char space[CMSG_SPACE(253 * sizeof(int))];
    } rmc_control_space;
    """
    ctypedef struct control_space "rmc_control_space":
        pass


cdef bint shm_send_record(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef iovec iov
    cdef msghdr message
    cdef control_space control
    cdef cmsghdr *header
    cdef ssize_t n
    assert_held(&qp.lock)
    memset(&message, 0, sizeof(message))
    iov.iov_base = <void *> record
    iov.iov_len = SHM_RECORD_SIZE
    message.msg_iov = &iov
    message.msg_iovlen = 1
    if nfds:
        memset(&control, 0, CMSG_SPACE(nfds * sizeof(int)))
        message.msg_control = &control
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


cdef bint shm_keep_fds(soft_qp *qp, msghdr *message) noexcept nogil:
    """Takes the descriptors of a message. False: more came than a record can have."""
    cdef shm_reader *reader = &shm_of(qp).reader
    cdef bint fit = True
    cdef cmsghdr *header = CMSG_FIRSTHDR(message)
    cdef size_t i, count
    cdef int fd
    while header != NULL:
        if header.cmsg_level == SOL_SOCKET and header.cmsg_type == SCM_RIGHTS:
            count = (header.cmsg_len - CMSG_LEN(0)) // sizeof(int)
            for i in range(count):
                memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int))
                if reader.nfds < SHM_FDS:
                    reader.fds[reader.nfds] = fd
                    reader.nfds += 1
                else:
                    closer_take_fd(shm_context_of(qp.context), fd)
                    fit = False
        header = CMSG_NXTHDR(message, header)
    return fit


cdef int32_t shm_records_ahead(const shm_stream *shm) noexcept nogil:
    return <int32_t> (<uint32_t> load_acquire(&shm.theirs.records) - <uint32_t> relaxed_load(&shm.records_seen))


cdef bint shm_may_read(soft_qp *qp, msghdr *message) noexcept nogil:
    """Looks at what has come, if no descriptor may be received now. False: it has some. Else only that is to be
    read."""
    cdef ssize_t n
    if closer_has_room(shm_context_of(qp.context)):
        return True
    # Without a place for descriptors none is taken, and none is closed: they stay with what was not read.
    message.msg_control = NULL
    message.msg_controllen = 0
    n = recvmsg(qp.stream.fd, message, MSG_DONTWAIT | MSG_PEEK)
    if n > 0:
        message.msg_iov.iov_len = <size_t> n
    return not (n > 0 and message.msg_flags & MSG_CTRUNC)


cdef void shm_read_records(soft_qp *qp, uint32_t *share) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_reader *reader = &shm.reader
    cdef iovec iov
    cdef msghdr message
    cdef control_space control
    cdef ssize_t n
    cdef int32_t ahead
    assert_held(&qp.lock)
    while share[0] and not shm.eof and not shm.broken:
        if shm.arrival.looking:
            # What comes behind the region waits until all of it was looked at.
            return
        if not closer_keeps_up(shm_context_of(qp.context), shm.closing, shm.nclosing):
            # The peer passes memory faster than it can be given back: what it sends stays in the socket.
            return
        share_spend(share, WORK_CALL)
        ahead = shm_records_ahead(shm) if shm.theirs != NULL else 0
        memset(&message, 0, sizeof(message))
        iov.iov_base = <uint8_t *> &reader.record + reader.have
        iov.iov_len = SHM_RECORD_SIZE - reader.have
        message.msg_iov = &iov
        message.msg_iovlen = 1
        if not shm_may_read(qp, &message):
            # Those of many peers that have just left are soon closed; what waits for ever is not.
            if closer_is_stuck(shm_context_of(qp.context)):
                shm.broken = b"too many descriptors wait to be closed"
            return
        message.msg_control = &control
        message.msg_controllen = sizeof(control)
        n = recvmsg(qp.stream.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
        if n < 0 and errno.errno == EINTR:
            continue
        if n < 0 and errno.errno == EAGAIN:
            # A peer sends a record before it counts it.
            if ahead > 0:
                shm.broken = b"records are counted that were not sent"
            return
        if n <= 0:
            shm.eof = True
            return
        if not shm_keep_fds(qp, &message):
            shm.broken = b"more descriptors came than a record has"
            return
        reader.lost_fds |= message.msg_flags & MSG_CTRUNC != 0
        reader.have += <uint32_t> n
        if reader.have == SHM_RECORD_SIZE:
            reader.have = 0
            relaxed_store(&shm.records_seen, shm.records_seen + 1)
            if not shm_handle_record(qp, &reader.record, share) and shm.broken == NULL:
                shm.broken = b"a record came that no correct peer sends"
            shm_drop_fds(qp)


cdef bint shm_handle_record(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil:
    """Does what a record says. False: no correct peer sends it."""
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
