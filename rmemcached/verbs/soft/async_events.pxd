"""Asynchronous events: changes of a queue pair, completion queue or shared receive queue outside its requests."""

# The events of one object. Each kind is pending at most once, so events need no allocation and never overflow. All
# fields are guarded by soft_context.async_lock.
cdef struct soft_async:
    soft_async *next                 # in soft_context.first_async
    void *element                    # the ibv_qp, ibv_cq or ibv_srq
    uint32_t pending                 # bits 1 << ibv_event_type
    uint32_t delivered
    uint32_t acked

# Makes a context's fields for events, when the device is opened. False: errno is set, and nothing is left open.
cdef bint async_open(soft_context *context) noexcept nogil
# Undoes async_open, when the device is closed.
cdef void async_close(soft_context *context) noexcept nogil

# Makes an event of this kind (ibv_event_type). The caller may hold locks of all ranks before RANK_EVENTS.
cdef void async_event(soft_context *context, soft_async *events, int kind) noexcept nogil

# Called before an object is freed: drops its undelivered events and waits until the program has acknowledged the rest.
cdef void async_forget(soft_context *context, soft_async *events) noexcept nogil

# Entries of the provider's table: libibverbs' ibv_* functions.
cdef int soft_get_async_event(ibv_context *context, ibv_async_event *event) noexcept nogil
cdef void soft_ack_async_event(ibv_async_event *event) noexcept nogil
cdef const char *soft_event_type_str(ibv_event_type event) noexcept nogil
