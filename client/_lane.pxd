"""A lane of a queue pair, as this process keeps it: what has come for its owner, and how the owner is woken.

The owner is the one thread that is in a call of the lane's RdmaStream. All fields but those of the owner are guarded by
the queue pair's lock; any thread that polls the queue pair puts what has come into the inboxes of other lanes.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.client._stream cimport Stream

cdef enum:
    LANE_BYTES = 128 * 1024  # that are kept for an owner who does not read; a server sends no more
    LAST_WORDS = 128

cdef struct lane_state:
    uint32_t id
    bint opened              # OPEN has been sent
    bint closing             # it has no owner any more
    bint close_sent
    bint closed              # the server's CLOSE has come
    bint kept                # somebody still asks for `closed`
    unsigned int sends       # SENDs under way
    size_t room              # bytes that the server keeps for it
    size_t unsaid            # bytes that the owner has used, and the server has not been told
    char *inbox              # [first, last) waits for the owner. NULL: nothing
    size_t first
    size_t last
    size_t size
    char last_words[LAST_WORDS]
    # an owner that sleeps while another thread sleeps for the queue pair
    bint follows             # it is in the list of those
    bint wants               # it also waits for room to send, or that everything has left
    uint32_t wake            # changes when it is woken
    lane_state *next
    lane_state *prev

# Keeps what has come. 1, -ENOMEM, or 0: it is more than the server may send.
cdef int inbox_put(lane_state *lane, const char *data, size_t length) noexcept nogil
# Gives it to the stream. 1, or -ENOMEM.
cdef int inbox_take(lane_state *lane, Stream stream) noexcept nogil

cdef inline bint inbox_is_empty(const lane_state *lane) noexcept nogil:
    return lane.first == lane.last
