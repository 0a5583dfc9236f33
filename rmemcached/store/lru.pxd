"""The segmented LRU: the moves between the four queues of a slab class, and eviction. memcached: items.c.

New items enter HOT, or TEMP if they live briefly. HOT's tail goes to COLD or, if fetched twice, to WARM. WARM's tail
goes to COLD or, if fetched again, to WARM's head. An item of COLD goes to WARM when fetched twice. Eviction takes
COLD's tail. Items in TEMP stay there until they expire. Flat mode has COLD only.

S3-FIFO is the alternative (Yang and others: FIFO queues are all you need for cache eviction, SOSP 2023). HOT is its
small queue and COLD its main queue; WARM is empty, and TEMP is as above. An item counts its fetches, up to three; a
fetch moves nothing. While the small queue has more than its share of the class's items (ghost.pxd), eviction looks at
the small queue's tail: a fetched item goes to the main queue. Otherwise eviction looks at the main queue's tail: a
fetched item goes round once more. In both cases the item then has one fetch less. An item without fetches is evicted,
and its key remembered. New items enter the small queue, or the main queue if their key is remembered. In a class so
small that an eviction may look at all its items, remembered keys enter the small queue as well, with a fetch counted.

store.pxd declares do_item_bump, store_take_victim, victim_release, store_flush_all and the settings: lru_tune,
lru_set_segmented, lru_set_temp_ttl.
"""

cdef enum:
    PULL_TRIES = 5              # items in a row passed over by a pull, before the pull gives up
    PULL_MOST = 16              # items moved or dropped by a pull, at most
    PULL_KEPT = PULL_MOST + 1   # a pull's result: the items gone are still referenced, and no memory is free yet
    PULL_EVICT = 1              # flag of a pull of COLD: evict its tail
    PULL_CRAWL_BLOCKS = 2       # flag of a pull: leave alone items not seen by the crawler
    S3_ROUNDS = 16              # pulls of an eviction, at most; the last pull spares only referenced items
    S3_LOOKED = S3_ROUNDS * PULL_MOST   # items looked at by an eviction, at most
    LRU_BUMP_BUF_SIZE = 8192    # entries

cdef enum s3_pulled:            # the result of an eviction of S3-FIFO, the best last
    S3_NOTHING                  # the queues are empty
    S3_LOCKED                   # the items at the tails are locked
    S3_STAYED                   # the unlocked items have references, or stay for another reason
    S3_GONE                     # an item has gone

cdef struct lru_bump_entry:
    item *it                    # with a reference
    uint32_t hv

cdef struct lru_bump_buf:       # moves from COLD to WARM, waiting for the maintainer. Guarded by `lock`
    pthread_mutex_t lock
    uint32_t head               # the entries are [head, tail), modulo the size. A writer also holds bump_lock
    uint32_t tail
    uint64_t dropped            # moves refused by the full buffer
    lru_bump_entry entries[LRU_BUMP_BUF_SIZE]

cdef struct lru_control:
    lru_bump_buf *bump_bufs     # constant; a thread always uses the same buffer; NULL: no maintainer
    uint32_t bump_mask          # constant: number of buffers - 1
    pthread_mutex_t bump_lock   # held by the thread making the moves
    unsigned int flushing       # atomic; 1 while a thread walks through the queues for a flush
    pthread_mutex_t tune_lock   # guards the settings of `lru` in config; readers of integers need no lock

# The functions below take the locks of queues and buffers themselves. The caller may hold an item lock, but no lock
# further down in lock_rank. (log_evicted takes no lock, and its caller may hold an LRU lock.)

# Makes the locks, for store_create.
cdef void lru_init(store *s) noexcept nogil
# Frees the locks and the buffers, for store_destroy.
cdef void lru_destroy(store *s) noexcept nogil
# Makes the buffers for waiting moves, for maintainer_start. False: no memory.
cdef bint lru_bumps_init(store *s) noexcept nogil
# Moves the items of the buffers from COLD to WARM; returns whether there were any. The caller (the maintainer, or
# store_check) holds bump_lock and no item lock.
cdef bint lru_maintainer_bumps(store *s) noexcept nogil
# How many moves full buffers have refused so far, for `stats`.
cdef uint64_t lru_bumps_dropped(store *s) noexcept nogil

# Whether a running flush may still have to unlink the item. Such an item must not move to a place that the flush has
# passed. The caller has the item lock, and keeps the lock until the item is in its queue again.
cdef bint is_before_flush(store *s, const item *it) noexcept nogil
# Notes a use of the item: its time becomes the present. In flat mode this happens once in ITEM_UPDATE_INTERVAL seconds,
# and the item moves to the head of its queue. In the segmented LRU an active item of COLD moves to WARM. A flushed or
# unlinked item does not change. Called by do_item_bump, by the maintainer for a waiting move, and for an add that finds
# the key and an incr in place. The caller holds the item lock.
cdef void do_item_update(store *s, item *it) noexcept nogil
# Looks at the tail of a queue: drops expired and flushed items and moves items on, until an item can stay or `most`
# items (PULL_MOST at most) are gone. With PULL_EVICT, evicts an item if no item was expired or flushed. Passes over
# locked items, PULL_TRIES at most in a row. Returns the number of dropped and moved items; with PULL_EVICT possibly
# PULL_KEPT. Called by allocation, the maintainer and the page mover.
# - total_bytes: of the class; HOT and WARM may each have a share of them.
# - max_age: items of HOT and WARM move on when unused for so many seconds.
cdef int lru_pull_tail(store *s, unsigned int clsid, unsigned int lru, uint64_t total_bytes, unsigned int flags,
                       rel_time_t max_age, int most) noexcept nogil
# S3-FIFO: drops expired and flushed items from the tails of the small and the main queue, up to `most` from each.
# Returns their number. Called by the maintainer or, without a maintainer, by allocation.
cdef int s3_drop(store *s, unsigned int clsid, int most) noexcept nogil
# S3-FIFO: the number of items of a class.
cdef uint64_t s3_items(store *s, unsigned int clsid) noexcept nogil
# S3-FIFO: evicts an item of the class, or drops an expired or flushed item, for allocation and the page mover. A
# referenced item goes to the head of the main queue instead: its memory would not become free. v: not NULL for
# store_take_victim; hands the item over in place of evicting it.
cdef s3_pulled s3_evict(store *s, unsigned int clsid, victim *v) noexcept nogil
# Tells watchers about the coming eviction of the item. The caller holds the item lock.
cdef void log_evicted(store *s, item *it) noexcept nogil
