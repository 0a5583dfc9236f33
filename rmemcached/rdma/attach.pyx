# The stream that is given to a queue pair.


cdef inline unsigned int token_bucket(const uint8_t *token) noexcept nogil:
    return (<unsigned int>token[0] << 8 | token[1]) % TOKEN_BUCKETS


cdef rdma_conn *token_owner(rdma_device *dev, const attach_request *attach) noexcept nogil:
    """The connection whose queue pair number and token these are, if it still waits for its stream. dev.lock is
    held."""
    cdef rdma_conn *rc = dev.tokens[token_bucket(attach.token)]
    while rc != NULL and memcmp(rc.token, attach.token, RDMA_TOKEN_LENGTH) != 0:
        rc = rc.token_next
    return rc if rc != NULL and rc.qp.qp_num == attach.qpn and not rc.attached else NULL


cdef int iw_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef soft_iw_request req
    cdef soft_iw_options options
    cdef attach_request attach
    cdef rdma_conn *rc
    cdef int whole = soft_iw_parse_request(data, received, &req)
    cdef int done = -1
    if whole == 0:
        return 0
    if whole > 0 and req.private_length == ATTACH_LENGTH:
        get_attach(req.private_data, &attach)
        pthread_mutex_lock(&dev.lock)
        rc = token_owner(dev, &attach)
        if rc != NULL:
            memset(&options, 0, sizeof(options))
            options.crc = dev.limits.crc
            options.ird = <uint16_t>dev.limits.ird
            options.ord = <uint16_t>dev.limits.ord
            if soft_iw_accept(rc.qp, fd, data, received, &options) == 0:
                rc.attached = True
                done = 1
        pthread_mutex_unlock(&dev.lock)
    if done < 0 and whole > 0:
        soft_iw_reject(fd, data, received, NULL, 0)
    return done


cdef int shm_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef const char *refusal = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
    cdef attach_request attach
    cdef rdma_conn *rc
    cdef int done = get_shm_request(data, received, &attach)
    if done <= 0:
        return done
    done = -1
    pthread_mutex_lock(&dev.lock)
    rc = token_owner(dev, &attach)
    # The reply comes first: what follows it is the queue pairs'.
    if (rc != NULL and send(fd, SHM_REPLY_KEY, SHM_KEY_LENGTH, MSG_NOSIGNAL | MSG_DONTWAIT) == SHM_KEY_LENGTH
            and soft_shm_attach(rc.qp, fd, <uint16_t>dev.limits.ird, <uint16_t>dev.limits.ord) == 0):
        rc.attached = True
        done = 1
    pthread_mutex_unlock(&dev.lock)
    if rc == NULL:
        send(fd, refusal, strlen(refusal), MSG_NOSIGNAL | MSG_DONTWAIT)
    return done


cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef int done
    if dev.transport == TRANSPORT_SOFT_SHM:
        done = shm_request(dev, fd, data, received)
    else:
        done = iw_request(dev, fd, data, received)
    if done < 0:
        fetch_add(&dev.refused_streams, 1)
    return done
