# Handovers of any thread to the worker, under queue_lock: new sockets, returned connections, a device's change.

# Takes back the authentications of side threads: also at the worker's end, in the main thread.
cdef void take_sessions(worker *w, sasl_session *session) noexcept nogil
# Takes the waiting handovers: some of the sockets now, more in the next turns. The worker's thread.
cdef void take_handovers(worker *w) noexcept nogil
