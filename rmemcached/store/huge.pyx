cdef enum:
    HUGE_FROM = 16 * 1024 * 1024    # bytes of the arena in use, before huge pages are made ahead
    HUGE_REFUSALS = 8           # refusals in a row, before the thread gives up
    HUGE_TRIES = 64             # huge pages tried in a round, at most
    HUGE_SMALL = 512            # small pages in a huge page
    SMALL_PAGE = 4096
    HUGE_LOOKED = 8             # words looked at in the middle of each small page
    # of huge_pages.state
    SMALL_PAGES = 0
    HUGE_WANTED
    HUGE_MADE


cdef bint huge_init(store *s) noexcept nogil:
    cond_init(&s.huge.maker.cond)
    s.huge.enabled = s.config.huge_pages
    if s.huge.enabled:
        s.huge.state = <uint8_t *>calloc(s.slabs.arena_length // HUGE_PAGE, sizeof(uint8_t))
    return s.huge.state != NULL or not s.huge.enabled


cdef bint huge_start(store *s) noexcept nogil:
    if s.huge.enabled:
        s.huge.maker.joinable = start_quiet_thread(&s.huge.maker.thread, b"mc-hugepages", _huge_thread, s) == 0
    return s.huge.maker.joinable or not s.huge.enabled


cdef void huge_destroy(store *s) noexcept nogil:
    free(s.huge.state)
    pthread_cond_destroy(&s.huge.maker.cond)


cdef inline char *_huge_at(store *s, size_t number) noexcept nogil:
    return s.slabs.arena + number * HUGE_PAGE


cdef bint _huge_make(store *s, char *at) noexcept nogil:
    """Makes a huge page of the small pages here. False: the system cannot."""
    return madvise(at, HUGE_PAGE, MADV_HUGEPAGE) == 0 and madvise(at, HUGE_PAGE, MADV_COLLAPSE) == 0


cdef bint _huge_make_ahead(store *s, char *at) noexcept nogil:
    """Makes a huge page where no page is yet. A thread may use the memory meanwhile."""
    if s.slabs.memfd < 0:
        # Private memory becomes huge at the first touch.
        return madvise(at, HUGE_PAGE, MADV_HUGEPAGE) == 0 and populate_write(at, HUGE_PAGE) == 0
    # The system makes a huge page only where a small page is: make a small page first.
    return populate_write(at, 1) == 0 and _huge_make(s, at)


cdef bint _huge_is_written(char *at) noexcept nogil:
    """Whether most small pages of a huge page have been written to. Memory promised to a value, but not written yet,
    costs nothing, and must stay so. The check makes no pages.
    """
    cdef unsigned char there[HUGE_SMALL]
    cdef unsigned int page, word
    cdef unsigned int written = 0
    if mincore(at, HUGE_PAGE, there) != 0:
        return False
    for page in range(<unsigned int>HUGE_SMALL):
        word = 0
        while there[page] & 1 and word < HUGE_LOOKED:
            if relaxed_load(<uint64_t *>(at + page * SMALL_PAGE + SMALL_PAGE // 2) + word):
                written += 1
                break
            word += 1
    return written >= HUGE_SMALL * 3 // 4


cdef bint _huge_may_make_ahead(store *s) noexcept nogil:
    # Whether the next huge page should be made ahead, and fits into all limits. Opens the arena up to there.
    assert_held(&s.slabs.lock)
    cdef size_t used = (s.slabs.arena_used + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
    # The slabs may have overtaken this thread, which then goes on behind them.
    s.huge.ready = max(s.huge.ready, used)
    return (s.slabs.arena_used >= HUGE_FROM and s.huge.ready == used
            and s.slabs.malloced + (used + HUGE_PAGE - s.slabs.arena_used) <= s.config.maxbytes
            and used + HUGE_PAGE <= s.slabs.arena_length and s.slabs.released.count == 0
            and (s.slabs.memfd < 0 or used + HUGE_PAGE <= s.slabs.file_length)
            and arena_open_to(s, used + HUGE_PAGE))


cdef void _huge_try(store *s, uint32_t number, bint ahead) noexcept nogil:
    """Makes a huge page, if its memory has been written (ahead: the memory used before). Releases the slabs lock for a
    while.
    """
    assert_held(&s.slabs.lock)
    # The page right before a huge page made ahead is partly used, as a rule. So look at the page before both.
    cdef uint32_t looked = number - 2 if ahead else number
    cdef bint made
    cdef int reason
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    if not _huge_is_written(_huge_at(s, looked)):
        lock_ranked(&s.slabs.lock, SLABS_LOCK)
        return
    made = _huge_make_ahead(s, _huge_at(s, number)) if ahead else _huge_make(s, _huge_at(s, number))
    reason = errno
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    if ahead:
        s.huge.ready = max(s.huge.ready, <size_t>(number + 1) * HUGE_PAGE)
    if s.huge.state[number] == HUGE_WANTED:
        s.huge.waiting -= 1
    s.huge.state[number] = HUGE_MADE if made else SMALL_PAGES
    if made:
        s.huge.refusals = 0
        relaxed_store(&s.huge.made, s.huge.made + 1)
    else:
        # EINVAL: Linux is older than 6.1, or refuses huge pages to this process, or only to this memory.
        s.huge.refusals = s.huge.refusals + 1 if reason == EINVAL else 0
        s.huge.refused = s.huge.refusals == HUGE_REFUSALS


cdef void _huge_round(store *s) noexcept nogil:
    """Makes the wanted huge pages. Comes to an end even if the system refuses many of them."""
    assert_held(&s.slabs.lock)
    cdef uint32_t count = <uint32_t>(s.slabs.arena_used // HUGE_PAGE)
    cdef uint32_t tries = 0
    cdef uint32_t _group
    if _huge_may_make_ahead(s):
        _huge_try(s, <uint32_t>(s.huge.ready // HUGE_PAGE), True)
    for _group in range(count):
        if s.huge.maker.stop or s.huge.refused or s.huge.waiting == 0 or tries == HUGE_TRIES:
            break
        s.huge.next = (s.huge.next + 1) % count
        if s.huge.state[s.huge.next] == HUGE_WANTED:
            tries += 1
            _huge_try(s, s.huge.next, False)


cdef void *_huge_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    while not s.huge.maker.stop and not s.huge.refused:
        if s.huge.maker.woken:
            s.huge.maker.woken = False
            _huge_round(s)
        else:
            pthread_cond_wait(&s.huge.maker.cond, &s.slabs.lock)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return NULL


cdef inline void huge_arena_grows(store *s) noexcept nogil:
    assert_held(&s.slabs.lock)
    if s.huge.enabled and s.slabs.arena_used >= HUGE_FROM and s.slabs.arena_used + HUGE_PAGE > s.huge.ready:
        do_slabs_thread_wake(s, &s.huge.maker)


cdef void huge_want(store *s, uint32_t number) noexcept nogil:
    assert_held(&s.slabs.lock)
    if s.huge.enabled and not s.huge.refused and s.huge.state[number] == SMALL_PAGES:
        s.huge.state[number] = HUGE_WANTED
        s.huge.waiting += 1
        do_slabs_thread_wake(s, &s.huge.maker)


cdef void huge_forget(store *s, uint32_t page) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef uint8_t *state = &s.huge.state[page // (HUGE_PAGE // SLAB_PAGE_SIZE)] if s.huge.enabled else NULL
    if state != NULL and state[0] == HUGE_MADE:
        state[0] = SMALL_PAGES


cdef bint huge_preallocate(store *s, size_t length) noexcept nogil:
    cdef size_t number
    if s.huge.enabled and s.slabs.memfd >= 0:
        for number in range(length // HUGE_PAGE):
            if not _huge_make_ahead(s, _huge_at(s, number)):
                break
    return populate(s.slabs.arena, length) == 0
