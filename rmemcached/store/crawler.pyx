cdef extern from *:
    unsigned int _ctz "__builtin_ctzll"(uint64_t x) nogil

cdef enum:
    CRAWLS_PER_SLEEP = 1000     # items between two sleeps of the crawler
    CRAWLER_BLOCK_TIME = 60     # seconds without automatic crawls after a request found the crawler busy


cdef void crawler_init(store *s) noexcept nogil:
    pthread_mutex_init(&s.crawler.lock, NULL)
    cond_init(&s.crawler.cond)


cdef void crawler_destroy(store *s) noexcept nogil:
    pthread_cond_destroy(&s.crawler.cond)
    pthread_mutex_destroy(&s.crawler.lock)


# --- the crawl ---

cdef bint _crawler_sleep(store *s, unsigned int usec) noexcept nogil:
    """Sleeps. False: the store is being stopped."""
    cdef timespec until
    if usec != 0:
        time_after(&until, usec)
        lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
        while not relaxed_load(&s.stopping) and pthread_cond_timedwait(&s.crawler.cond, &s.crawler.lock, &until) == 0:
            pass
        unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    return not relaxed_load(&s.stopping)


cdef bint _crawler_rest(store *s, unsigned int *items_left) noexcept nogil:
    """Called for each item: sleeps after every CRAWLS_PER_SLEEP of them. False: the store is being stopped."""
    assert_owner(s.crawler.owner)
    assert_no_locks()
    items_left[0] -= 1
    if items_left[0] != 0:
        return not relaxed_load(&s.stopping)
    items_left[0] = CRAWLS_PER_SLEEP
    return _crawler_sleep(s, <unsigned int>relaxed_load(&s.config.lru_crawler_sleep))


cdef void _crawl_expired(store *s, unsigned int id, item *it, uint32_t hv, bint count) noexcept nogil:
    """Frees an expired item. count (an automatic crawl): counts an unexpired item by the minutes left to its expiry."""
    assert_owner(s.crawler.owner)
    assert_held(item_mutex(s, hv))
    assert_held(&s.queues[id].lock)
    cdef lru_queue *q = &s.queues[id]
    cdef crawler_stats *stats = &s.crawler.stats[id]
    cdef rel_time_t left
    if item_is_expired(s, it) or header_is_lost(s, it):
        q.stats.crawler_reclaimed += 1
        if not it.it_flags & ITEM_FETCHED and not item_is_flushed(s, it):
            q.stats.expired_unfetched += 1
        do_item_unlink_nolock(s, q, it, hv)
        if count:
            stats.reclaimed += 1
    elif count:
        stats.seen += 1
        if it.exptime == 0:
            stats.noexp += 1
        else:
            left = it.exptime - store_time(s)
            if left < CRAWL_MINUTES * 60:
                stats.histo[left // 60] += 1


cdef void _crawl_queue_done(store *s, unsigned int id) noexcept nogil:
    """Takes the queue out of the crawl."""
    assert_no_locks()
    cdef crawler_stats *stats = &s.crawler.stats[id]
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    relaxed_store(&s.crawler.map[id >> 6], s.crawler.map[id >> 6] & ~(<uint64_t>1 << (id & 63)))
    if s.crawler.type == CRAWLER_AUTOEXPIRE:
        stats.end_time = store_time(s)
        stats.run_complete = True
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)


cdef bint _crawl_queue(store *s, unsigned int id, const crawler_client *client, bint count) noexcept nogil:
    """Looks at the next item of a queue. False: the dump cannot go on."""
    assert_owner(s.crawler.owner)
    cdef lru_queue *q = &s.queues[id]
    cdef item *it
    cdef uint32_t hv
    cdef bint ok = True
    lock_ranked(&q.lock, LRU_LOCK)
    it = q.crawl
    if it == NULL or q.crawl_remaining == 0:
        q.crawl = NULL
        unlock_ranked(&q.lock, LRU_LOCK)
        _crawl_queue_done(s, id)
        return True
    hv = store_hash(ITEM_key(it), it.nkey)
    if not item_trylock(s, hv):
        # The item lock's owner may be waiting for the LRU lock: let the owner go on, and come back later.
        unlock_ranked(&q.lock, LRU_LOCK)
        sched_yield()
        return True
    q.crawl = it.prev
    q.crawl_remaining -= 1
    if client != NULL:
        q.stats.crawler_items_checked += 1
        unlock_ranked(&q.lock, LRU_LOCK)
        if not item_is_expired(s, it) and not header_is_lost(s, it):
            ok = client.item_found(client.arg, it)
    else:
        # An item with references is left alone: its memory would not become free now.
        if relaxed_load(&it.refcount) == 1:
            q.stats.crawler_items_checked += 1
            _crawl_expired(s, id, it, hv, count)
        unlock_ranked(&q.lock, LRU_LOCK)
    item_unlock(s, hv)
    return ok


cdef void _crawl_abandon(store *s) noexcept nogil:
    """Ends the crawl in all queues."""
    assert_owner(s.crawler.owner)
    cdef unsigned int id
    for id in range(<unsigned int>NUMBER_OF_QUEUES):
        lock_ranked(&s.queues[id].lock, LRU_LOCK)
        s.queues[id].crawl = NULL
        unlock_ranked(&s.queues[id].lock, LRU_LOCK)
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    memset(s.crawler.map, 0, sizeof(s.crawler.map))
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)


cdef bint _crawl_queues(store *s, const crawler_client *client, bint count) noexcept nogil:
    """Looks at an item of each queue in turn, until all queues are done; the maintainer may add queues to an automatic
    crawl meanwhile. False: the crawl ended early.
    """
    assert_owner(s.crawler.owner)
    assert_no_locks()
    cdef unsigned int items_left = CRAWLS_PER_SLEEP
    cdef unsigned int word
    cdef uint64_t todo
    cdef bint any_left = True
    while any_left:
        any_left = False
        for word in range(<unsigned int>QUEUE_WORDS):
            todo = load_acquire(&s.crawler.map[word])
            while todo != 0:
                any_left = True
                if (client != NULL and not client.flush(client.arg)) \
                        or not _crawl_queue(s, word * 64 + _ctz(todo), client, count) \
                        or not _crawler_rest(s, &items_left):
                    _crawl_abandon(s)
                    return False
                todo &= todo - 1
    return True


cdef unsigned int _crawl_chain(store *s, item *it, const crawler_client *client, bint *ok) noexcept nogil:
    """Dumps the items of a chain, until ok is False. Returns the number of dumped items."""
    cdef unsigned int found = 0
    while it != NULL and ok[0]:
        assert_held(item_mutex_of(s, it))
        if not item_is_expired(s, it) and not header_is_lost(s, it):
            found += 1
            ok[0] = client.item_found(client.arg, it)
        it = it.h_next
    return found


cdef bint _crawl_hash(store *s, const crawler_client *client) noexcept nogil:
    """Dumps all items, in the order of the table's buckets at the start. False: the dump ended early.

    When the table grows, a bucket's items move to buckets whose index ends in the old bucket's index. These have the
    same item lock, and the dump visits all of them together.
    """
    assert_owner(s.crawler.owner)
    assert_no_locks()
    cdef uint64_t mask, bucket, part
    cdef unsigned int found
    cdef unsigned int items_left = CRAWLS_PER_SLEEP
    cdef bint ok = True
    item_lock(s, 0)
    mask = s.assoc.old_hash_mask if relaxed_load(&s.assoc.expanding) else s.assoc.hash_mask
    item_unlock(s, 0)
    for bucket in range(mask + 1):
        found = 0
        item_lock(s, <uint32_t>bucket)
        if relaxed_load(&s.assoc.expanding):
            part = bucket
            while part <= s.assoc.old_hash_mask:
                if part >= relaxed_load(&s.assoc.expand_bucket):
                    found += _crawl_chain(s, s.assoc.old_hashtable[part], client, &ok)
                part += mask + 1
        part = bucket
        while part <= s.assoc.hash_mask:
            found += _crawl_chain(s, s.assoc.primary_hashtable[part], client, &ok)
            part += mask + 1
        item_unlock(s, <uint32_t>bucket)
        if not ok or (found != 0 and not client.flush(client.arg)):
            return False
        # For the crawler's rests an empty bucket counts as an item.
        while ok and found > 1:
            ok = _crawler_rest(s, &items_left)
            found -= 1
        if not ok or not _crawler_rest(s, &items_left):
            return False
    return True


# --- the thread ---

cdef bint _crawl(store *s, const crawler_client *client) noexcept nogil:
    """Carries out the started crawl, until no queue is left; releases the crawler lock meanwhile. client: of a dump,
    else NULL. False: the crawl ended early.
    """
    assert_held(&s.crawler.lock)
    assert_owner(s.crawler.owner)
    cdef bint hash_walk = s.crawler.hash
    cdef bint count = s.crawler.type == CRAWLER_AUTOEXPIRE
    cdef bint complete = True
    cdef bint busy = True
    cdef unsigned int word
    while busy and complete:
        unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
        complete = _crawl_hash(s, client) if hash_walk else _crawl_queues(s, client, count)
        lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
        # The maintainer may have added queues since.
        busy = False
        for word in range(<unsigned int>QUEUE_WORDS):
            busy = busy or s.crawler.map[word] != 0
    return complete


cdef void *_crawler_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    cdef crawler_client client
    cdef bint dump, complete
    s.crawler.owner = thread_id()
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    while s.crawler.run or s.crawler.running:
        if not s.crawler.running:
            pthread_cond_wait(&s.crawler.cond, &s.crawler.lock)
            continue
        dump = s.crawler.type == CRAWLER_DUMP
        client = s.crawler.client
        complete = _crawl(s, &client if dump else NULL)
        s.crawler.running = False
        if dump:
            unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
            assert_no_locks()
            client.done(client.arg, complete)
            lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    relaxed_store(&s.config.lru_crawler, 0)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    return NULL


cdef bint lru_crawler_enable(store *s) noexcept nogil:
    cdef bint started = False
    cdef pthread_t ended
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    while s.crawler.joinable and not s.config.lru_crawler:
        # The thread has left its loop, so this wait is short.
        s.crawler.joinable = False
        ended = s.crawler.thread
        unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
        pthread_join(ended, NULL)
        lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    if not s.config.lru_crawler and not relaxed_load(&s.stopping):
        started = start_quiet_thread(&s.crawler.thread, b"mc-itemcrawler", _crawler_thread, s) == 0
        s.crawler.joinable = started
        s.crawler.run = started
        relaxed_store(&s.config.lru_crawler, started)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    return started


cdef void lru_crawler_disable(store *s) noexcept nogil:
    cdef bint idle
    cdef pthread_t ended
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    idle = s.crawler.joinable and not s.crawler.running
    ended = s.crawler.thread
    if idle:
        s.crawler.joinable = False
    s.crawler.run = False
    pthread_cond_broadcast(&s.crawler.cond)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    if idle:
        pthread_join(ended, NULL)


cdef void crawler_stop(store *s) noexcept nogil:
    lru_crawler_disable(s)
    if s.crawler.joinable:
        pthread_join(s.crawler.thread, NULL)
        s.crawler.joinable = False


# --- starting crawls ---

cdef void _crawl_start_queue(store *s, unsigned int id, uint64_t remaining) noexcept nogil:
    """Adds a queue to the crawl."""
    assert_held(&s.crawler.lock)
    cdef lru_queue *q = &s.queues[id]
    lock_ranked(&q.lock, LRU_LOCK)
    q.crawl = q.tail
    # With a limit above the queue's size, the crawl also gets to items linked meanwhile.
    q.crawl_remaining = q.size if remaining == CRAWL_QUEUE_SIZE else remaining
    unlock_ranked(&q.lock, LRU_LOCK)
    if s.crawler.type == CRAWLER_AUTOEXPIRE:
        memset(&s.crawler.stats[id], 0, sizeof(crawler_stats))
        s.crawler.stats[id].start_time = store_time(s)
    store_release(&s.crawler.map[id >> 6], s.crawler.map[id >> 6] | <uint64_t>1 << (id & 63))


cdef crawler_result_type crawler_start(store *s, const uint64_t *queues, uint64_t remaining, crawler_run_type kind,
                                       const crawler_client *client) noexcept nogil:
    cdef unsigned int id
    cdef uint64_t new[QUEUE_WORDS]
    cdef uint64_t any_new = 0
    cdef rel_time_t now = store_time(s)
    cdef crawler_result_type result = CRAWLER_OK
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    if not s.crawler.run or relaxed_load(&s.stopping) or (queues == NULL and kind != CRAWLER_DUMP):
        result = CRAWLER_ERROR
    elif s.crawler.running and not (kind == CRAWLER_AUTOEXPIRE and s.crawler.type == CRAWLER_AUTOEXPIRE):
        # No automatic crawl begins for a while, so the caller's next attempt finds the crawler free.
        s.crawler.block_until = now + CRAWLER_BLOCK_TIME
        result = CRAWLER_RUNNING
    elif kind == CRAWLER_AUTOEXPIRE and s.crawler.block_until > now:
        result = CRAWLER_RUNNING
    elif queues != NULL:
        for id in range(<unsigned int>QUEUE_WORDS):
            new[id] = queues[id] & ~s.crawler.map[id]
            any_new |= new[id]
        if any_new == 0:
            result = CRAWLER_NOTSTARTED
    if result == CRAWLER_OK:
        s.crawler.type = kind
        s.crawler.hash = queues == NULL
        if client != NULL:
            s.crawler.client = client[0]
        if queues != NULL:
            for id in range(<unsigned int>NUMBER_OF_QUEUES):
                if new[id >> 6] >> (id & 63) & 1:
                    _crawl_start_queue(s, id, remaining)
        s.crawler.starts += 1
        s.crawler.running = True
        pthread_cond_broadcast(&s.crawler.cond)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    return result


cdef bint crawler_take_result(store *s, unsigned int id, crawler_stats *out) noexcept nogil:
    cdef bint complete
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    complete = s.crawler.stats[id].run_complete
    if complete:
        out[0] = s.crawler.stats[id]
        s.crawler.stats[id].run_complete = False
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    return complete


cdef bint _parse_classes(const char *text, size_t length, uint64_t *queues) noexcept nogil:
    """Parses slab class ids separated by commas into a bit map of their queues. False: the text is something else."""
    cdef const char *end = text + length
    cdef unsigned int clsid, word
    cdef const char *digits
    memset(queues, 0, QUEUE_WORDS * sizeof(uint64_t))
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
        for word in range(<unsigned int>QUEUE_WORDS):
            queues[word] |= <uint64_t>1 << clsid
    return True


cdef crawler_result_type _crawler_crawl(store *s, const char *classes, size_t length, uint64_t remaining,
                                        crawler_run_type kind, const crawler_client *client) noexcept nogil:
    # crawler_start for classes given as text: "all", "hash", or slab class ids.
    cdef uint64_t queues[QUEUE_WORDS]
    if length == 4 and memcmp(classes, b"hash", 4) == 0:
        return crawler_start(s, NULL, remaining, kind, client)
    if length == 3 and memcmp(classes, b"all", 3) == 0:
        memset(queues, 0xff, sizeof(queues))
    elif not _parse_classes(classes, length, queues):
        return CRAWLER_BADCLASS
    return crawler_start(s, queues, remaining, kind, client)


cdef crawler_result_type lru_crawler_crawl(store *s, const char *classes, size_t length) noexcept nogil:
    cdef uint32_t limit = <uint32_t>relaxed_load(&s.config.lru_crawler_tocrawl)
    return _crawler_crawl(s, classes, length, limit if limit != 0 else CRAWL_ALL, CRAWLER_EXPIRED, NULL)


cdef crawler_result_type lru_crawler_dump(store *s, const char *classes, size_t length,
                                          const crawler_client *client) noexcept nogil:
    return _crawler_crawl(s, classes, length, CRAWL_QUEUE_SIZE, CRAWLER_DUMP, client)


cdef void lru_crawler_set_sleep(store *s, uint32_t usec) noexcept nogil:
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    relaxed_store(&s.config.lru_crawler_sleep, usec)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)


cdef void lru_crawler_set_tocrawl(store *s, uint32_t items) noexcept nogil:
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    relaxed_store(&s.config.lru_crawler_tocrawl, items)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
