"""A queue pair of one lane that an event loop waits for, and what any thread may ask of a queue pair.

The loop's thread alone calls these, if nothing else is said, and never the waits of threads.
"""

from libc.stdint cimport uint64_t

from rmemcached.client._lane cimport lane_state
from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.client._stream cimport Stream

# What gets readable when there may be something to reap.
cdef list queue_descriptors(QueuePair queue)
# Behind a reap that has found nothing: the next completion makes an event. True: something has come since.
cdef bint queue_arm(QueuePair queue, Stream s, lane_state *lane) noexcept nogil
# Whether the server has ended the connection. Any thread.
cdef bint queue_ended(QueuePair queue) noexcept nogil
# soft_shm: the address behind what the server's last WRITE has put into memory so far; 0: nobody knows. Any thread.
cdef uint64_t queue_written(QueuePair queue) noexcept nogil
# False: the server has ended the connection, and everything that came before has been reaped.
cdef bint queue_lives(QueuePair queue) noexcept nogil
