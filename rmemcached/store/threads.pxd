"""Helpers for the store's own threads: their start, and their waits."""

# Starts a thread with the store as its argument, shielded from the process's signals. False: the system refuses.
cdef bint start_thread(pthread_t *thread, const char *name, void *(*fn)(void *) noexcept nogil,
                       store *s) noexcept nogil
# Makes a condition variable whose timed waits end by CLOCK_MONOTONIC.
cdef void cond_init(pthread_cond_t *cond) noexcept nogil
# The moment so many microseconds from now, for pthread_cond_timedwait.
cdef void time_after(timespec *until, unsigned int usec) noexcept nogil
