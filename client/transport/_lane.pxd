"""A lane of a queue pair in this process: the input for its owner, and how the owner is woken.

The owner is the thread in a call of the lane's RdmaStream. Any thread that polls the queue pair puts input into the
inboxes of the lanes. QueuePair calls the functions with its lock, which guards all fields.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.client.transport._stream cimport Stream

cdef enum:
    LANE_BYTES = 128 * 1024  # of input, kept for an owner who does not read; a server sends no more
    LAST_WORDS = 128         # bytes kept of the server's reason for its CLOSE

# What an owner waits for besides input.
cdef enum lane_want:
    WANTS_NOTHING
    WANTS_ROOM               # the server has used some of the lane's bytes, and can keep more
    WANTS_BUFFER             # a message can be sent
    WANTS_READS              # the lane's READs have completed
    WANTS_SENT               # all SENDs of the lane have completed

cdef struct lane_state:
    uint32_t id
    bint opened              # OPEN has been sent
    bint closing             # the lane has no owner any more
    bint close_sent
    bint closed              # the server's CLOSE has come
    bint kept                # the former owner still asks lane_is_closed, so the lane is not freed yet
    bint told                # the owner waits until its SENDs have left: so each SEND makes a completion
    unsigned int sends       # SENDs under way that make a completion
    size_t room              # bytes that the server still has room for
    size_t unsaid            # bytes taken by the owner, of which the server has not been told yet
    char *inbox              # [first, last) waits for the owner. NULL: nothing
    size_t first
    size_t last
    size_t size
    char last_words[LAST_WORDS]
    # for an owner asleep while another thread sleeps for the queue pair
    bint follows             # the lane is in the queue pair's list of such lanes (lane_list)
    lane_want want
    uint32_t wake            # changes when the owner is woken
    lane_state *next
    lane_state *prev

# The lanes of a queue pair.
cdef struct lane_table:
    lane_state **lanes       # by id: `size` of them, NULL where there is none
    unsigned int size

# Owners asleep while another thread sleeps for the queue pair.
cdef struct lane_list:
    lane_state *first        # also read without the lock
    lane_state *last

# Makes a lane with the smallest free number below `most`. NULL: errno is ENOMEM (no memory) or EAGAIN (no number).
cdef lane_state *lane_make(lane_table *table, unsigned int most) noexcept nogil
# Takes the lane out of the table and frees it with its inbox.
cdef void lane_free(lane_table *table, lane_state *lane) noexcept nogil
# Frees all lanes and the table's array; the struct itself is the caller's, and is empty then.
cdef void lane_table_free(lane_table *table) noexcept nogil

cdef inline lane_state *lane_find(const lane_table *table, uint32_t id) noexcept nogil:
    return table.lanes[id] if id < table.size else NULL

# Puts the lane's owner into the list; the owner then sleeps on lane.wake.
cdef void lane_follow(lane_list *followers, lane_state *lane, lane_want want) noexcept nogil
# Takes an owner who follows off the list.
cdef void lane_unfollow(lane_list *followers, lane_state *lane) noexcept nogil
# Wakes the lane's owner, if it follows.
cdef void lane_wake(lane_list *followers, lane_state *lane) noexcept nogil
cdef void lane_wake_all(lane_list *followers) noexcept nogil

# Copies input to the lane's inbox. 1, -ENOMEM, or 0: more than the server may send.
cdef int inbox_put(lane_state *lane, const char *data, size_t length) noexcept nogil
# Gives the inbox to the owner's stream, frees it, and adds its bytes to `unsaid`. 1, or an error of Stream.deliver.
cdef int inbox_take(lane_state *lane, Stream stream) noexcept nogil
# Frees the inbox with its input.
cdef void inbox_drop(lane_state *lane) noexcept nogil

cdef inline bint inbox_is_empty(const lane_state *lane) noexcept nogil:
    return lane.first == lane.last
