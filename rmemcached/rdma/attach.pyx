"""Gives streams to queue pairs (see attach.pxd)."""

from libc.stdint cimport uint16_t
from libc.string cimport memset, strlen

from rmemcached.rdma.device cimport do_find_waiting_pair, pair_entry
from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH, RDMA_TRANSPORTS, SHM_KEY_LENGTH, SHM_REPLY_KEY, attach_request, get_attach, get_shm_request,
)
from rmemcached.sys.atomics cimport fetch_add
from rmemcached.sys.linux cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, pthread_mutex_lock, pthread_mutex_unlock, send,
)
from rmemcached.verbs.soft cimport (
    soft_iw_accept, soft_iw_options, soft_iw_parse_request, soft_iw_reject, soft_iw_request, soft_shm_attach,
)

# As rdma_stream_request.
ctypedef int (*attach_function)(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil


cdef int iw_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef soft_iw_request request
    cdef soft_iw_options options
    cdef attach_request attach
    cdef pair_entry *pair
    cdef int whole = soft_iw_parse_request(data, received, &request)
    cdef int done = -1
    if whole == 0:
        return 0
    if whole > 0 and request.private_length == ATTACH_LENGTH:
        get_attach(request.private_data, &attach)
        memset(&options, 0, sizeof(options))
        options.crc = dev.limits.crc
        options.ird = <uint16_t>dev.limits.ird
        options.ord = <uint16_t>dev.limits.ord
        pthread_mutex_lock(&dev.lock)
        pair = do_find_waiting_pair(dev, &attach)
        if pair != NULL and soft_iw_accept(pair.qp, fd, data, received, &options) == 0:
            pair.attached = True
            done = 1
        pthread_mutex_unlock(&dev.lock)
    if done < 0 and whole > 0:
        soft_iw_reject(fd, data, received, NULL, 0)
    return done


cdef int shm_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef const char *refusal = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
    cdef attach_request attach
    cdef pair_entry *pair
    cdef int done = get_shm_request(data, received, &attach)
    if done <= 0:
        return done
    done = -1
    pthread_mutex_lock(&dev.lock)
    pair = do_find_waiting_pair(dev, &attach)
    # The reply comes first: what follows it on the socket is the queue pairs'.
    if (pair != NULL and send(fd, SHM_REPLY_KEY, SHM_KEY_LENGTH, MSG_NOSIGNAL | MSG_DONTWAIT) == SHM_KEY_LENGTH
            and soft_shm_attach(pair.qp, fd, <uint16_t>dev.limits.ird, <uint16_t>dev.limits.ord) == 0):
        pair.attached = True
        done = 1
    pthread_mutex_unlock(&dev.lock)
    if pair == NULL:
        send(fd, refusal, strlen(refusal), MSG_NOSIGNAL | MSG_DONTWAIT)
    return done


# By transport. The queue pairs of verbs get no stream.
cdef attach_function[RDMA_TRANSPORTS] attach_functions = [iw_request, shm_request, NULL]


cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil:
    cdef int done = attach_functions[dev.transport](dev, fd, data, received)
    if done < 0:
        fetch_add(&dev.refused_streams, 1)
    return done
