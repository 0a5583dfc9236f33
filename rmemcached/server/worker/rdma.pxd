# The worker's part of the RDMA devices: taking a device, giving it up, and polling it. The worker's thread.
#
# Each device's completion channel is in the epoll set. After RDMA work the worker polls for a moment instead of
# sleeping, since a wake-up costs more than most transfers take. soft_shm's rings are memory, of which no descriptor
# tells: while the worker is awake it looks into them, and before it sleeps it asks to be woken for them.

# Whether there is any device to agree on a queue pair with.
cdef bint has_device(const worker *w) noexcept nogil
# Makes the worker's part of a device. False: errno.
cdef bint take_device(worker *w, unsigned int transport, rdma_device *device) noexcept nogil
# Does what another thread has asked for, and tells it.
cdef void change_device(worker *w, device_change *change) noexcept nogil
# Begins a turn: from here to the next call queue pairs move no more than a turn's work, however many there are.
cdef void begin_rdma_turn(worker *w) noexcept nogil
# The timeout of the next epoll_wait, in ms.
cdef int turn_timeout(worker *w) noexcept nogil
# Looks into the rings: a bit for each device with something to do, and the timeout changed to 0 if the worker must not
# sleep.
cdef unsigned int poll_rings(worker *w, int *timeout) noexcept nogil
# Epoll has reported a completion channel. Returns the device's bit.
cdef unsigned int channel_readable(worker *w, const epoll_event *event) noexcept nogil
# Whether the event is a completion channel's.
cdef bint is_channel(worker *w, const epoll_event *event) noexcept nogil
# Serves the devices whose bits are set.
cdef void serve_devices(worker *w, unsigned int ready) noexcept nogil
