"""The store's clock, set once a second by store_tick, and the expiry of items by this clock.

store.pxd declares the functions for callers of the store: store_time, realtime and others.
"""

cdef struct store_clock:
    # constant
    int64_t process_started     # Unix time of rel_time_t 0
    int64_t monotonic_start     # CLOCK_MONOTONIC seconds at rel_time_t 0
    # relaxed atomic
    rel_time_t current_time     # changes under the lock; goes back only by store_advance
    # under the lock
    pthread_mutex_t lock        # CLOCK_LOCK
    rel_time_t advance          # sum of all store_advance
    bint paused                 # clock_tick leaves current_time alone

# Notes the start of the clock, or goes on with the clock of a memory file's last run, and makes the lock, for
# store_create. clock_tick sets the time.
cdef void clock_init(store *s) noexcept nogil
# Frees the lock, for store_destroy.
cdef void clock_destroy(store *s) noexcept nogil
# Sets the clock by the system's, for store_tick, and tells clients with direct reads.
cdef void clock_tick(store *s) noexcept nogil
# Whether flush_all has invalidated the item. The caller of this function and of the next holds the item lock.
cdef bint item_is_flushed(store *s, const item *it) noexcept nogil
# Whether the item can be dropped, being expired or flushed. A lookup refuses an item one second earlier, when the clock
# reaches exptime.
cdef bint item_is_expired(store *s, const item *it) noexcept nogil
