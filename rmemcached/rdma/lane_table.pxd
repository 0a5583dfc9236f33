"""Where the lanes of a queue pair are found: by their ids, and in lists of those that have something to do.

Ids are the client's choice, so the table is sparse. A list is first in, first out; a lane is in one at most.

All of it belongs to the worker. A part of the C unit of rdma_conn, below rdma/lane: it knows nothing of lanes but their
links.
"""

cdef enum:
    TABLE_PAGE = 64              # lanes of one page of the table

cdef struct lane_table:
    uint32_t size                # ids are below
    rdma_lane ***pages           # NULL: no lane has been there yet; nor has one been in a page that is NULL

cdef struct lane_list:
    rdma_lane *first             # NULL: it is empty
    rdma_lane *last
    unsigned int count

# NULL: there is none. Ids beyond the table are allowed.
cdef rdma_lane *table_get(const lane_table *table, uint32_t id) noexcept nogil
# Makes sure that the table has a place for the id, which is below its size. False: out of memory.
cdef bint table_reserve(lane_table *table, uint32_t id) noexcept nogil
# Into a place that is there.
cdef void table_put(lane_table *table, uint32_t id, rdma_lane *lane) noexcept nogil
# No lane is left.
cdef void table_free(lane_table *table) noexcept nogil

# The lane is in no list; it is in this one.
cdef void list_append(lane_list *list, rdma_lane *lane) noexcept nogil
cdef void list_remove(lane_list *list, rdma_lane *lane) noexcept nogil
