"""The page mover: a thread that empties a page of a slab class and gives the page to another class, or to the global
pool. memcached: slabs_mover.c.

While emptying a page, the mover takes each chunk as soon as nobody has it: free chunks from the free list, chunks freed
meanwhile at once (do_slabs_push), chunks of linked items after a copy has taken the item's place. A referenced item
keeps its memory until its last reference is gone: the mover never moves or reuses bytes in use by a send, an RDMA READ
or an RDMA WRITE.
"""

cdef enum move_status:          # a chunk's state, as the mover finds it
    MOVE_NONE = 0
    MOVE_PASS                   # taken before
    MOVE_FROM_SLAB              # free, and taken now
    MOVE_FROM_LRU               # of a linked item without references
    MOVE_BUSY_ACTIVE            # ... of a linked item with references
    MOVE_BUSY_FLOATING          # of an item being filled, or unlinked but referenced
    MOVE_LOCKED                 # of an item locked by another thread

cdef struct page_mover:
    pthread_t thread
    bint joinable
    unsigned int stop           # atomic, set with the reassign lock held
    # used only by the thread
    uint32_t owner              # the thread's thread_id()
    item *spare                 # a chunk for the next item's copy
    bint allow_evictions
    uint32_t busy_loops         # passes over the page so far
    # atomic; written by the thread, and by store_reset_stats
    unsigned int last_busy_status   # a move_status
    uint64_t slabs_moved
    uint64_t rescues
    uint64_t chunk_rescues
    uint64_t inline_reclaim
    uint64_t busy_items
    uint64_t busy_deletes
    uint64_t busy_nomem

# Starts the thread, for store_create with slab_reassign. From then on slabs_reassign takes requests. The caller holds
# no lock. False: no memory, or no thread.
cdef bint mover_start(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; a page being emptied stays in its class.
cdef void mover_stop(store *s) noexcept nogil
# The first step of a move: chooses the page, whose chunks nobody allocates from now on. For the thread, and for tests
# after the thread's end. False: the class has no page to spare any more, or only pages with pins.
cdef bint move_begin(store *s, const move_request *r) noexcept nogil
# The second step, after move_begin has returned True: empties the page and gives the page to the class r.dst. Returns
# when the page has moved, cannot move, or the thread is to end.
cdef void move_finish(store *s, const move_request *r) noexcept nogil
