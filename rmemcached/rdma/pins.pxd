"""The items that a lane's client looks at where they lie (docs/direct-reads.md, section 5): a reference to each.

The pins of a lane belong to it, and so to the connection's worker. What all lanes have is counted by the device. A part
of the C unit of rdma_conn, above rdma/thread and below rdma/lane.
"""

cdef enum:
    PINS_FIRST = 16              # entries of a table at first
    PINS_SPREAD = 2              # items with pins lie on so many times the pages that their bytes would fill, at most
    PINS_SHARE = 4               # a lane has at most one of so many parts of what all may have

cdef struct pin_entry:
    item *it                     # NULL: free,
    uint32_t following           # ... and this one is the next of these

cdef struct lane_pins:
    pin_entry *entries           # by id
    uint32_t size
    uint32_t used
    uint32_t first_free          # size: there is none
    uint64_t nbytes              # of the items

# Keeps the caller's reference, under *id. NULL, or the line that says which limit is reached: then it stays the
# caller's.
cdef const char *pins_add(rdma_thread *t, lane_pins *pins, item *it, uint32_t *id) noexcept nogil
# Gives one back. False: there is no such id.
cdef bint pins_remove(rdma_thread *t, lane_pins *pins, uint32_t id) noexcept nogil
# Gives all back.
cdef void pins_free(rdma_thread *t, lane_pins *pins) noexcept nogil
