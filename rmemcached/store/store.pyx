"""The item store (see store.pxd for what it promises). The parts are included below.

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


include "hash.pyx"
include "threads.pyx"
include "clock.pyx"
include "log.pyx"
include "slabs.pyx"
include "assoc.pyx"
include "link.pyx"
include "reassign.pyx"
include "lru.pyx"
include "data.pyx"
include "items.pyx"
include "commands.pyx"
include "stats.pyx"
include "crawler.pyx"
include "maintainer.pyx"
include "automove.pyx"
include "mover.pyx"
include "cachedump.pyx"
include "check.pyx"
include "life.pyx"
