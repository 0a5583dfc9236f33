"""The lanes of a queue pair: a table by id, and lists of waiting lanes.

The client chooses the ids, so the table is sparse. A list is first in, first out; a lane is in at most one list.

Table and lists belong to the worker. A part of the C unit of rdma_conn, below rdma/lane: the part uses nothing of a
lane but its links.
"""

cdef enum:
    TABLE_PAGE = 64              # lanes of one page of the table

cdef struct lane_table:
    uint32_t size                # ids are below
    rdma_lane ***pages           # NULL, or a page NULL: no lane has been there yet

cdef struct lane_list:
    rdma_lane *first             # NULL: the list is empty
    rdma_lane *last
    unsigned int count

# NULL: the table has no such lane. Ids beyond the table are allowed.
cdef rdma_lane *table_get(const lane_table *table, uint32_t id) noexcept nogil
# Makes a place in the table for the id, which is below `size`. False: out of memory.
cdef bint table_reserve(lane_table *table, uint32_t id) noexcept nogil
# Puts a lane, or NULL, into the id's place, which must be there.
cdef void table_put(lane_table *table, uint32_t id, rdma_lane *lane) noexcept nogil
# Frees the table. No lane is left.
cdef void table_free(lane_table *table) noexcept nogil

# The lane is in no list before list_append, and in this list before list_remove.
cdef void list_append(lane_list *list, rdma_lane *lane) noexcept nogil
cdef void list_remove(lane_list *list, rdma_lane *lane) noexcept nogil
