# Asynchronous events: what happens to a queue pair, completion queue or shared receive queue outside of any request.

# The events of one object. Each kind is pending at most once, so that nothing is allocated and nothing overflows. All
# fields are guarded by soft_context.async_lock.
cdef struct soft_async:
    soft_async *next                 # soft_context.first_async
    void *element                    # ibv_qp, ibv_cq or ibv_srq
    uint32_t pending                 # bits 1 << ibv_event_type
    uint32_t delivered
    uint32_t acked

# Of a context; False: errno says why, and nothing is left open.
cdef bint async_open(soft_context *context) noexcept nogil
cdef void async_close(soft_context *context) noexcept nogil

# Makes an event. Takes async_lock, the last lock in the order: the caller may hold any other.
cdef void async_event(soft_context *context, soft_async *events, int kind) noexcept nogil

# Before an object is freed: drops its undelivered events and waits until the delivered ones are acknowledged.
cdef void async_forget(soft_context *context, soft_async *events) noexcept nogil

# For the provider's table.
cdef int soft_get_async_event(ibv_context *context, ibv_async_event *event) noexcept nogil
cdef void soft_ack_async_event(ibv_async_event *event) noexcept nogil
cdef const char *soft_event_type_str(ibv_event_type event) noexcept nogil
