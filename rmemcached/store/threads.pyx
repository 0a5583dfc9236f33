# Starting threads, and waiting.


cdef bint _start_thread(pthread_t *thread, const char *name, void *(*fn)(void *) noexcept nogil,
                        store *s) noexcept nogil:
    """Starts a thread of the store's. Signals are for the process's own threads: all are blocked in it."""
    cdef sigset_t all_signals, old_signals
    cdef bint started
    sigfillset(&all_signals)
    pthread_sigmask(SIG_SETMASK, &all_signals, &old_signals)
    started = pthread_create(thread, NULL, fn, s) == 0
    pthread_sigmask(SIG_SETMASK, &old_signals, NULL)
    if started:
        pthread_setname_np(thread[0], name)
    return started


cdef void _time_after(timespec *until, unsigned int usec) noexcept nogil:
    """CLOCK_MONOTONIC in so many microseconds, for pthread_cond_timedwait."""
    clock_gettime(CLOCK_MONOTONIC, until)
    until.tv_sec += usec // 1000000
    until.tv_nsec += usec % 1000000 * 1000
    if until.tv_nsec >= 1000000000:
        until.tv_nsec -= 1000000000
        until.tv_sec += 1
