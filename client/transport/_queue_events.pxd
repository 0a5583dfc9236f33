"""A queue pair with a single lane for an event loop, and questions about a queue pair from any thread.

Unless stated otherwise, only the loop's thread calls these functions. It never calls the waits of threads.
"""

from libc.stdint cimport uint64_t

from rmemcached.client.transport._lane cimport lane_state
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._stream cimport Stream

# The descriptors that get readable when there may be something to reap.
cdef list queue_descriptors(QueuePair queue)
# After a reap without a result: the next completion makes an event. True: something has come since.
cdef bint queue_arm(QueuePair queue, Stream s, lane_state *lane) noexcept nogil
# Whether the server has ended the connection. Any thread.
cdef bint queue_ended(QueuePair queue) noexcept nogil
# soft_shm: the end of the bytes that the server's last WRITE has put into memory so far; 0: unknown. Any thread.
cdef uint64_t queue_written(QueuePair queue) noexcept nogil
# Whether the queue pair lives. False: the server has ended the connection, and all earlier messages have been reaped.
cdef bint queue_lives(QueuePair queue) noexcept nogil
