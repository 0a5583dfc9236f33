"""Helpers for the store's own threads: their waits, and threads of the slabs lock."""

cdef struct slabs_thread:       # a thread that waits with the slabs lock; the slabs lock
    pthread_cond_t cond         # `woken` or `stop` was set
    pthread_t thread
    bint joinable
    bint stop
    bint woken                  # there may be something to do

# Makes a condition variable whose timed waits end by CLOCK_MONOTONIC.
cdef void cond_init(pthread_cond_t *cond) noexcept nogil
# The moment so many microseconds from now, for pthread_cond_timedwait.
cdef void time_after(timespec *until, unsigned int usec) noexcept nogil
# Wakes the thread. The caller holds the slabs lock.
cdef void do_slabs_thread_wake(store *s, slabs_thread *t) noexcept nogil
# Ends the thread, if it was started, and waits for its end.
cdef void slabs_thread_stop(store *s, slabs_thread *t) noexcept nogil
