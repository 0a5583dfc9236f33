"""See _queue_events.pxd."""

from rmemcached.client.transport._devices cimport device_lost
from rmemcached.sys.atomics cimport load_acquire, store_release
from rmemcached.sys.linux cimport POLLIN, poll, pollfd, pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.verbs.soft cimport soft_qp_written
from rmemcached.verbs.verbs cimport ibv_req_notify_cq


cdef list queue_descriptors(QueuePair queue):
    cdef list found = [queue.channel.fd, queue.fd]
    if not queue.soft:
        found += [queue.device.alarm, queue.port.context.async_fd]
    return found


cdef bint queue_arm(QueuePair queue, Stream s, lane_state *lane) noexcept nogil:
    cdef int n
    queue.take_event()
    if ibv_req_notify_cq(queue.cq, 0) != 0:
        return False
    # A later completion makes an event; earlier completions are found now.
    pthread_mutex_lock(&queue.lock)
    n = queue.poll_locked(s, lane)
    pthread_mutex_unlock(&queue.lock)
    return n != 0


cdef bint queue_lives(QueuePair queue) noexcept nogil:
    cdef pollfd waiting
    waiting.fd = queue.fd
    waiting.events = POLLIN
    if poll(&waiting, 1, 0) > 0 and not queue.look_at_lifeline():
        store_release(&queue.failed, True)
        return False
    if not queue.soft and device_lost(queue.device):
        store_release(&queue.failed, True)
        return False
    return not (queue.by_cm and load_acquire(&queue.lifeline_ended))


cdef bint queue_ended(QueuePair queue) noexcept nogil:
    return queue.peer_has_ended()


cdef uint64_t queue_written(QueuePair queue) noexcept nogil:
    cdef uint64_t found = 0
    pthread_mutex_lock(&queue.lock)
    if queue.soft and queue.qp != NULL:
        found = soft_qp_written(queue.qp)
    pthread_mutex_unlock(&queue.lock)
    return found
