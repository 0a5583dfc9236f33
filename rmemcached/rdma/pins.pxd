"""References to the items that a lane's client reads in place (docs/direct-reads.md, section 5).

The pins of a lane belong to the connection's worker. The device counts the pins of all lanes. A part of the C unit of
rdma_conn, above rdma/thread and below rdma/lane.
"""

cdef enum:
    PINS_FIRST = 16              # entries of a table at first
    PINS_SPREAD = 2              # pinned items lie on so many pages, at most, for each page of rdma_view_limit
    PINS_SHARE = 4               # a lane may have 1 / PINS_SHARE of the pins of all lanes

cdef struct pin_entry:
    item *it                     # NULL: the entry is free
    uint32_t following           # of a free entry: the next free entry

cdef struct lane_pins:
    pin_entry *entries           # by id
    uint32_t size                # entries of the table
    uint32_t used                # entries with a pin
    uint32_t first_free          # `size`: no entry is free
    uint64_t nbytes              # of the pinned items

# For the command rdma_view: pins the item, and keeps the caller's reference under *id. Returns NULL; or the error line
# for the client, and then the reference stays the caller's.
cdef const char *pins_add(rdma_thread *t, lane_pins *pins, item *it, uint32_t *id) noexcept nogil
# For the command rdma_release: unpins the item, and gives back the reference under this id. False: there is no such id.
cdef bint pins_remove(rdma_thread *t, lane_pins *pins, uint32_t id) noexcept nogil
# At the lane's end: unpins all items, gives back their references, and frees the table.
cdef void pins_free(rdma_thread *t, lane_pins *pins) noexcept nogil
