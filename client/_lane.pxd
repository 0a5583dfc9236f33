"""A lane of a queue pair, as this process keeps it: what has come for its owner, and how the owner is woken.

The owner is the one thread that is in a call of the lane's RdmaStream. All fields but those of the owner are guarded by
the queue pair's lock; any thread that polls the queue pair puts what has come into the inboxes of other lanes.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.client._stream cimport Stream

cdef enum:
    LANE_BYTES = 128 * 1024  # that are kept for an owner who does not read; a server sends no more
    LAST_WORDS = 128

# What an owner waits for besides what comes for it.
cdef enum lane_want:
    WANTS_NOTHING
    WANTS_ROOM               # that the server says what it has used: it keeps no more of this lane
    WANTS_BUFFER             # that a message can be sent
    WANTS_READS              # that its READs have completed
    WANTS_SENT               # that all of the lane's SENDs have completed

cdef struct lane_state:
    uint32_t id
    bint opened              # OPEN has been sent
    bint closing             # it has no owner any more
    bint close_sent
    bint closed              # the server's CLOSE has come
    bint kept                # somebody still asks for `closed`
    bint told                # the owner waits until its SENDs have left: all of them have completions
    unsigned int sends       # SENDs under way, of those that have
    size_t room              # bytes that the server keeps for it
    size_t unsaid            # bytes that the owner has used, and the server has not been told
    char *inbox              # [first, last) waits for the owner. NULL: nothing
    size_t first
    size_t last
    size_t size
    char last_words[LAST_WORDS]
    # an owner that sleeps while another thread sleeps for the queue pair
    bint follows             # it is in the list of those
    lane_want want
    uint32_t wake            # changes when it is woken
    lane_state *next
    lane_state *prev

# The lanes of a queue pair.
cdef struct lane_table:
    lane_state **lanes       # by id: `size` of them, NULL where there is none
    unsigned int size

# Owners that sleep while another thread sleeps for the queue pair.
cdef struct lane_list:
    lane_state *first        # also read without the lock
    lane_state *last

# A new one, with the smallest number that is free, below `most`. NULL: errno says whether there is no memory (ENOMEM)
# or no number (EAGAIN).
cdef lane_state *lane_make(lane_table *table, unsigned int most) noexcept nogil
cdef void lane_free(lane_table *table, lane_state *lane) noexcept nogil
# And all lanes.
cdef void lane_table_free(lane_table *table) noexcept nogil

cdef inline lane_state *lane_find(const lane_table *table, uint32_t id) noexcept nogil:
    return table.lanes[id] if id < table.size else NULL

cdef void lane_follow(lane_list *followers, lane_state *lane, lane_want want) noexcept nogil
cdef void lane_unfollow(lane_list *followers, lane_state *lane) noexcept nogil
# Wakes its owner, if it follows.
cdef void lane_wake(lane_list *followers, lane_state *lane) noexcept nogil
cdef void lane_wake_all(lane_list *followers) noexcept nogil

# Keeps what has come. 1, -ENOMEM, or 0: it is more than the server may send.
cdef int inbox_put(lane_state *lane, const char *data, size_t length) noexcept nogil
# Gives it to the stream. 1, or -ENOMEM.
cdef int inbox_take(lane_state *lane, Stream stream) noexcept nogil
# Nobody wants it any more.
cdef void inbox_drop(lane_state *lane) noexcept nogil

cdef inline bint inbox_is_empty(const lane_state *lane) noexcept nogil:
    return lane.first == lane.last
