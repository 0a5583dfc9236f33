cdef bint start_thread(pthread_t *thread, const char *name, void *(*fn)(void *) noexcept nogil,
                       store *s) noexcept nogil:
    cdef bint started = start_quiet_thread(thread, fn, s) == 0
    if started:
        pthread_setname_np(thread[0], name)
    return started


cdef void cond_init(pthread_cond_t *cond) noexcept nogil:
    cdef pthread_condattr_t clock
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(cond, &clock)
    pthread_condattr_destroy(&clock)


cdef void time_after(timespec *until, unsigned int usec) noexcept nogil:
    until[0] = ns_timespec(now_ns() + <int64_t>usec * 1000)
