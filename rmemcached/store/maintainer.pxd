"""The maintainer thread keeps the queues of all classes within their limits, and starts automatic crawls.
memcached: items.c. store.pxd declares lru_maintain.
"""

cdef struct maintainer:
    pthread_mutex_t lock        # for waiting: maintainer_stop takes the lock to wake the thread
    pthread_cond_t cond         # signals that store.stopping was set
    pthread_t thread
    bint joinable
    uint64_t juggles            # atomic
    # used only by the thread
    uint32_t owner              # the thread's thread_id()
    uint32_t next_juggle[MAX_NUMBER_OF_SLAB_CLASSES]    # microseconds until the class's next turn
    uint32_t backoff[MAX_NUMBER_OF_SLAB_CLASSES]        # microseconds between two turns
    rel_time_t next_crawl[NUMBER_OF_QUEUES]             # when the queue is crawled next
    rel_time_t next_crawl_wait[NUMBER_OF_QUEUES]        # seconds between two crawls, less MIN_MAINTCRAWL_WAIT
    rel_time_t last_crawler_check

# Makes the lock, for store_create.
cdef void maintainer_init(store *s) noexcept nogil
# Starts the thread. False: there is no thread, or no memory.
cdef bint maintainer_start(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; store.stopping is set.
cdef void maintainer_stop(store *s) noexcept nogil
# Frees the lock, for store_destroy.
cdef void maintainer_destroy(store *s) noexcept nogil
