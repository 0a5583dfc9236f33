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
# Frees the lock, for store_destroy.
cdef void reassign_destroy(store *s) noexcept nogil
# REASSIGN_OK if a page of class *src can go to class dst; otherwise the reason. *src -1: chooses a class, and sets
# *src. For slabs_reassign and automove. Takes the slabs lock.
cdef reassign_result check_reassign(store *s, int *src, int dst) noexcept nogil
# Called after an allocation in the class has found no free chunk, and nothing to evict. Requests a page of another
# class, unless pages move on request only, or a request is waiting.
cdef void slabs_starved(store *s, unsigned int clsid) noexcept nogil
# Takes the oldest request. The caller, the mover, holds the reassign lock, and a request is waiting.
cdef move_request do_reassign_take(store *s) noexcept nogil
