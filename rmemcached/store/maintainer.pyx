cdef enum:
    JUGGLES_MAX = 500           # items of a class moved in one turn of the maintainer
    MIN_MAINTAINER_SLEEP = 1000         # microseconds
    MAX_MAINTAINER_SLEEP = 1000000 - 1
    MAX_MAINTCRAWL_WAIT = 60 * 60       # seconds between two automatic crawls of a queue, at most
    MIN_MAINTCRAWL_WAIT = 5


cdef void maintainer_init(store *s) noexcept nogil:
    pthread_mutex_init(&s.maintainer.lock, NULL)
    cond_init(&s.maintainer.cond)


cdef void maintainer_destroy(store *s) noexcept nogil:
    pthread_cond_destroy(&s.maintainer.cond)
    pthread_mutex_destroy(&s.maintainer.lock)


cdef int _juggle_temp(store *s, unsigned int clsid) noexcept nogil:
    """Drops expired items at TEMP's tail."""
    cdef int moves = 0
    cdef int more = 1
    while moves < JUGGLES_MAX and more != 0:
        more = lru_pull_tail(s, clsid, TEMP_LRU, 0, 0, 0, PULL_MOST)
        moves += more
    return moves


cdef int lru_maintainer_juggle(store *s, unsigned int clsid) noexcept nogil:
    """Moves surplus or old items out of a class's HOT and WARM, and COLD's active tail to WARM. In flat mode everything
    goes to COLD. With S3-FIFO only drops expired items at the tails. Returns how many items moved or were dropped.
    """
    cdef bint segmented = relaxed_load(&s.config.lru_segmented)
    cdef uint64_t total_bytes = 0
    cdef rel_time_t cold_age = 0
    cdef rel_time_t hot_age = 0
    cdef rel_time_t warm_age = 0
    cdef lru_queue *q
    cdef int i
    cdef int more = 1
    cdef int moves = _juggle_temp(s, clsid)
    cdef int limit = moves + JUGGLES_MAX
    if s.config.s3fifo:
        # Items move only when memory is needed.
        while moves < limit and more != 0:
            more = s3_drop(s, clsid, PULL_MOST)
            moves += more
        return moves
    if segmented:
        for i in range(3):
            q = &s.queues[clsid | <unsigned int>i << SLAB_CLASS_BITS]
            lock_ranked(&q.lock, LRU_LOCK)
            total_bytes += q.bytes
            if i << SLAB_CLASS_BITS == COLD_LRU and q.tail != NULL:
                cold_age = store_time(s) - item_time(q.tail)
            unlock_ranked(&q.lock, LRU_LOCK)
        lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
        hot_age = _scaled_age(cold_age, s.config.hot_max_factor)
        warm_age = _scaled_age(cold_age, s.config.warm_max_factor)
        unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    while moves < limit and more != 0:
        more = lru_pull_tail(s, clsid, HOT_LRU, total_bytes, PULL_CRAWL_BLOCKS, hot_age, PULL_MOST)
        if more == 0:
            more = lru_pull_tail(s, clsid, WARM_LRU, total_bytes, PULL_CRAWL_BLOCKS, warm_age, PULL_MOST)
        if segmented:
            more += lru_pull_tail(s, clsid, COLD_LRU, total_bytes, PULL_CRAWL_BLOCKS, 0, PULL_MOST)
        moves += more
    return moves


cdef inline rel_time_t _scaled_age(rel_time_t age, double factor) noexcept nogil:
    cdef double scaled = age * factor
    return <rel_time_t>scaled if scaled < 4e9 else <rel_time_t>4000000000


cdef void _log_crawl(store *s, unsigned int id, const crawler_stats *stats, uint64_t low_watermark, uint64_t available,
                     rel_time_t next_run) noexcept nogil:
    """Logs the judgement of an automatic crawl of a queue; the next crawl begins in next_run seconds."""
    cdef char text[LOG_TEXT_MAX]
    cdef const char *lru = b"hot"
    if not log_wants(s.config.log, LOG_SYSEVENTS):
        return
    if id & LRU_MASK == WARM_LRU:
        lru = b"warm"
    elif id & LRU_MASK == COLD_LRU:
        lru = b"cold"
    elif id & LRU_MASK == TEMP_LRU:
        lru = b"temp"
    snprintf(text, sizeof(text),
             "type=lru_crawler crawler=%u lru=%s low_mark=%llu next_reclaims=%llu since_run=%u next_run=%u elapsed=%u "
             "examined=%llu reclaimed=%llu", id & SLAB_CLASS_MASK, lru, <unsigned long long>low_watermark,
             <unsigned long long>available, store_time(s) - stats.end_time, next_run,
             stats.end_time - stats.start_time, <unsigned long long>stats.seen, <unsigned long long>stats.reclaimed)
    log_text(s.config.log, LOG_SYSEVENTS, text)


cdef rel_time_t _crawl_judge(store *s, unsigned int id, const crawler_stats *stats, rel_time_t wait) noexcept nogil:
    """Computes the seconds before the next crawl of a queue, from the findings of the last crawl and the wait before
    it. Aims at the time in which one in a hundred of the items with an expiry time expires.
    """
    cdef uint64_t low_watermark = (stats.seen - stats.noexp) // 100 + 1
    cdef uint64_t available = 0
    cdef uint32_t minute
    for minute in range(<uint32_t>CRAWL_MINUTES):
        available += stats.histo[minute]
        if available > low_watermark:
            if wait < minute * 60:
                wait += 60
            elif wait >= 60:
                wait -= 60
            break
    if available == 0:
        wait += 60
    if wait > MAX_MAINTCRAWL_WAIT:
        wait = MAX_MAINTCRAWL_WAIT
    _log_crawl(s, id, stats, low_watermark, available, wait + MIN_MAINTCRAWL_WAIT)
    return wait


cdef void lru_maintainer_crawler_check(store *s) noexcept nogil:
    """Starts a crawl of the queues whose time has come."""
    assert_owner(s.maintainer.owner)
    cdef maintainer *m = &s.maintainer
    cdef crawler_stats stats
    cdef uint64_t todo[QUEUE_WORDS]
    cdef uint64_t limit = 0
    cdef uint64_t tocrawl
    cdef bint any_todo = False
    cdef unsigned int i, clsid
    cdef rel_time_t now = store_time(s)
    memset(todo, 0, sizeof(todo))
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        clsid = i & SLAB_CLASS_MASK
        if clsid == 0 or clsid > s.slabs.power_largest:
            continue
        if crawler_take_result(s, i, &stats):
            m.next_crawl_wait[i] = _crawl_judge(s, i, &stats, m.next_crawl_wait[i])
            m.next_crawl[i] = now + m.next_crawl_wait[i] + MIN_MAINTCRAWL_WAIT
        if now > m.next_crawl[i]:
            if relaxed_load(&s.queues[i].size) > limit:
                limit = relaxed_load(&s.queues[i].size)
            todo[i >> 6] |= <uint64_t>1 << (i & 63)
            any_todo = True
            m.next_crawl[i] = now + MIN_MAINTCRAWL_WAIT
    if any_todo:
        tocrawl = relaxed_load(&s.config.lru_crawler_tocrawl)
        if tocrawl != 0 and tocrawl < limit:
            limit = tocrawl
        crawler_start(s, todo, limit if limit != 0 else CRAWL_ALL, CRAWLER_AUTOEXPIRE, NULL)


cdef uint32_t _maintain(store *s, uint32_t slept) noexcept nogil:
    """Makes a turn, after a sleep of so many microseconds. Returns how long to sleep next. An idle class waits longer
    for its next turn each time, a busy class less.
    """
    assert_owner(s.maintainer.owner)
    cdef maintainer *m = &s.maintainer
    cdef uint32_t to_sleep = MAX_MAINTAINER_SLEEP
    cdef unsigned int clsid
    cdef bint bumped
    if slept < MIN_MAINTAINER_SLEEP:
        slept = MIN_MAINTAINER_SLEEP
    fetch_add(&m.juggles, 1)
    for clsid in range(1, s.slabs.power_largest + 1):
        m.next_juggle[clsid] = m.next_juggle[clsid] - slept if m.next_juggle[clsid] > slept else 0
        if m.next_juggle[clsid] == 0:
            if lru_maintainer_juggle(s, clsid) == 0:
                m.backoff[clsid] += m.backoff[clsid] // 8 if m.backoff[clsid] != 0 else MIN_MAINTAINER_SLEEP
                if m.backoff[clsid] > MAX_MAINTAINER_SLEEP:
                    m.backoff[clsid] = MAX_MAINTAINER_SLEEP
            else:
                m.backoff[clsid] //= 2
                if m.backoff[clsid] < MIN_MAINTAINER_SLEEP:
                    m.backoff[clsid] = 0
            m.next_juggle[clsid] = m.backoff[clsid]
        if m.next_juggle[clsid] < to_sleep:
            to_sleep = m.next_juggle[clsid]
    lock_ranked(&s.lru.bump_lock, BUMP_LOCK)
    bumped = lru_maintainer_bumps(s)
    unlock_ranked(&s.lru.bump_lock, BUMP_LOCK)
    if bumped and to_sleep > MIN_MAINTAINER_SLEEP:
        to_sleep = MIN_MAINTAINER_SLEEP
    if relaxed_load(&s.config.lru_crawler) and m.last_crawler_check != store_time(s):
        lru_maintainer_crawler_check(s)
        m.last_crawler_check = store_time(s)
    return to_sleep


cdef void lru_maintain(store *s) noexcept nogil:
    cdef unsigned int clsid
    if s.lru.bump_bufs != NULL:
        lock_ranked(&s.lru.bump_lock, BUMP_LOCK)
        lru_maintainer_bumps(s)
        unlock_ranked(&s.lru.bump_lock, BUMP_LOCK)
    for clsid in range(1, s.slabs.power_largest + 1):
        while lru_maintainer_juggle(s, clsid) != 0:
            pass


cdef void *_maintainer_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    cdef uint32_t to_sleep = MIN_MAINTAINER_SLEEP
    cdef timespec until
    s.maintainer.owner = thread_id()
    while True:
        lock_ranked(&s.maintainer.lock, MAINTAINER_LOCK)
        time_after(&until, to_sleep)
        while to_sleep != 0 and not relaxed_load(&s.stopping) \
                and pthread_cond_timedwait(&s.maintainer.cond, &s.maintainer.lock, &until) == 0:
            pass
        unlock_ranked(&s.maintainer.lock, MAINTAINER_LOCK)
        if relaxed_load(&s.stopping):
            return NULL
        to_sleep = _maintain(s, to_sleep)


cdef bint maintainer_start(store *s) noexcept nogil:
    if not lru_bumps_init(s):
        return False
    s.maintainer.joinable = start_quiet_thread(&s.maintainer.thread, b"mc-lrumaint", _maintainer_thread, s) == 0
    return s.maintainer.joinable


cdef void maintainer_stop(store *s) noexcept nogil:
    lock_ranked(&s.maintainer.lock, MAINTAINER_LOCK)
    pthread_cond_broadcast(&s.maintainer.cond)
    unlock_ranked(&s.maintainer.lock, MAINTAINER_LOCK)
    if s.maintainer.joinable:
        pthread_join(s.maintainer.thread, NULL)
        s.maintainer.joinable = False
