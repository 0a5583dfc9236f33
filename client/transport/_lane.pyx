"""See _lane.pxd."""

from libc.errno cimport EAGAIN, ENOMEM, errno
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset

from rmemcached.sys.atomics cimport relaxed_store, relaxed_store_pointer
from rmemcached.sys.linux cimport futex_wake


cdef lane_state *lane_make(lane_table *table, unsigned int most) noexcept nogil:
    cdef lane_state *lane
    cdef lane_state **grown
    cdef unsigned int id = 0
    while id < table.size and table.lanes[id] != NULL:
        id += 1
    if id >= most:
        (&errno)[0] = EAGAIN
        return NULL
    if id == table.size:
        grown = <lane_state **>realloc(table.lanes, (id * 2 + 1) * sizeof(lane_state *))
        if grown == NULL:
            return NULL
        memset(&grown[id], 0, (id + 1) * sizeof(lane_state *))
        table.lanes = grown
        table.size = id * 2 + 1
    lane = <lane_state *>calloc(1, sizeof(lane_state))
    if lane != NULL:
        lane.id = id
        table.lanes[id] = lane
    return lane


cdef void lane_free(lane_table *table, lane_state *lane) noexcept nogil:
    table.lanes[lane.id] = NULL
    free(lane.inbox)
    free(lane)


cdef void lane_table_free(lane_table *table) noexcept nogil:
    cdef unsigned int id
    for id in range(table.size):
        if table.lanes[id] != NULL:
            lane_free(table, table.lanes[id])
    free(table.lanes)
    table.lanes = NULL
    table.size = 0


cdef void lane_follow(lane_list *followers, lane_state *lane, lane_want want) noexcept nogil:
    lane.follows = True
    lane.want = want
    lane.next = NULL
    lane.prev = followers.last
    if lane.prev != NULL:
        lane.prev.next = lane
    else:
        relaxed_store_pointer(&followers.first, lane)
    followers.last = lane


cdef void lane_unfollow(lane_list *followers, lane_state *lane) noexcept nogil:
    if lane.prev != NULL:
        lane.prev.next = lane.next
    else:
        relaxed_store_pointer(&followers.first, lane.next)
    if lane.next != NULL:
        lane.next.prev = lane.prev
    else:
        followers.last = lane.prev
    lane.follows = False
    lane.want = WANTS_NOTHING


cdef void lane_wake(lane_list *followers, lane_state *lane) noexcept nogil:
    if lane.follows:
        lane_unfollow(followers, lane)
        relaxed_store(&lane.wake, lane.wake + 1)
        futex_wake(&lane.wake, 1)


cdef void lane_wake_all(lane_list *followers) noexcept nogil:
    while followers.first != NULL:
        lane_wake(followers, followers.first)


cdef int inbox_put(lane_state *lane, const char *data, size_t length) noexcept nogil:
    cdef size_t size = max(lane.size, <size_t>4096)
    cdef char *grown
    if lane.last - lane.first + length > LANE_BYTES:
        return 0
    if lane.last + length > lane.size:
        if lane.first:
            memmove(lane.inbox, lane.inbox + lane.first, lane.last - lane.first)
            lane.last -= lane.first
            lane.first = 0
        while size < lane.last + length:
            size *= 2
        if size > lane.size:
            grown = <char *>realloc(lane.inbox, size)
            if grown == NULL:
                return -ENOMEM
            lane.inbox = grown
            lane.size = size
    memcpy(lane.inbox + lane.last, data, length)
    lane.last += length
    return 1


cdef int inbox_take(lane_state *lane, Stream stream) noexcept nogil:
    cdef int r = stream.deliver(lane.inbox + lane.first, lane.last - lane.first)
    if r > 0:
        lane.unsaid += lane.last - lane.first
        inbox_drop(lane)
    return r


cdef void inbox_drop(lane_state *lane) noexcept nogil:
    free(lane.inbox)
    lane.inbox = NULL
    lane.first = lane.last = lane.size = 0
