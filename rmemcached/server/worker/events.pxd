# The epoll data of a worker's descriptors, by which the worker knows the source of an event:
#
#     0                       the worker's queue: a handover has come
#     (device + 1) << 4       the completion channel of a device: no address is so small
#     address | SOFT_EVENT    a queue pair of a software device (verbs/soft.pxd)
#     address | UDP_TAG       a UDP socket (server/udp.pxd)
#     address                 a connection
#
# All addresses come from malloc, and are multiples of 16, so the tags are free.

cdef enum worker_event:
    EVENT_QUEUE
    EVENT_CHANNEL
    EVENT_SOFT
    EVENT_UDP
    EVENT_CONNECTION

cdef enum:
    QUEUE_DATA = 0
    CHANNEL_SHIFT = 4

cdef inline uint64_t channel_data(unsigned int transport) noexcept nogil:
    return <uint64_t>(transport + 1) << CHANNEL_SHIFT

cdef inline unsigned int channel_device(const epoll_event *event) noexcept nogil:
    return <unsigned int>((event.data.u64 >> CHANNEL_SHIFT) - 1)

cdef inline unsigned int channel_bit(const epoll_event *event) noexcept nogil:
    return 1 << channel_device(event)

cdef inline udp_socket *event_udp(const epoll_event *event) noexcept nogil:
    return <udp_socket *><uintptr_t>(event.data.u64 - UDP_TAG)

cdef inline connection *event_connection(const epoll_event *event) noexcept nogil:
    return <connection *>event.data.ptr

cdef inline worker_event event_kind(const epoll_event *event) noexcept nogil:
    if event.data.u64 == QUEUE_DATA:
        return EVENT_QUEUE
    if event.data.u64 & SOFT_EVENT:
        return EVENT_SOFT
    if event.data.u64 >> CHANNEL_SHIFT <= RDMA_DEVICES:
        return EVENT_CHANNEL
    return EVENT_UDP if event.data.u64 & UDP_TAG else EVENT_CONNECTION
