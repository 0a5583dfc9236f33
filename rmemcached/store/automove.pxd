"""Automove decides which class needs a page, and which has one too many. memcached: slab_automove.c.

Each run looks at what has happened to every class since the last run, and adds that up over a window of runs. A class
that has many free chunks and was left alone for a whole window gives a page to the pool. Otherwise the class that
evicts the youngest items gets a page of the class with the oldest items, if its own are evicted at a much younger age.
"""

cdef struct window_data:        # one run, of one class
    uint64_t age                # seconds since the oldest item was used
    uint64_t dirty              # it evicted, grew, or had no memory
    uint64_t evicted_seen
    double evicted_ratio        # its share of all evictions

cdef struct class_sample:
    uint64_t evicted
    uint64_t outofmemory
    uint64_t age
    uint32_t total_pages
    uint64_t free_chunks
    uint32_t chunks_per_page

cdef struct slab_automove:      # the reassign lock
    uint32_t window_size
    uint32_t window_cur         # runs
    double max_age_ratio
    class_sample before[MAX_NUMBER_OF_SLAB_CLASSES]
    window_data *window         # window_size for each class
    int64_t last                # CLOCK_MONOTONIC second of the last page that a class got
    bint changed                # the settings: do_automove_init has to read them

# Starts over with the present settings. False: there is no memory, and it goes on with those from before. The caller
# holds the reassign lock here and in do_automove_run.
cdef bint do_automove_init(store *s) noexcept nogil
cdef void automove_destroy(store *s) noexcept nogil
# Whether a page should be moved now, and which. The mover asks.
cdef bint do_automove_run(store *s, move_request *r) noexcept nogil
