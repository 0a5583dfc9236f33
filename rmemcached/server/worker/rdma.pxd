# The worker's part of the RDMA devices: taking a device, giving a device up, and polling. The worker's thread.
#
# The epoll set has the descriptors of the software devices' queue pairs, and completion channels of the system's
# device. A worker that expects a request soon polls instead of sleeping, since a wake-up costs more than most
# transfers. soft_shm's rings are memory, without a descriptor: the worker looks into the rings while awake, and asks
# for a wake-up before sleeping.

# Whether there is any device to agree on a queue pair with.
cdef bint has_device(const worker *w) noexcept nogil
# Makes the worker's part of a device. False: errno.
cdef bint take_device(worker *w, unsigned int transport, rdma_device *device) noexcept nogil
# Carries out another thread's order, and reports to the thread.
cdef void change_device(worker *w, device_change *change) noexcept nogil
# Begins a turn: from here to the next call queue pairs move no more than a turn's work, however many there are.
cdef void begin_rdma_turn(worker *w) noexcept nogil
# The end of the worker's last turn.
cdef void end_rdma_turns(worker *w) noexcept nogil
# Looks into the rings: a bit for each device with something to serve, and the timeout of the next epoll_wait, in ms.
cdef unsigned int poll_devices(worker *w, int *timeout) noexcept nogil
# Whether to call epoll_wait in this turn. found: devices whose rings had work.
cdef bint must_ask(worker *w, unsigned int found) noexcept nogil
# Hands events of software devices to them.
cdef void take_soft_events(worker *w, const epoll_event *events, int n) noexcept nogil
# Takes the event of a device's completion channel. Returns the device's bit.
cdef unsigned int take_channel_event(worker *w, const epoll_event *event) noexcept nogil
# A bit for each device known to have work.
cdef unsigned int pending_devices(worker *w) noexcept nogil
# Serves the devices whose bits are set.
cdef void serve_devices(worker *w, unsigned int ready) noexcept nogil
