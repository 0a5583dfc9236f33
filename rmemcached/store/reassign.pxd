"""Requests for slab pages: any thread makes them, the page mover carries them out. memcached: slabs.c.

store.pxd declares slabs_reassign, which makes a request.
"""

cdef enum:
    MOVE_REQUESTS = 8           # page moves waiting for the mover, at most

cdef struct move_request:
    unsigned int src
    unsigned int dst
    bint allow_evictions

cdef struct reassign:
    pthread_mutex_t lock        # the reassign lock, also for automove
    pthread_cond_t cond         # wakes the mover for a request, or to end
    # the reassign lock
    bint open                   # there is a mover
    move_request request[MOVE_REQUESTS]
    uint32_t requests
    # atomic, written by the mover with the reassign lock held
    unsigned int running        # a page is being moved
    # the slabs lock
    unsigned int any_class      # the last source chosen for "any class"

# Makes the lock, for store_create.
cdef void reassign_init(store *s) noexcept nogil
cdef void reassign_destroy(store *s) noexcept nogil
# Whether a page of class src can go to class dst. Chooses a class when src is -1.
cdef reassign_result check_reassign(store *s, int *src, int dst) noexcept nogil
# An allocation in the class has failed: all items are referenced, and none can be evicted. Asks for a page of another
# class, unless pages move on request only.
cdef void slabs_starved(store *s, unsigned int clsid) noexcept nogil
# Takes the oldest request. The caller holds the reassign lock, and a request is waiting.
cdef move_request do_reassign_take(store *s) noexcept nogil
