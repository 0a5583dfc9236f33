"""The segmented LRU: the moves between the four queues of a slab class, and eviction. memcached: items.c.

New items enter HOT, or TEMP when they live briefly. HOT's tail goes to COLD or, if it was fetched twice, to WARM.
WARM's tail goes to COLD or, if it was fetched again, to WARM's head. An item of COLD that is fetched twice goes to
WARM. Eviction takes COLD's tail. Items in TEMP stay there until they expire. In flat mode there is COLD only.

Or S3-FIFO (Yang and others: FIFO queues are all you need for cache eviction, SOSP 2023). HOT is its small queue and
COLD its main queue; WARM is empty, and TEMP is as above. A fetch counts in the item, up to three, and moves nothing.
Eviction takes the small queue's tail while that has more than its share of the class's items (ghost.pxd): what was
fetched goes to the main queue. Else it takes the main queue's tail: what was fetched goes round once more. Either
has one fetch less then, and the rest is evicted and remembered. New items enter the small queue, or the main
queue if their key is remembered. In a class of a few items, all of which one eviction may look at, these enter the
small queue too, as if they had been fetched.
"""

cdef enum:
    PULL_TRIES = 5              # items in a row that a pull passes over before it gives up
    PULL_MOST = 16              # items that one pull moves or drops, at most
    PULL_KEPT = PULL_MOST + 1   # what has gone is still referenced, all of it: no memory is free yet
    PULL_EVICT = 1              # flag of a pull of COLD: evict its tail
    PULL_CRAWL_BLOCKS = 2       # flag of a pull: leave alone what the crawler has not seen
    S3_ROUNDS = 16              # pulls of an eviction, at most; the last one leaves only what has references
    S3_LOOKED = S3_ROUNDS * PULL_MOST   # items that one looks at, at most
    LRU_BUMP_BUF_SIZE = 8192    # entries

cdef enum s3_pulled:            # what an eviction of S3-FIFO came to, the best last
    S3_NOTHING                  # the queues are empty
    S3_LOCKED                   # what is at the tails is locked
    S3_STAYED                   # what could be looked at has references, or cannot go for another reason
    S3_GONE                     # an item has gone

cdef struct lru_bump_entry:
    item *it                    # with a reference
    uint32_t hv

cdef struct lru_bump_buf:       # moves from COLD to WARM that wait for the maintainer. Its lock
    pthread_mutex_t lock
    uint32_t head               # the entries are [head, tail), modulo the size. bump_lock as well
    uint32_t tail
    uint64_t dropped
    lru_bump_entry entries[LRU_BUMP_BUF_SIZE]

cdef struct lru_control:
    # constant
    lru_bump_buf *bump_bufs     # each thread uses one of them; NULL: no maintainer
    uint32_t bump_mask
    pthread_mutex_t bump_lock   # held by the thread that makes the moves
    unsigned int flushing       # atomic; a thread walks through the queues for a flush
    pthread_mutex_t tune_lock   # guards the settings of `lru` in config; integers are read without it

cdef void lru_init(store *s) noexcept nogil
cdef void lru_destroy(store *s) noexcept nogil
# Makes room for moves that wait for the maintainer, before it starts. False: no memory.
cdef bint lru_bumps_init(store *s) noexcept nogil
# Makes the moves that are waiting; whether there were any.
cdef bint lru_maintainer_bumps(store *s) noexcept nogil
cdef uint64_t lru_bumps_dropped(store *s) noexcept nogil

# The item is used: its time is the present. In flat mode it moves to the head of its queue if it has not done so for
# ITEM_UPDATE_INTERVAL seconds; else an item of COLD that was marked active moves to WARM. Its item lock is held.
cdef void do_item_update(store *s, item *it) noexcept nogil
# Looks at the tail of a queue: drops items that have expired or were flushed and moves others on, until one can stay or
# `most` of them (PULL_MOST at most) are gone. With PULL_EVICT, evicts one if none had expired. Passes over items that
# are locked, PULL_TRIES at most in a row. Returns how many items were dropped or moved; with PULL_EVICT it may be
# PULL_KEPT.
# - total_bytes: of the class; HOT and WARM may each have a share of them.
# - max_age: items of HOT and WARM move on when they were not used for so many seconds.
cdef int lru_pull_tail(store *s, unsigned int clsid, unsigned int lru, uint64_t total_bytes, unsigned int flags,
                       rel_time_t max_age, int most) noexcept nogil
# S3-FIFO: drops items that have expired or were flushed from the tails of the small and the main queue, up to `most` of
# either. Returns how many.
cdef int s3_drop(store *s, unsigned int clsid, int most) noexcept nogil
# S3-FIFO: the items of a class.
cdef uint64_t s3_items(store *s, unsigned int clsid) noexcept nogil
# S3-FIFO: evicts an item of the class, or drops one that has expired. One with references goes round: its memory would
# not be free.
cdef s3_pulled s3_evict(store *s, unsigned int clsid) noexcept nogil
# Tells watchers that the item is about to be evicted. Its item lock is held.
cdef void log_evicted(store *s, item *it) noexcept nogil
