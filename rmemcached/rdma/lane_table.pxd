"""The lanes of a queue pair: a table by id, and lists of waiting lanes.

The client chooses the ids, so the table is sparse. A list is first in, first out; a lane is in at most one list.

Table and lists belong to the worker. A part of the C unit of rdma_conn, below rdma/lane: the part uses nothing of a
lane but its links.
"""

cdef enum:
    TABLE_PAGE = 64              # lanes of one page of the table

cdef struct lane_table:
    uint32_t size                # all ids are below `size`
    rdma_lane ***pages           # NULL, or a page NULL: no lane has been there yet

cdef struct lane_list:
    rdma_lane *first             # NULL: the list is empty
    rdma_lane *last
    unsigned int count

# The entry of an id: a lane, or a mark of rdma/lane for a lane that is gone. NULL: none. Ids beyond the table are
# allowed.
cdef rdma_lane *table_get(const lane_table *table, uint32_t id) noexcept nogil
# Makes a place in the table for the id, which is below `size`. False: out of memory.
cdef bint table_reserve(lane_table *table, uint32_t id) noexcept nogil
# Puts a lane, a mark or NULL into the id's place, after table_reserve for this id.
cdef void table_put(lane_table *table, uint32_t id, rdma_lane *lane) noexcept nogil
# Frees the table. No lane is left.
cdef void table_free(lane_table *table) noexcept nogil

# Puts a lane at the end of the list. The lane is in no list.
cdef void list_append(lane_list *list, rdma_lane *lane) noexcept nogil
# Takes a lane out of this list.
cdef void list_remove(lane_list *list, rdma_lane *lane) noexcept nogil
