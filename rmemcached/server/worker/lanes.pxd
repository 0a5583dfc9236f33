# What lanes need of the worker: each is a connection beside the one of its queue pair. The worker's thread.

# Fills w.lane_hooks.
cdef void init_lane_hooks(worker *w) noexcept nogil
