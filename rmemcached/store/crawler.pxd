"""The crawler thread walks LRU queues from their tails, or the hash table, to free expired items or to dump all items.
memcached: crawler.c.

In a queue that is crawled, lru_queue.crawl is the item that the crawler looks at next. memcached's crawler has an item
of its own in the queue instead.
"""

cdef enum:
    CRAWL_ALL = 0xffffffff      # items of a queue: no limit
    CRAWL_QUEUE_SIZE = 0        # as many items as the queue has at the start of the crawl
    CRAWL_MINUTES = 60          # minutes for which crawler_stats counts the items that expire in each
    QUEUE_WORDS = NUMBER_OF_QUEUES // 64    # words of a bit map of queues

cdef enum crawler_run_type:
    CRAWLER_AUTOEXPIRE          # started by the maintainer
    CRAWLER_EXPIRED
    CRAWLER_DUMP

# What an automatic crawl of a queue finds. While it is under way the crawler thread owns it, then the crawler lock.
cdef struct crawler_stats:
    uint64_t histo[CRAWL_MINUTES]   # items that expire within so many minutes
    uint64_t noexp              # items that never expire
    uint64_t reclaimed
    uint64_t seen               # all but the reclaimed
    rel_time_t start_time
    rel_time_t end_time
    bint run_complete           # and the maintainer has not judged it yet

cdef struct crawler:
    pthread_mutex_t lock        # the crawler lock
    pthread_cond_t cond         # for the thread: there is a crawl, or it has to end
    # the crawler lock
    pthread_t thread
    bint joinable
    uint32_t owner              # thread_id() of the thread, which writes it
    bint run                    # the thread takes crawls
    bint running                # a crawl is under way
    rel_time_t block_until      # no automatic crawl before
    uint64_t starts
    crawler_stats stats[NUMBER_OF_QUEUES]
    # The crawl under way. Written with the crawler lock held; they do not change while `running` is set, except that
    # an automatic crawl gets more queues.
    crawler_run_type type
    bint hash                   # it walks the hash table
    crawler_client client
    uint64_t map[QUEUE_WORDS]   # the queues that are still being crawled; atomic, the thread reads it without the lock

cdef void crawler_init(store *s) noexcept nogil
# Ends the thread; store.stopping is set, so that a crawl does not go on.
cdef void crawler_stop(store *s) noexcept nogil
cdef void crawler_destroy(store *s) noexcept nogil
# Starts a crawl of the queues in a bit map of NUMBER_OF_QUEUES bits; NULL: of the hash table. remaining: items of each
# queue at most, or CRAWL_QUEUE_SIZE.
cdef crawler_result_type crawler_start(store *s, const uint64_t *queues, uint64_t remaining, crawler_run_type kind,
                                       const crawler_client *client) noexcept nogil
# Copies what the last automatic crawl of a queue found. False: there was none since the last call.
cdef bint crawler_take_result(store *s, unsigned int id, crawler_stats *out) noexcept nogil
