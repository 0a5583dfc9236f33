# The worker's functions for lanes: each lane is a connection besides its queue pair's. The worker's thread.

# Fills w.lane_hooks.
cdef void init_lane_hooks(worker *w) noexcept nogil
