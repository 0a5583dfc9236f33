"""Automove finds a class in need of a page, and a class with a page too many. memcached: slab_automove.c.

Each run looks at the changes of every class since the last run, and adds them up over a window of runs. When memory is
full, a class with many free chunks that has not grown or evicted in the window gives a page to the pool. Otherwise the
ages of the classes decide; a class is as old as its oldest item. The youngest of the classes that evict often gets a
page of the oldest class, if the ages differ enough.

With external storage, pages go to the pool only, where a share of all memory (slab_automove_freeratio) is kept for
bursts: from a class with many free chunks or, while the pool is low, from the oldest class whose items go to external
storage. memcached: slab_automove_extstore.c.

store.pxd declares the settings: slabs_set_automove and others.
"""

cdef struct window_data:        # a run's figures of a class
    uint64_t age                # seconds since the oldest item was used
    uint64_t dirty              # the class evicted, grew, or had no memory
    uint64_t evicted_seen       # the class evicted
    double evicted_ratio        # the class's share of all evictions
    uint64_t excess_free        # with external storage: the class had many free chunks

cdef struct class_sample:
    uint64_t evicted
    uint64_t outofmemory
    uint64_t age
    uint32_t total_pages
    uint64_t free_chunks
    uint32_t chunks_per_page

cdef struct slab_automove:      # the reassign lock
    uint32_t window_size
    uint32_t window_cur         # runs so far
    double max_age_ratio
    class_sample before[MAX_NUMBER_OF_SLAB_CLASSES]
    window_data *window         # window_size for each class
    int64_t last                # CLOCK_MONOTONIC second of the last page given to a class
    bint changed                # the settings have changed: do_automove_init has to read them
    # with external storage. Atomic
    uint64_t pool_least         # pages that the pool should have
    uint64_t pressure           # the share of memory taken by items that stay there, in hundredths of a percent

# Starts over with the present settings: for mover_start, and for do_automove_run after a change of the settings. False:
# no memory; automove goes on with the previous settings. The caller holds the reassign lock here and in
# do_automove_run.
cdef bint do_automove_init(store *s) noexcept nogil
# Frees the window, for store_destroy.
cdef void automove_destroy(store *s) noexcept nogil
# Makes a run of automove, for the mover without a request. True: a page is to move now, and *r describes the move.
cdef bint do_automove_run(store *s, move_request *r) noexcept nogil
