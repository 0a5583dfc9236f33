"""The item store (see store.pxd for what it promises). The parts: slabs, assoc, lru, items, crawler, maintainer, mover,
automove, check.

Lock order: the crawler lock, one item lock, the mover's lock, the tune lock, LRU locks, the slabs lock. Against that
order only trylock is used: eviction looks for a victim with an LRU lock held and tries its item lock, and so does the
page mover with the slabs lock held. The hash table's growth takes all item locks, in index order.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from rmemcached.sys.atomics cimport fetch_add, fetch_sub, load_acquire, relaxed_load, relaxed_store, store_release
from rmemcached.logger cimport (
    LOG_EVICTIONS, LOG_EXPIRED, LOG_FETCHERS, LOG_FLUSHED, LOG_FOUND, LOG_MUTATIONS, LOG_NOT_FOUND, LOG_SYSEVENTS,
    LOG_TEXT_MAX, log_eviction, log_fetch_status, log_item_get, log_item_store, log_text, log_wants, logger_none,
)


cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    long c_time "time"(long *out)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_create(pthread_t *thread, const void *attr, void *(*fn)(void *) noexcept nogil, void *arg)
    int pthread_join(pthread_t thread, void **ret)
    int pthread_setname_np(pthread_t thread, const char *name)
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_condattr_init(pthread_condattr_t *attr)
    int pthread_condattr_setclock(pthread_condattr_t *attr, int clock)
    int pthread_condattr_destroy(pthread_condattr_t *attr)
    int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
    int pthread_cond_destroy(pthread_cond_t *cond)
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
    int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const timespec *until)
    int pthread_cond_broadcast(pthread_cond_t *cond)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIG_SETMASK
    int sigfillset(sigset_t *signals)
    int pthread_sigmask(int how, const sigset_t *signals, sigset_t *old)

cdef extern from "<sys/mman.h>" nogil:
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE
        MAP_PRIVATE
        MAP_ANONYMOUS
        MAP_NORESERVE
        MADV_HUGEPAGE
        MADV_DONTNEED
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int mprotect(void *addr, size_t length, int prot)

cdef extern from "<sys/resource.h>" nogil:
    ctypedef unsigned long rlim_t
    struct rlimit:
        rlim_t rlim_cur
        rlim_t rlim_max
    enum:
        RLIMIT_AS
    rlim_t RLIM_INFINITY
    int getrlimit(int resource, rlimit *limits)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *buf, size_t size, const char *format, ...)

cdef extern from *:
    """
    /* Folds the 128 bit product of two words into one: every input bit reaches most output bits. */
    static inline unsigned long long rmc_mum(unsigned long long a, unsigned long long b)
    {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    }

    /* A small number of the calling thread's own. */
    static inline unsigned int rmc_thread_slot(void)
    {
        static unsigned int threads;
        static __thread unsigned int slot;
        if (slot == 0)
            slot = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
        return slot;
    }

    /* Makes memory resident. Linux 5.14 can be asked, which reports what a touch would die of; others are touched. */
    #include <errno.h>
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    static int rmc_populate(char *memory, size_t length)
    {
        if (madvise(memory, length, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno != EINVAL)
            return -1;
        for (size_t i = 0; i < length; i += 4096)
            ((volatile char *)memory)[i] = 0;
        return 0;
    }
    """
    uint64_t mum "rmc_mum"(uint64_t a, uint64_t b) nogil
    unsigned int ctz "__builtin_ctzll"(uint64_t x) nogil
    unsigned int thread_slot "rmc_thread_slot"() nogil
    int rmc_populate(char *memory, size_t length) nogil


cdef enum:
    CACHE_LINE = 64
    HUGE_PAGE = 2 * 1024 * 1024
    HOT_LRU = 0                 # ids of the queues, to be added to the class id
    WARM_LRU = 64
    COLD_LRU = 128
    TEMP_LRU = 192
    LRU_MASK = 192
    NOT_MOVED = 1               # no queue's id
    PULL_TRIES = 5              # items that a pull passes over before it gives up
    PULL_MOST = 16              # items that one pull moves or drops, at most
    PULL_EVICT = 1              # flag of a pull of COLD: evict its tail
    PULL_CRAWL_BLOCKS = 2       # flag of a pull: leave alone what the crawler has not seen
    LRU_BUMP_BUF_SIZE = 8192    # entries
    JUGGLES_MAX = 500           # items of a class that the maintainer moves in one go
    MIN_MAINTAINER_SLEEP = 1000         # microseconds
    MAX_MAINTAINER_SLEEP = 1000000 - 1
    MAX_MAINTCRAWL_WAIT = 60 * 60       # seconds between two automatic crawls of a queue, at most
    MIN_MAINTCRAWL_WAIT = 5
    ALLOC_TRIES = 10            # pulls that one allocation makes
    HASHPOWER_DEFAULT = 16
    HASHPOWER_MAX = 32
    GROW_CHECK_MASK = 255       # a class looks at the hash table's load every 256 links
    CRAWLS_PER_SLEEP = 1000     # items that the crawler looks at between two sleeps
    CRAWLER_BLOCK_TIME = 60     # seconds without automatic crawls after somebody was told that the crawler is busy
    CRAWL_ALL = 0xffffffff      # no limit
    CRAWL_QUEUE_SIZE = 0        # as many items as the queue has at the start of the crawl
    PAGE_RELEASED = 64          # page_class of pages that were given back to the system
    PAGE_IN_TRANSIT = 65        # ... and that are in no list at the moment
    MOVE_REQUESTS = 8           # page moves that may wait for the mover thread
    MOVE_MAX_LOOPS = 5000       # looks at a page's chunks before the mover deletes and evicts what is in its way
    MOVE_GIVE_UP_LOOPS = 10000  # ... and before it leaves the page where it is
    MOVE_BACKOFF_MAX = 5000     # microseconds between two looks
    SIZES_GRANULARITY = 32      # bytes

cdef enum:
    NO_PAGE = 0xffffffff

cdef size_t ARENA_RESERVE = <size_t>1 << 40     # address space for a memory limit that grows at run time
cdef double MIN_PAGES_FOR_RECLAIM = 2.5         # automove: free memory of a class that gives a page to the pool
cdef uint32_t MIN_PAGES_FOR_SOURCE = 2          # automove: a class with more pages may lose one

cdef struct page_list:          # pages by number, linked by store.page_next. The slabs lock
    uint32_t head               # the oldest; NO_PAGE: none
    uint32_t tail
    uint32_t count

cdef struct slab_class:         # the slabs lock. Class 0 is the global pool: pages only
    uint32_t size               # bytes of a chunk
    uint32_t perslab            # chunks in a page
    page_list pages
    uint32_t carve_left         # chunks of one of the pages that were never used; their memory is untouched
    char *carve                 # that page
    item *slots                 # free chunks, linked by next and prev
    uint64_t sl_curr            # free chunks: slots and carve_left

cdef enum crawler_run_type:
    CRAWLER_AUTOEXPIRE          # started by the maintainer
    CRAWLER_EXPIRED
    CRAWLER_DUMP

cdef struct crawler_stats:      # what the last automatic crawl of a queue found. The crawler lock
    uint64_t histo[60]          # items that expire within so many minutes
    uint64_t noexp
    uint64_t reclaimed
    uint64_t seen               # all but the reclaimed
    rel_time_t start_time
    rel_time_t end_time
    bint run_complete           # and not yet judged by the maintainer

cdef struct lru_bump_entry:
    item *it                    # with a reference
    uint32_t hv

cdef struct lru_bump_buf:       # moves from COLD to WARM that wait for the maintainer. Its lock
    pthread_mutex_t lock
    uint32_t head               # entries [head, tail), modulo the size; written by the maintainer only
    uint32_t tail
    uint64_t dropped
    lru_bump_entry entries[LRU_BUMP_BUF_SIZE]

cdef struct moved_item:         # out of its queue, with its item lock held
    item *it
    uint32_t hv
    unsigned int lru            # where it goes

cdef struct maintainer:         # the thread's own
    uint32_t next_juggle[MAX_NUMBER_OF_SLAB_CLASSES]    # microseconds
    uint32_t backoff[MAX_NUMBER_OF_SLAB_CLASSES]
    rel_time_t next_crawl[NUMBER_OF_QUEUES]
    rel_time_t next_crawl_wait[NUMBER_OF_QUEUES]
    rel_time_t last_crawler_check

cdef struct lru_counters:       # what `stats reset` clears
    uint64_t total_items        # links
    uint64_t evicted
    uint64_t evicted_nonzero
    uint64_t reclaimed
    uint64_t outofmemory
    uint64_t expired_unfetched
    uint64_t evicted_unfetched
    uint64_t evicted_active
    uint64_t lrutail_reflocked
    uint64_t direct_reclaims
    uint64_t crawler_reclaimed
    uint64_t crawler_items_checked
    uint64_t tailrepairs
    uint64_t moves_to_cold
    uint64_t moves_to_warm
    uint64_t moves_within_lru
    rel_time_t evicted_time

cdef struct lru_queue:          # its lock
    pthread_mutex_t lock
    item *head
    item *tail
    uint64_t size               # items; read without the lock by assoc_check_load
    uint64_t bytes              # sum of their ITEM_ntotal
    item *crawl                 # the next item of the crawl under way; NULL: none, or no more
    uint32_t crawl_remaining    # items that the crawl still looks at
    lru_counters stats

cdef struct page_move:          # the page that is being emptied
    # constant during a move
    char *page                  # NULL: none. Set and cleared with the slabs lock held
    unsigned int src
    unsigned int dst
    uint32_t size               # bytes of a chunk
    uint32_t perslab
    # the slabs lock
    uint32_t taken_count        # chunks that nobody will use any more
    uint32_t given_back         # of these, those that were given back during the present pass
    uint8_t *taken              # by chunk; atomic, as the mover reads it without the lock

cdef struct move_request:
    unsigned int src
    unsigned int dst
    bint allow_evictions

cdef struct page_mover:
    pthread_mutex_t lock
    pthread_cond_t cond         # a request, or the end, for the thread
    pthread_t thread
    bint joinable
    unsigned int stop           # atomic, set with the lock held
    # the lock
    move_request request[MOVE_REQUESTS]
    uint32_t requests
    long automove_last          # CLOCK_MONOTONIC second of automove's last page
    bint automove_changed       # settings that automove_init has to look at
    # the slabs lock
    unsigned int any_class      # the last source that was chosen for "any class"
    # the thread's own
    item *spare                 # a chunk for the next item's copy
    bint allow_evictions
    uint32_t busy_loops         # looks at the page so far
    # atomic; the thread writes them, and store_reset_stats
    unsigned int running
    unsigned int last_busy_status
    uint64_t slabs_moved
    uint64_t rescues
    uint64_t chunk_rescues
    uint64_t inline_reclaim
    uint64_t busy_items
    uint64_t busy_deletes
    uint64_t busy_nomem

cdef struct window_data:        # one run, of one class
    uint64_t age                # seconds since the oldest item was used
    uint64_t dirty              # it evicted, grew, or had no memory
    uint64_t evicted_seen
    double evicted_ratio        # its share of all evictions

cdef struct class_sample:
    uint64_t evicted
    uint64_t outofmemory
    uint64_t age
    uint32_t total_pages
    uint64_t free_chunks
    uint32_t chunks_per_page

cdef struct slab_automove:      # the mover's lock
    uint32_t window_size
    uint32_t window_cur         # runs
    double max_age_ratio
    class_sample before[MAX_NUMBER_OF_SLAB_CLASSES]
    window_data *window         # window_size for each class

cdef struct item_stripe:
    pthread_mutex_t lock
    # Linked items of the stripe's keys: written with the lock held, read with relaxed loads without. The sizes of the
    # queues would not do for that: an item that moves meanwhile may be met in two of them, or in none.
    uint64_t items
    uint64_t bytes

cdef struct store:
    # Constant after store_create, except for the settings that have functions; integers among these are atomic.
    store_config config
    # constant after store_create
    int64_t process_started     # Unix time
    int64_t monotonic_start     # CLOCK_MONOTONIC seconds at process_started
    unsigned int power_largest  # id of the class with the largest chunks
    uint32_t class_size[MAX_NUMBER_OF_SLAB_CLASSES]
    item_stripe *item_locks
    uint32_t item_lock_mask
    char *mapping               # what mmap gave
    size_t mapping_length
    char *arena                 # aligned to a huge page
    size_t arena_length         # a multiple of ARENA_EXTENT
    uint32_t *sizes             # links by size / SIZES_GRANULARITY, atomic; NULL: not counted
    uint32_t sizes_buckets
    # the clock and flush_all: relaxed atomic
    rel_time_t current_time
    rel_time_t advance          # added by store_advance
    uint32_t paused             # store_tick leaves current_time alone
    rel_time_t oldest_live      # items not used since are dead once the clock has reached it; 0: none
    char pad_before_counters[CACHE_LINE]    # every set writes cas_id, every get reads the clock
    uint64_t cas_id             # atomic
    char pad_after_counters[CACHE_LINE]
    uint64_t get_expired        # atomic
    uint64_t get_flushed        # atomic
    # slabs: slabs_lock
    pthread_mutex_t slabs_lock
    slab_class classes[MAX_NUMBER_OF_SLAB_CLASSES]
    size_t arena_open           # bytes of the arena that can be accessed
    size_t arena_used           # bytes of the arena that were given out as pages
    uint64_t malloced           # what the pages of classes and pool count as
    page_list released          # pages given back to the system
    bint pinned                 # none is: those that the limit does not allow stay in the pool, unused
    uint8_t *page_class         # per page of the arena: the class it belongs to, PAGE_RELEASED, PAGE_IN_TRANSIT
    uint32_t *page_next         # per page of the arena: the next one of its list
    page_move move
    # LRU
    lru_queue queues[NUMBER_OF_QUEUES]
    # hash table. A bucket: the item lock of its index. The pointers and masks change with all item locks held;
    # expand_bucket is written by the growing thread with the item lock of that bucket held.
    item **primary_hashtable
    item **old_hashtable
    uint64_t hash_mask
    uint64_t old_hash_mask
    unsigned int hashpower
    unsigned int expanding      # buckets of the old table from expand_bucket on are still in it
    uint64_t expand_bucket
    # growing: grow_lock, except for the flags
    pthread_mutex_t grow_lock
    pthread_t grow_thread
    bint grow_joinable
    unsigned int growing        # atomic: the thread is at work
    unsigned int stopping       # atomic: store_stop_threads wants it, and other threads, to end
    uint64_t malloc_fails       # atomic
    # maintainer
    pthread_mutex_t maintainer_lock
    pthread_cond_t maintainer_cond      # s.stopping was set
    pthread_t maintainer_thread
    bint maintainer_joinable
    uint64_t maintainer_juggles     # atomic
    lru_bump_buf *bump_bufs     # each thread uses one of them; NULL: no maintainer
    uint32_t bump_mask
    pthread_mutex_t bump_lock   # held by who makes the moves
    pthread_mutex_t tune_lock   # writing of what `lru` sets in config, and reading of its factors
    maintainer maintainer
    # crawler: crawler_lock. What is said of the crawl under way stays while crawler_running is set.
    pthread_mutex_t crawler_lock
    pthread_cond_t crawler_cond     # a crawl, or the end, for the thread
    pthread_t crawler_thread
    bint crawler_joinable
    bint crawler_run            # the thread takes crawls
    bint crawler_running        # a crawl is under way
    bint crawler_hash           # ... of the hash table
    crawler_run_type crawler_type
    crawler_client crawler_client
    uint64_t crawl_map[4]       # the queues that are still being crawled; atomic, read by the thread without the lock
    rel_time_t crawler_block_until  # no automatic crawl before
    uint64_t crawler_starts
    crawler_stats crawler_stats[NUMBER_OF_QUEUES]
    page_mover mover
    slab_automove automove


include "slabs.pyx"
include "assoc.pyx"
include "log.pyx"
include "lru.pyx"
include "items.pyx"
include "crawler.pyx"
include "maintainer.pyx"
include "mover.pyx"
include "automove.pyx"
include "cachedump.pyx"
include "check.pyx"


# --- threads ---

cdef bint _start_thread(pthread_t *thread, const char *name, void *(*fn)(void *) noexcept nogil,
                        store *s) noexcept nogil:
    """Starts a thread of the store's. Signals are for the process's own threads: all are blocked in it."""
    cdef sigset_t all_signals, old_signals
    cdef bint started
    sigfillset(&all_signals)
    pthread_sigmask(SIG_SETMASK, &all_signals, &old_signals)
    started = pthread_create(thread, NULL, fn, s) == 0
    pthread_sigmask(SIG_SETMASK, &old_signals, NULL)
    if started:
        pthread_setname_np(thread[0], name)
    return started


cdef void _time_after(timespec *until, unsigned int usec) noexcept nogil:
    """CLOCK_MONOTONIC in so many microseconds, for pthread_cond_timedwait."""
    clock_gettime(CLOCK_MONOTONIC, until)
    until.tv_sec += usec // 1000000
    until.tv_nsec += usec % 1000000 * 1000
    if until.tv_nsec >= 1000000000:
        until.tv_nsec -= 1000000000
        until.tv_sec += 1


cdef void store_stop_threads(store *s) noexcept nogil:
    """Ends all threads of the store; twice is harmless. It stays usable, but grows and maintains nothing any more."""
    pthread_mutex_lock(&s.crawler_lock)
    store_release(&s.stopping, 1)
    pthread_cond_broadcast(&s.crawler_cond)
    pthread_mutex_unlock(&s.crawler_lock)
    _maintainer_stop(s)
    _crawler_stop(s)
    mover_stop(s)
    pthread_mutex_lock(&s.grow_lock)
    if s.grow_joinable:
        pthread_join(s.grow_thread, NULL)
        s.grow_joinable = False
    pthread_mutex_unlock(&s.grow_lock)


# --- life ---

cdef unsigned int _item_lock_power(unsigned int nthreads) noexcept nogil:
    """log2 of the number of item locks for so many worker threads; memcached's choice (thread.c)."""
    if nthreads < 3:
        return 10
    if nthreads < 4:
        return 11
    if nthreads < 5:
        return 12
    if nthreads <= 10:
        return 13
    if nthreads <= 20:
        return 14
    return 15


cdef const char *_config_error(const store_config *config) noexcept nogil:
    if config.maxbytes == 0:
        return b"the memory limit must be greater than zero"
    if config.maxbytes >= <uint64_t>1 << 62:
        return b"the memory limit is larger than the address space"
    if config.factor <= 1.0:
        return b"the slab growth factor must be greater than 1"
    if config.chunk_size == 0:
        return b"the chunk size must be greater than zero"
    if config.slab_chunk_size_max > SLAB_PAGE_SIZE or config.slab_chunk_size_max < sizeof(item) + config.chunk_size:
        return b"the largest slab chunk must be at most a slab page and at least the smallest chunk"
    if config.slab_chunk_size_max % 8 != 0:
        return b"the largest slab chunk must be a multiple of 8 bytes"
    if config.item_size_max < config.slab_chunk_size_max or config.item_size_max > <uint64_t>1 << 30:
        return b"the item size limit must be between the largest slab chunk and 1 GB"
    if config.hashpower_init > HASHPOWER_MAX:
        return b"the initial hash power must be at most 32"
    return NULL


cdef char _problem[160]         # the text of an error that store_create words


cdef store *store_create(const store_config *config, const char **error) noexcept nogil:
    """A new, empty store, or NULL with a constant text in ``*error``. Starts the threads that config asks for; touches
    little memory.
    """
    cdef store *s
    cdef unsigned int lock_power
    cdef uint32_t lock
    cdef int i
    cdef timespec now
    cdef pthread_condattr_t clock
    error[0] = _config_error(config)
    if error[0] != NULL:
        return NULL
    s = <store *>calloc(1, sizeof(store))
    if s == NULL:
        error[0] = b"out of memory"
        return NULL
    s.config = config[0]
    if s.config.log == NULL:
        s.config.log = logger_none()
    s.cas_id = 1
    pthread_mutex_init(&s.slabs_lock, NULL)
    pthread_mutex_init(&s.grow_lock, NULL)
    pthread_mutex_init(&s.crawler_lock, NULL)
    pthread_mutex_init(&s.maintainer_lock, NULL)
    pthread_mutex_init(&s.bump_lock, NULL)
    pthread_mutex_init(&s.tune_lock, NULL)
    pthread_mutex_init(&s.mover.lock, NULL)
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(&s.crawler_cond, &clock)
    pthread_cond_init(&s.maintainer_cond, &clock)
    pthread_cond_init(&s.mover.cond, &clock)
    pthread_condattr_destroy(&clock)
    s.config.lru_crawler = False
    if not s.config.lru_maintainer:
        s.config.lru_segmented = False
        s.config.temp_lru = False
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_init(&s.queues[i].lock, NULL)

    clock_gettime(CLOCK_MONOTONIC, &now)
    s.process_started = <int64_t>c_time(NULL) - ITEM_UPDATE_INTERVAL - 2
    s.monotonic_start = <int64_t>now.tv_sec - ITEM_UPDATE_INTERVAL - 2

    if s.config.hashpower_init == 0:
        s.config.hashpower_init = HASHPOWER_DEFAULT
    # A bucket must not need two item locks: fewer locks than buckets.
    lock_power = _item_lock_power(config.nthreads)
    if lock_power >= s.config.hashpower_init:
        lock_power = s.config.hashpower_init - 1
    s.item_lock_mask = (<uint32_t>1 << lock_power) - 1
    s.item_locks = <item_stripe *>calloc(<size_t>s.item_lock_mask + 1, sizeof(item_stripe))
    if s.item_locks == NULL or not assoc_init(s):
        error[0] = b"out of memory for the hash table"
        store_destroy(s)
        return NULL
    for lock in range(s.item_lock_mask + 1):
        pthread_mutex_init(&s.item_locks[lock].lock, NULL)
    if not slabs_init(s):
        error[0] = b"cannot reserve address space for the memory limit"
        store_destroy(s)
        return NULL
    if s.config.preallocate and not slabs_preallocate(s):
        snprintf(_problem, sizeof(_problem), b"Error while preallocating slab memory!\nIf using -L or other prealloc "
                 b"options, max memory must be at least %u megabytes.", s.power_largest)
        error[0] = _problem
        store_destroy(s)
        return NULL
    if s.config.track_sizes and not sizes_init(s):
        error[0] = b"out of memory"
        store_destroy(s)
        return NULL
    store_tick(s)
    if config.lru_crawler and not lru_crawler_enable(s):
        error[0] = b"cannot start the LRU crawler thread"
        store_destroy(s)
        return NULL
    if config.lru_maintainer and not _maintainer_start(s):
        error[0] = b"cannot start the LRU maintainer thread"
        store_destroy(s)
        return NULL
    if s.config.slab_reassign and not mover_start(s):
        error[0] = b"cannot start the slab page mover"
        store_destroy(s)
        return NULL
    return s


cdef void store_destroy(store *s) noexcept nogil:
    """Frees everything. No other thread may be in the store, and no item may be used afterwards."""
    cdef uint32_t lock
    cdef int i
    if s == NULL:
        return
    store_stop_threads(s)
    if s.mapping != NULL:
        munmap(s.mapping, s.mapping_length)
    free(s.page_class)
    free(s.page_next)
    free(s.move.taken)
    free(s.automove.window)
    free(s.sizes)
    free(s.primary_hashtable)
    free(s.old_hashtable)
    if s.item_locks != NULL:
        for lock in range(s.item_lock_mask + 1):
            pthread_mutex_destroy(&s.item_locks[lock].lock)
        free(s.item_locks)
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_destroy(&s.queues[i].lock)
    _bumps_free(s)
    pthread_mutex_destroy(&s.tune_lock)
    pthread_mutex_destroy(&s.bump_lock)
    pthread_cond_destroy(&s.maintainer_cond)
    pthread_mutex_destroy(&s.maintainer_lock)
    pthread_cond_destroy(&s.crawler_cond)
    pthread_mutex_destroy(&s.crawler_lock)
    pthread_cond_destroy(&s.mover.cond)
    pthread_mutex_destroy(&s.mover.lock)
    pthread_mutex_destroy(&s.grow_lock)
    pthread_mutex_destroy(&s.slabs_lock)
    free(s)


cdef const store_config *store_get_config(store *s) noexcept nogil:
    return &s.config


cdef void store_copy_config(store *s, store_config *out) noexcept nogil:
    # The locks of all that changes it.
    pthread_mutex_lock(&s.crawler_lock)
    pthread_mutex_lock(&s.mover.lock)
    pthread_mutex_lock(&s.tune_lock)
    pthread_mutex_lock(&s.slabs_lock)
    out[0] = s.config
    pthread_mutex_unlock(&s.slabs_lock)
    pthread_mutex_unlock(&s.tune_lock)
    pthread_mutex_unlock(&s.mover.lock)
    pthread_mutex_unlock(&s.crawler_lock)


cdef void store_arena(store *s, void **base, size_t *length) noexcept nogil:
    """The reserved range in which all items lie."""
    base[0] = s.arena
    length[0] = s.arena_length


# --- time ---

cdef void store_tick(store *s) noexcept nogil:
    cdef timespec now
    cdef rel_time_t advance
    if not relaxed_load(&s.paused) and clock_gettime(CLOCK_MONOTONIC, &now) == 0:
        while True:
            advance = <rel_time_t>relaxed_load(&s.advance)
            relaxed_store(&s.current_time, <rel_time_t>(<int64_t>now.tv_sec - s.monotonic_start) + advance)
            # store_advance may have come between.
            if advance == <rel_time_t>relaxed_load(&s.advance):
                break
    assoc_check_load(s)


cdef void store_advance(store *s, int64_t seconds) noexcept nogil:
    fetch_add(&s.advance, <uint64_t>seconds)
    fetch_add(&s.current_time, <uint64_t>seconds)


cdef void store_pause(store *s, bint paused) noexcept nogil:
    relaxed_store(&s.paused, paused)


cdef rel_time_t store_time(store *s) noexcept nogil:
    """The clock at the last store_tick."""
    return <rel_time_t>relaxed_load(&s.current_time)


cdef int64_t store_process_started(store *s) noexcept nogil:
    """Unix time of rel_time_t 0."""
    return s.process_started


cdef rel_time_t realtime(store *s, int64_t exptime) noexcept nogil:
    """A client's expiry time as a rel_time_t: 0 never, negative at once, up to 30 days relative, above a Unix time."""
    cdef int64_t relative
    if exptime == 0:
        return 0
    if exptime < 0:
        return 1
    if exptime <= REALTIME_MAXDELTA:
        return <rel_time_t>(exptime + <int64_t>store_time(s))
    if exptime <= s.process_started:
        return 1
    relative = exptime - s.process_started
    return <rel_time_t>relative if relative < <int64_t>0xffffffff else <rel_time_t>0xffffffff


# --- statistics ---

cdef void store_get_stats(store *s, store_stats *out) noexcept nogil:
    """Sums of all classes; each class is consistent in itself. An item counts once whatever queue it moves to."""
    cdef int i
    cdef lru_queue *q
    memset(out, 0, sizeof(store_stats))
    count_items(s, &out.curr_items, &out.curr_bytes)
    for i in range(NUMBER_OF_QUEUES):
        q = &s.queues[i]
        pthread_mutex_lock(&q.lock)
        out.total_items += q.stats.total_items
        out.evictions += q.stats.evicted
        out.reclaimed += q.stats.reclaimed
        out.expired_unfetched += q.stats.expired_unfetched
        out.evicted_unfetched += q.stats.evicted_unfetched
        out.evicted_active += q.stats.evicted_active
        out.lrutail_reflocked += q.stats.lrutail_reflocked
        out.outofmemory += q.stats.outofmemory
        out.direct_reclaims += q.stats.direct_reclaims
        out.crawler_reclaimed += q.stats.crawler_reclaimed
        out.crawler_items_checked += q.stats.crawler_items_checked
        out.moves_to_cold += q.stats.moves_to_cold
        out.moves_to_warm += q.stats.moves_to_warm
        out.moves_within_lru += q.stats.moves_within_lru
        pthread_mutex_unlock(&q.lock)
    pthread_mutex_lock(&s.slabs_lock)
    out.total_malloced = s.malloced
    out.slab_global_page_pool = s.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    pthread_mutex_unlock(&s.slabs_lock)
    pthread_mutex_lock(&s.crawler_lock)
    out.lru_crawler_starts = s.crawler_starts
    out.lru_crawler_running = s.crawler_running
    pthread_mutex_unlock(&s.crawler_lock)
    out.lru_maintainer_juggles = relaxed_load(&s.maintainer_juggles)
    out.lru_bumps_dropped = _bumps_dropped(s)
    out.slab_reassign_running = relaxed_load(&s.mover.running) != 0
    out.slabs_moved = relaxed_load(&s.mover.slabs_moved)
    out.slab_reassign_rescues = relaxed_load(&s.mover.rescues)
    out.slab_reassign_chunk_rescues = relaxed_load(&s.mover.chunk_rescues)
    out.slab_reassign_inline_reclaim = relaxed_load(&s.mover.inline_reclaim)
    out.slab_reassign_busy_items = relaxed_load(&s.mover.busy_items)
    out.slab_reassign_busy_deletes = relaxed_load(&s.mover.busy_deletes)
    out.slab_reassign_busy_nomem = relaxed_load(&s.mover.busy_nomem)
    out.slab_reassign_last_busy_status = _status_text(<unsigned int>relaxed_load(&s.mover.last_busy_status))
    out.malloc_fails = relaxed_load(&s.malloc_fails)
    out.hash_power_level = <unsigned int>relaxed_load(&s.hashpower)
    out.hash_is_expanding = relaxed_load(&s.expanding) != 0
    out.hash_bytes = (<uint64_t>1 << out.hash_power_level) * sizeof(void *)
    if out.hash_is_expanding:
        out.hash_bytes += out.hash_bytes // 2
    out.get_expired = relaxed_load(&s.get_expired)
    out.get_flushed = relaxed_load(&s.get_flushed)
    out.oldest_live = <rel_time_t>relaxed_load(&s.oldest_live)


cdef void store_reset_stats(store *s) noexcept nogil:
    """Clears the counters; sizes and current amounts stay."""
    cdef int i
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_lock(&s.queues[i].lock)
        memset(&s.queues[i].stats, 0, sizeof(lru_counters))
        pthread_mutex_unlock(&s.queues[i].lock)
    relaxed_store(&s.malloc_fails, 0)
    relaxed_store(&s.get_expired, 0)
    relaxed_store(&s.get_flushed, 0)
    relaxed_store(&s.mover.slabs_moved, 0)
    relaxed_store(&s.mover.rescues, 0)
    relaxed_store(&s.mover.chunk_rescues, 0)
    relaxed_store(&s.mover.inline_reclaim, 0)
    relaxed_store(&s.mover.busy_items, 0)
    relaxed_store(&s.mover.busy_deletes, 0)
    relaxed_store(&s.mover.busy_nomem, 0)
    relaxed_store(&s.mover.last_busy_status, MOVE_NONE)


cdef unsigned int store_largest_class(store *s) noexcept nogil:
    return s.power_largest


cdef unsigned int store_class_of(store *s, size_t ntotal) noexcept nogil:
    """The class of an item of so many bytes (ITEM_ntotal); 0: larger than the item size limit."""
    return slabs_clsid(s, ntotal)


cdef void _add_queue_stats(store *s, lru_queue *q, unsigned int lru, class_stats *out) noexcept nogil:
    """Adds a queue's figures to those of its class. Its lock is held."""
    cdef rel_time_t age = 0
    if q.tail != NULL:
        age = store_time(s) - item_time(q.tail)
    if lru == HOT_LRU:
        out.number_hot = q.size
        out.age_hot = age
    elif lru == WARM_LRU:
        out.number_warm = q.size
        out.age_warm = age
    elif lru == COLD_LRU:
        out.number_cold = q.size
        out.age = age
        out.evicted_time = q.stats.evicted_time
    else:
        out.number_temp = q.size
    out.number += q.size
    out.mem_requested += q.bytes
    out.evicted += q.stats.evicted
    out.evicted_nonzero += q.stats.evicted_nonzero
    out.outofmemory += q.stats.outofmemory
    out.reclaimed += q.stats.reclaimed
    out.expired_unfetched += q.stats.expired_unfetched
    out.evicted_unfetched += q.stats.evicted_unfetched
    out.evicted_active += q.stats.evicted_active
    out.lrutail_reflocked += q.stats.lrutail_reflocked
    out.tailrepairs += q.stats.tailrepairs
    out.crawler_reclaimed += q.stats.crawler_reclaimed
    out.crawler_items_checked += q.stats.crawler_items_checked
    out.moves_to_cold += q.stats.moves_to_cold
    out.moves_to_warm += q.stats.moves_to_warm
    out.moves_within_lru += q.stats.moves_within_lru
    out.direct_reclaims += q.stats.direct_reclaims


cdef bint store_get_class_stats(store *s, unsigned int clsid, class_stats *out) noexcept nogil:
    """Fills in one class; False when there is no class of that id."""
    cdef slab_class *p
    cdef lru_queue *q
    cdef unsigned int queue
    memset(out, 0, sizeof(class_stats))
    if clsid < 1 or clsid > s.power_largest:
        return False
    p = &s.classes[clsid]
    pthread_mutex_lock(&s.slabs_lock)
    out.chunk_size = p.size
    out.chunks_per_page = p.perslab
    out.total_pages = p.pages.count
    out.total_chunks = <uint64_t>p.pages.count * p.perslab
    out.free_chunks = p.sl_curr
    pthread_mutex_unlock(&s.slabs_lock)
    out.used_chunks = out.total_chunks - out.free_chunks
    for queue in range(4):
        q = &s.queues[clsid | queue << 6]
        pthread_mutex_lock(&q.lock)
        _add_queue_stats(s, q, queue << 6, out)
        pthread_mutex_unlock(&q.lock)
    return True
