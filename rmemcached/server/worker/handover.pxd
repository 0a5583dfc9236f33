# Handovers of any thread to the worker, under queue_lock: new sockets, returned connections, results for replies that
# wait, authentications, a device's change.

# conn_thread.post
cdef void worker_post(conn_thread *t, resp_wait *wait) noexcept nogil
# For worker_destroy: gives back the results that have come since the thread's end.
cdef void drop_results(worker *w) noexcept nogil
# Takes back the authentications of side threads: also at the worker's end, in the main thread.
cdef void take_sessions(worker *w, sasl_session *session) noexcept nogil
# Takes the waiting handovers: some of the sockets now, more in the next turns. The worker's thread.
cdef void take_handovers(worker *w) noexcept nogil
