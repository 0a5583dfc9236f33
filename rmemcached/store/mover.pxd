"""The page mover: a thread that empties a page of one slab class and gives it to another class, or to the global pool.
memcached: slabs_mover.c.

While a page is emptied, each of its chunks is taken as soon as nobody has it: free chunks from the free list, chunks
that become free at once (do_slabs_push), those of linked items after a copy has taken the item's place. What is
referenced keeps its memory until the last reference is gone: bytes that a send, an RDMA READ or an RDMA WRITE is
working on are never moved or used again under it.
"""

cdef enum move_status:          # what can be done with a chunk
    MOVE_NONE = 0
    MOVE_PASS                   # taken before
    MOVE_FROM_SLAB              # it was free, and is taken now
    MOVE_FROM_LRU               # it belongs to a linked item that nobody has a reference to
    MOVE_BUSY_ACTIVE            # ... that somebody has a reference to
    MOVE_BUSY_FLOATING          # it belongs to an item that is being filled, or was unlinked and has references
    MOVE_LOCKED                 # it belongs to an item whose lock was taken

cdef struct page_mover:
    pthread_t thread
    bint joinable
    unsigned int stop           # atomic, set with the reassign lock held
    # the thread's own
    uint32_t owner              # its thread_id()
    item *spare                 # a chunk for the next item's copy
    bint allow_evictions
    uint32_t busy_loops         # passes over the page so far,
    uint32_t kept_passes        # ... and those since a chunk was given back, if all that are left are unlinked
    uint32_t taken_before       # chunks that were taken before the last pass
    # atomic; written by the thread, and by store_reset_stats
    unsigned int last_busy_status   # a move_status
    uint64_t slabs_moved
    uint64_t rescues
    uint64_t chunk_rescues
    uint64_t inline_reclaim
    uint64_t busy_items
    uint64_t busy_deletes
    uint64_t busy_nomem

# False: no memory, or no thread.
cdef bint mover_start(store *s) noexcept nogil
# Ends the thread; a page that is being emptied stays where it is.
cdef void mover_stop(store *s) noexcept nogil
# The two steps of a move, for the thread, and for tests when it has ended. False: the class has no page to spare any
# more. move_finish returns when the page has moved, when it cannot, or when the thread is to end.
cdef bint move_begin(store *s, const move_request *r) noexcept nogil
cdef void move_finish(store *s, const move_request *r) noexcept nogil
