# The worker's functions for lanes: each lane counts and logs as a connection. The worker's thread.

# Fills w.lane_hooks, for worker_init.
cdef void init_lane_hooks(worker *w) noexcept nogil
