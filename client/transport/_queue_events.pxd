"""A queue pair with a single lane for an event loop, and questions about a queue pair from any thread.

RdmaStream's methods call these functions: the loop's thread only, unless stated otherwise. The loop waits for the
descriptors, and never in QueuePair.wait.
"""

from libc.stdint cimport uint64_t

from rmemcached.client.transport._lane cimport lane_state
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._stream cimport Stream

# The descriptors for the loop to watch: they get readable when there may be something to reap.
cdef list queue_descriptors(QueuePair queue)
# Called after a reap without a result, and before the loop waits: the next completion will make a descriptor readable.
# True: completions have come meanwhile, and were taken as by QueuePair.reap; so the loop must not wait.
cdef bint queue_arm(QueuePair queue, Stream s, lane_state *lane) noexcept nogil
# Whether the server has ended the connection. Any thread may call.
cdef bint queue_ended(QueuePair queue) noexcept nogil
# On soft_shm: the address behind the bytes that the server's last WRITE has put into memory so far; 0: unknown, or
# another transport. Any thread may call.
cdef uint64_t queue_written(QueuePair queue) noexcept nogil
# Called after a reap without a result. False: the server has ended the connection, or the device is lost, and all
# earlier messages have been reaped.
cdef bint queue_lives(QueuePair queue) noexcept nogil
