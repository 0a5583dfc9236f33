"""The crawler thread walks LRU queues from their tails, or the hash table, to free expired items or to dump all items.
memcached: crawler.c.

lru_queue.crawl of a crawled queue is the crawler's next item. memcached's crawler has an item of its own in the queue
instead.

store.pxd declares the crawler's commands: lru_crawler_crawl and others.
"""

cdef enum:
    CRAWL_ALL = 0xffffffff      # items of a queue: no limit
    CRAWL_QUEUE_SIZE = 0        # as many items as the queue has at the start of the crawl
    CRAWL_MINUTES = 60          # entries of crawler_stats.histo, one for each minute
    QUEUE_WORDS = NUMBER_OF_QUEUES // 64    # words of a bit map of queues

cdef enum crawler_run_type:
    CRAWLER_AUTOEXPIRE          # started by the maintainer
    CRAWLER_EXPIRED
    CRAWLER_DUMP

# An automatic crawl's findings in a queue. The crawler thread owns them during the crawl, the crawler lock afterwards.
cdef struct crawler_stats:
    uint64_t histo[CRAWL_MINUTES]   # items by the minutes until they expire
    uint64_t noexp              # items without expiry
    uint64_t reclaimed
    uint64_t seen               # items looked at, without the reclaimed
    rel_time_t start_time
    rel_time_t end_time
    bint run_complete           # the crawl has ended, and the maintainer has not judged it yet

cdef struct crawler:
    pthread_mutex_t lock        # the crawler lock
    pthread_cond_t cond         # wakes the thread for a crawl, or to end
    # the crawler lock
    pthread_t thread
    bint joinable
    uint32_t owner              # thread_id() of the thread, written by the thread
    bint run                    # the thread takes crawls
    bint running                # a crawl is under way
    rel_time_t block_until      # no automatic crawl begins before this time
    uint64_t starts
    crawler_stats stats[NUMBER_OF_QUEUES]
    # The crawl under way. Written with the crawler lock held; constant while `running` is set, except for queues added
    # to an automatic crawl.
    crawler_run_type type
    bint hash                   # the crawl walks the hash table
    crawler_client client
    uint64_t map[QUEUE_WORDS]   # queues still to be crawled; atomic, as the thread reads without the lock

# Makes the locks, for store_create. lru_crawler_enable starts the thread.
cdef void crawler_init(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; store.stopping is set, so a crawl does not go on.
cdef void crawler_stop(store *s) noexcept nogil
# Destroys the locks, for store_destroy.
cdef void crawler_destroy(store *s) noexcept nogil
# Starts a crawl of the queues in a bit map of NUMBER_OF_QUEUES bits; NULL: of the hash table. Adds the maintainer's
# queues to an automatic crawl under way. remaining: items of each queue at most, or CRAWL_QUEUE_SIZE. client: of a
# dump, else NULL. CRAWLER_NOTSTARTED: the map is empty, or all its queues are being crawled already.
cdef crawler_result_type crawler_start(store *s, const uint64_t *queues, uint64_t remaining, crawler_run_type kind,
                                       const crawler_client *client) noexcept nogil
# Copies the findings of a queue's last automatic crawl, for the maintainer. False: no automatic crawl of the queue has
# ended since the last call.
cdef bint crawler_take_result(store *s, unsigned int id, crawler_stats *out) noexcept nogil
