cdef void cond_init(pthread_cond_t *cond) noexcept nogil:
    cdef pthread_condattr_t clock
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(cond, &clock)
    pthread_condattr_destroy(&clock)


cdef void time_after(timespec *until, unsigned int usec) noexcept nogil:
    until[0] = ns_timespec(now_ns() + <int64_t>usec * 1000)


cdef void do_slabs_thread_wake(store *s, slabs_thread *t) noexcept nogil:
    assert_held(&s.slabs.lock)
    if not t.woken:
        t.woken = True
        pthread_cond_signal(&t.cond)


cdef void slabs_thread_stop(store *s, slabs_thread *t) noexcept nogil:
    cdef bint joinable
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    joinable = t.joinable
    t.joinable = False
    t.stop = True
    pthread_cond_broadcast(&t.cond)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    if joinable:
        pthread_join(t.thread, NULL)
