# The maintainer thread: keeps the queues of all classes within their limits, and has the crawler look for expired items
# where it pays. memcached: items.c.


cdef int _juggle_temp(store *s, unsigned int clsid) noexcept nogil:
    """Drops what has expired at TEMP's tail."""
    cdef int moves = 0
    cdef int more = 1
    while moves < JUGGLES_MAX and more != 0:
        more = lru_pull_tail(s, clsid, TEMP_LRU, 0, 0, 0, PULL_MOST)
        moves += more
    return moves


cdef int lru_maintainer_juggle(store *s, unsigned int clsid) noexcept nogil:
    """Moves on what is too much, or too old, in a class's HOT and WARM, and COLD's active tail. Returns how much was
    done. In flat mode everything goes to COLD.
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
    if segmented:
        for i in range(3):
            q = &s.queues[clsid | <unsigned int>i << 6]
            pthread_mutex_lock(&q.lock)
            total_bytes += q.bytes
            if i << 6 == COLD_LRU and q.tail != NULL:
                cold_age = store_time(s) - item_time(q.tail)
            pthread_mutex_unlock(&q.lock)
        pthread_mutex_lock(&s.tune_lock)
        hot_age = _scaled_age(cold_age, s.config.hot_max_factor)
        warm_age = _scaled_age(cold_age, s.config.warm_max_factor)
        pthread_mutex_unlock(&s.tune_lock)
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


cdef rel_time_t _crawl_judge(store *s, unsigned int id, const crawler_stats *stats, rel_time_t wait) noexcept nogil:
    """Seconds to wait before the next crawl of a queue, from what the last one found and the wait before it: about
    as long as it takes until one in a hundred of the items that can expire has done so.
    """
    cdef uint64_t low_watermark = (stats.seen - stats.noexp) // 100 + 1
    cdef uint64_t available = 0
    cdef uint32_t minute
    for minute in range(60):
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
    log_crawl(s, id, stats, low_watermark, available, wait + MIN_MAINTCRAWL_WAIT)
    return wait


cdef void lru_maintainer_crawler_check(store *s) noexcept nogil:
    """Starts a crawl of the queues whose time has come."""
    cdef maintainer *m = &s.maintainer
    cdef crawler_stats *stats
    cdef uint64_t todo[4]
    cdef uint64_t limit = 0
    cdef uint64_t tocrawl
    cdef bint any_todo = False
    cdef unsigned int i, clsid
    cdef rel_time_t now = store_time(s)
    memset(todo, 0, sizeof(todo))
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        clsid = i & 63
        if clsid == 0 or clsid > s.power_largest:
            continue
        stats = &s.crawler_stats[i]
        pthread_mutex_lock(&s.crawler_lock)
        if stats.run_complete:
            stats.run_complete = False
            m.next_crawl_wait[i] = _crawl_judge(s, i, stats, m.next_crawl_wait[i])
            m.next_crawl[i] = now + m.next_crawl_wait[i] + MIN_MAINTCRAWL_WAIT
        pthread_mutex_unlock(&s.crawler_lock)
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
        _crawler_start(s, todo, limit if limit != 0 else CRAWL_ALL, CRAWLER_AUTOEXPIRE, NULL)


cdef uint32_t _maintain(store *s, uint32_t slept) noexcept nogil:
    """One turn after a sleep of so many microseconds; returns how long to sleep next. A class in which nothing was to
    be done is left alone for longer and longer, a busy one for shorter and shorter.
    """
    cdef maintainer *m = &s.maintainer
    cdef uint32_t to_sleep = MAX_MAINTAINER_SLEEP
    cdef unsigned int clsid
    cdef bint bumped
    if slept < MIN_MAINTAINER_SLEEP:
        slept = MIN_MAINTAINER_SLEEP
    fetch_add(&s.maintainer_juggles, 1)
    for clsid in range(1, s.power_largest + 1):
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
    pthread_mutex_lock(&s.bump_lock)
    bumped = lru_maintainer_bumps(s)
    pthread_mutex_unlock(&s.bump_lock)
    if bumped and to_sleep > MIN_MAINTAINER_SLEEP:
        to_sleep = MIN_MAINTAINER_SLEEP
    if relaxed_load(&s.config.lru_crawler) and m.last_crawler_check != store_time(s):
        lru_maintainer_crawler_check(s)
        m.last_crawler_check = store_time(s)
    return to_sleep


cdef void lru_maintain(store *s) noexcept nogil:
    cdef unsigned int clsid
    if s.bump_bufs != NULL:
        pthread_mutex_lock(&s.bump_lock)
        lru_maintainer_bumps(s)
        pthread_mutex_unlock(&s.bump_lock)
    for clsid in range(1, s.power_largest + 1):
        while lru_maintainer_juggle(s, clsid) != 0:
            pass


cdef void *_maintainer_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    cdef uint32_t to_sleep = MIN_MAINTAINER_SLEEP
    cdef timespec until
    while True:
        pthread_mutex_lock(&s.maintainer_lock)
        _time_after(&until, to_sleep)
        while to_sleep != 0 and not relaxed_load(&s.stopping) \
                and pthread_cond_timedwait(&s.maintainer_cond, &s.maintainer_lock, &until) == 0:
            pass
        pthread_mutex_unlock(&s.maintainer_lock)
        if relaxed_load(&s.stopping):
            return NULL
        to_sleep = _maintain(s, to_sleep)


cdef bint _maintainer_start(store *s) noexcept nogil:
    if not _bumps_init(s):
        return False
    s.maintainer_joinable = _start_thread(&s.maintainer_thread, b"mc-lrumaint", _maintainer_thread, s)
    return s.maintainer_joinable


cdef void _maintainer_stop(store *s) noexcept nogil:
    """Ends the thread; s.stopping is set."""
    pthread_mutex_lock(&s.maintainer_lock)
    pthread_cond_broadcast(&s.maintainer_cond)
    pthread_mutex_unlock(&s.maintainer_lock)
    if s.maintainer_joinable:
        pthread_join(s.maintainer_thread, NULL)
        s.maintainer_joinable = False
