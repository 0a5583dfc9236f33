# What other threads leave for the worker, under queue_lock: new sockets, connections that were lent, a device's change.

# Takes what is there: of the sockets some, the others in the next turns. The worker's thread.
cdef void take_handovers(worker *w) noexcept nogil
