# The crawler thread: walks LRU queues from their tails, or the hash table, to free expired items or to dump all items.
# memcached: crawler.c.
#
# A queue under crawl has a cursor, lru_queue.crawl: the item that is looked at next. Whoever takes that item out of the
# queue moves the cursor on, so that nothing but the crawler knows of it.


cdef bint _crawler_sleep(store *s, unsigned int usec) noexcept nogil:
    """Waits; False when the store is being stopped."""
    cdef timespec until
    if usec != 0:
        _time_after(&until, usec)
        pthread_mutex_lock(&s.crawler_lock)
        while not relaxed_load(&s.stopping) and pthread_cond_timedwait(&s.crawler_cond, &s.crawler_lock, &until) == 0:
            pass
        pthread_mutex_unlock(&s.crawler_lock)
    return not relaxed_load(&s.stopping)


cdef bint _crawler_rest(store *s, unsigned int *items_left) noexcept nogil:
    """Called for each item: sleeps after every CRAWLS_PER_SLEEP of them. False when the store is being stopped."""
    items_left[0] -= 1
    if items_left[0] != 0:
        return not relaxed_load(&s.stopping)
    items_left[0] = CRAWLS_PER_SLEEP
    return _crawler_sleep(s, <unsigned int>relaxed_load(&s.config.lru_crawler_sleep))


cdef void _crawl_expired(store *s, unsigned int id, item *it, uint32_t hv, bint count) noexcept nogil:
    """Frees the item if it has expired; else counts it by the minutes it has left. Item and LRU lock are held."""
    cdef lru_queue *q = &s.queues[id]
    cdef crawler_stats *stats = &s.crawler_stats[id]
    cdef rel_time_t left
    if item_is_expired(s, it):
        q.stats.crawler_reclaimed += 1
        if not it.it_flags & ITEM_FETCHED and not item_is_flushed(s, it):
            q.stats.expired_unfetched += 1
        _item_unlink_nolock(s, q, it, hv)
        if count:
            stats.reclaimed += 1
    elif count:
        stats.seen += 1
        if it.exptime == 0:
            stats.noexp += 1
        else:
            left = it.exptime - store_time(s)
            if left < 3600:
                stats.histo[left // 60] += 1


cdef void _crawl_queue_done(store *s, unsigned int id) noexcept nogil:
    """Takes the queue out of the crawl. No lock is held."""
    cdef crawler_stats *stats = &s.crawler_stats[id]
    pthread_mutex_lock(&s.crawler_lock)
    relaxed_store(&s.crawl_map[id >> 6], s.crawl_map[id >> 6] & ~(<uint64_t>1 << (id & 63)))
    if s.crawler_type == CRAWLER_AUTOEXPIRE:
        stats.end_time = store_time(s)
        stats.run_complete = True
    pthread_mutex_unlock(&s.crawler_lock)


cdef bint _crawl_queue(store *s, unsigned int id, const crawler_client *client, bint count) noexcept nogil:
    """One item of a queue. False: the dump cannot go on."""
    cdef lru_queue *q = &s.queues[id]
    cdef item *it
    cdef uint32_t hv
    cdef bint ok = True
    pthread_mutex_lock(&q.lock)
    it = q.crawl
    if it == NULL or q.crawl_remaining == 0:
        q.crawl = NULL
        pthread_mutex_unlock(&q.lock)
        _crawl_queue_done(s, id)
        return True
    hv = store_hash(ITEM_key(it), it.nkey)
    if not item_trylock(s, hv):
        # Its holder may be waiting for the LRU lock.
        pthread_mutex_unlock(&q.lock)
        sched_yield()
        return True
    q.crawl = it.prev
    q.crawl_remaining -= 1
    if client != NULL:
        q.stats.crawler_items_checked += 1
        pthread_mutex_unlock(&q.lock)
        if not item_is_expired(s, it):
            ok = client.item_found(client.arg, it)
    else:
        # The memory of an item that somebody has a reference to would not come back now.
        if relaxed_load(&it.refcount) == 1:
            q.stats.crawler_items_checked += 1
            _crawl_expired(s, id, it, hv, count)
        pthread_mutex_unlock(&q.lock)
    item_unlock(s, hv)
    return ok


cdef void _crawl_abandon(store *s) noexcept nogil:
    """Ends the crawl in all queues."""
    cdef unsigned int id
    for id in range(<unsigned int>NUMBER_OF_QUEUES):
        pthread_mutex_lock(&s.queues[id].lock)
        s.queues[id].crawl = NULL
        pthread_mutex_unlock(&s.queues[id].lock)
    pthread_mutex_lock(&s.crawler_lock)
    memset(s.crawl_map, 0, sizeof(s.crawl_map))
    pthread_mutex_unlock(&s.crawler_lock)


cdef bint _crawl_queues(store *s, const crawler_client *client, bint count) noexcept nogil:
    """One item of each queue in turn until all are done; an automatic crawl may get new ones meanwhile. False: ended
    before that.
    """
    cdef unsigned int items_left = CRAWLS_PER_SLEEP
    cdef unsigned int word
    cdef uint64_t todo
    cdef bint any_left = True
    while any_left:
        any_left = False
        for word in range(4):
            todo = load_acquire(&s.crawl_map[word])
            while todo != 0:
                any_left = True
                if (client != NULL and not client.flush(client.arg)) \
                        or not _crawl_queue(s, word * 64 + ctz(todo), client, count) \
                        or not _crawler_rest(s, &items_left):
                    _crawl_abandon(s)
                    return False
                todo &= todo - 1
    return True


cdef unsigned int _crawl_chain(store *s, item *it, const crawler_client *client, bint *ok) noexcept nogil:
    """The items of one chain, with its item lock held. Returns how many."""
    cdef unsigned int found = 0
    while it != NULL and ok[0]:
        if not item_is_expired(s, it):
            found += 1
            ok[0] = client.item_found(client.arg, it)
        it = it.h_next
    return found


cdef bint _crawl_hash(store *s, const crawler_client *client) noexcept nogil:
    """All items, by the buckets that the table has when this starts. False: ended before that.

    When the table grows, each bucket is divided into some whose indices end like its own, and which have the same item
    lock: a bucket as of the start is found in all of these.
    """
    cdef uint64_t mask, bucket, part
    cdef unsigned int found
    cdef unsigned int items_left = CRAWLS_PER_SLEEP
    cdef bint ok = True
    item_lock(s, 0)
    mask = s.old_hash_mask if relaxed_load(&s.expanding) else s.hash_mask
    item_unlock(s, 0)
    for bucket in range(mask + 1):
        found = 0
        item_lock(s, <uint32_t>bucket)
        if relaxed_load(&s.expanding):
            part = bucket
            while part <= s.old_hash_mask:
                if part >= relaxed_load(&s.expand_bucket):
                    found += _crawl_chain(s, s.old_hashtable[part], client, &ok)
                part += mask + 1
        part = bucket
        while part <= s.hash_mask:
            found += _crawl_chain(s, s.primary_hashtable[part], client, &ok)
            part += mask + 1
        item_unlock(s, <uint32_t>bucket)
        if not ok or (found != 0 and not client.flush(client.arg)):
            return False
        # An empty bucket counts as one item.
        while ok and found > 1:
            ok = _crawler_rest(s, &items_left)
            found -= 1
        if not ok or not _crawler_rest(s, &items_left):
            return False
    return True


cdef void *_crawler_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    cdef crawler_client client
    cdef bint dump, hash_walk, count, complete, busy
    pthread_mutex_lock(&s.crawler_lock)
    while s.crawler_run or s.crawler_running:
        if not s.crawler_running:
            pthread_cond_wait(&s.crawler_cond, &s.crawler_lock)
            continue
        dump = s.crawler_type == CRAWLER_DUMP
        count = s.crawler_type == CRAWLER_AUTOEXPIRE
        hash_walk = s.crawler_hash
        client = s.crawler_client
        busy = True
        while busy:
            pthread_mutex_unlock(&s.crawler_lock)
            if hash_walk:
                complete = _crawl_hash(s, &client)
            else:
                complete = _crawl_queues(s, &client if dump else NULL, count)
            pthread_mutex_lock(&s.crawler_lock)
            # The maintainer may have added queues since.
            busy = complete and s.crawl_map[0] | s.crawl_map[1] | s.crawl_map[2] | s.crawl_map[3] != 0
        s.crawler_running = False
        if dump:
            pthread_mutex_unlock(&s.crawler_lock)
            client.done(client.arg, complete)
            pthread_mutex_lock(&s.crawler_lock)
    relaxed_store(&s.config.lru_crawler, 0)
    pthread_mutex_unlock(&s.crawler_lock)
    return NULL


cdef bint lru_crawler_enable(store *s) noexcept nogil:
    """Starts the crawler thread. False when there is one, or none can be started."""
    cdef bint started = False
    cdef pthread_t ended
    pthread_mutex_lock(&s.crawler_lock)
    while s.crawler_joinable and not s.config.lru_crawler:
        # It has nothing more to do than to end.
        s.crawler_joinable = False
        ended = s.crawler_thread
        pthread_mutex_unlock(&s.crawler_lock)
        pthread_join(ended, NULL)
        pthread_mutex_lock(&s.crawler_lock)
    if not s.config.lru_crawler and not relaxed_load(&s.stopping):
        started = _start_thread(&s.crawler_thread, b"mc-itemcrawler", _crawler_thread, s)
        s.crawler_joinable = started
        s.crawler_run = started
        relaxed_store(&s.config.lru_crawler, started)
    pthread_mutex_unlock(&s.crawler_lock)
    return started


cdef void lru_crawler_disable(store *s) noexcept nogil:
    """Ends the crawler thread: at once or, when a crawl is under way, after it."""
    cdef bint idle
    cdef pthread_t ended
    pthread_mutex_lock(&s.crawler_lock)
    idle = s.crawler_joinable and not s.crawler_running
    ended = s.crawler_thread
    if idle:
        s.crawler_joinable = False
    s.crawler_run = False
    pthread_cond_broadcast(&s.crawler_cond)
    pthread_mutex_unlock(&s.crawler_lock)
    if idle:
        pthread_join(ended, NULL)


cdef void _crawler_stop(store *s) noexcept nogil:
    """Ends the thread; s.stopping is set, so that a crawl does not go on."""
    lru_crawler_disable(s)
    if s.crawler_joinable:
        pthread_join(s.crawler_thread, NULL)
        s.crawler_joinable = False


cdef void _crawl_start_queue(store *s, unsigned int id, uint64_t remaining) noexcept nogil:
    """Adds a queue to the crawl. The crawler lock is held."""
    cdef lru_queue *q = &s.queues[id]
    pthread_mutex_lock(&q.lock)
    q.crawl = q.tail
    # Without a limit it goes on to the head that the queue has when it gets there.
    q.crawl_remaining = q.size if remaining == CRAWL_QUEUE_SIZE else remaining
    pthread_mutex_unlock(&q.lock)
    if s.crawler_type == CRAWLER_AUTOEXPIRE:
        memset(&s.crawler_stats[id], 0, sizeof(crawler_stats))
        s.crawler_stats[id].start_time = store_time(s)
    store_release(&s.crawl_map[id >> 6], s.crawl_map[id >> 6] | <uint64_t>1 << (id & 63))


cdef crawler_result_type _crawler_start(store *s, const uint64_t *queues, uint64_t remaining, crawler_run_type kind,
                                        const crawler_client *client) noexcept nogil:
    """Starts a crawl of the queues in a bit map of NUMBER_OF_QUEUES bits; NULL: of the hash table. remaining: items of
    each queue at most, or CRAWL_QUEUE_SIZE.
    """
    cdef unsigned int id
    cdef uint64_t new[4]
    cdef uint64_t any_new = 0
    cdef rel_time_t now = store_time(s)
    cdef crawler_result_type result = CRAWLER_OK
    pthread_mutex_lock(&s.crawler_lock)
    if not s.crawler_run or relaxed_load(&s.stopping) or (queues == NULL and kind != CRAWLER_DUMP):
        result = CRAWLER_ERROR
    elif s.crawler_running and not (kind == CRAWLER_AUTOEXPIRE and s.crawler_type == CRAWLER_AUTOEXPIRE):
        # Whoever was refused shall find the crawler free when trying again.
        s.crawler_block_until = now + CRAWLER_BLOCK_TIME
        result = CRAWLER_RUNNING
    elif kind == CRAWLER_AUTOEXPIRE and s.crawler_block_until > now:
        result = CRAWLER_RUNNING
    elif queues != NULL:
        for id in range(4):
            new[id] = queues[id] & ~s.crawl_map[id]
            any_new |= new[id]
        if any_new == 0:
            result = CRAWLER_NOTSTARTED
    if result == CRAWLER_OK:
        s.crawler_type = kind
        s.crawler_hash = queues == NULL
        if client != NULL:
            s.crawler_client = client[0]
        if queues != NULL:
            for id in range(<unsigned int>NUMBER_OF_QUEUES):
                if new[id >> 6] >> (id & 63) & 1:
                    _crawl_start_queue(s, id, remaining)
        s.crawler_starts += 1
        s.crawler_running = True
        pthread_cond_broadcast(&s.crawler_cond)
    pthread_mutex_unlock(&s.crawler_lock)
    return result


cdef bint _parse_classes(const char *text, size_t length, uint64_t *queues) noexcept nogil:
    """Slab class ids separated by commas, as the queues that they have; False: not such."""
    cdef const char *end = text + length
    cdef unsigned int clsid, word
    cdef const char *digits
    memset(queues, 0, 4 * sizeof(uint64_t))
    while text < end:
        if text[0] == c',':
            text += 1
            continue
        if text[0] == c'+':
            text += 1
        clsid = 0
        digits = text
        while text < end and c'0' <= text[0] <= c'9' and clsid < MAX_NUMBER_OF_SLAB_CLASSES:
            clsid = clsid * 10 + (text[0] - c'0')
            text += 1
        if text == digits or (text < end and text[0] != c',') or not 0 < clsid < MAX_NUMBER_OF_SLAB_CLASSES:
            return False
        for word in range(4):
            queues[word] |= <uint64_t>1 << clsid
    return True


cdef crawler_result_type _crawler_crawl(store *s, const char *classes, size_t length, uint64_t remaining,
                                        crawler_run_type kind, const crawler_client *client) noexcept nogil:
    cdef uint64_t queues[4]
    if length == 4 and memcmp(classes, b"hash", 4) == 0:
        return _crawler_start(s, NULL, remaining, kind, client)
    if length == 3 and memcmp(classes, b"all", 3) == 0:
        memset(queues, 0xff, sizeof(queues))
    elif not _parse_classes(classes, length, queues):
        return CRAWLER_BADCLASS
    return _crawler_start(s, queues, remaining, kind, client)


cdef crawler_result_type lru_crawler_crawl(store *s, const char *classes, size_t length) noexcept nogil:
    """Has the crawler free expired items of the classes, at most lru_crawler_tocrawl from each tail (0: all)."""
    cdef uint32_t limit = <uint32_t>relaxed_load(&s.config.lru_crawler_tocrawl)
    return _crawler_crawl(s, classes, length, limit if limit != 0 else CRAWL_ALL, CRAWLER_EXPIRED, NULL)


cdef crawler_result_type lru_crawler_dump(store *s, const char *classes, size_t length,
                                          const crawler_client *client) noexcept nogil:
    return _crawler_crawl(s, classes, length, CRAWL_QUEUE_SIZE, CRAWLER_DUMP, client)


cdef void lru_crawler_set_sleep(store *s, uint32_t usec) noexcept nogil:
    pthread_mutex_lock(&s.crawler_lock)
    relaxed_store(&s.config.lru_crawler_sleep, usec)
    pthread_mutex_unlock(&s.crawler_lock)


cdef void lru_crawler_set_tocrawl(store *s, uint32_t items) noexcept nogil:
    pthread_mutex_lock(&s.crawler_lock)
    relaxed_store(&s.config.lru_crawler_tocrawl, items)
    pthread_mutex_unlock(&s.crawler_lock)
