"""The store as a whole.

store.pxd includes the parts from the lowest to the highest, and a part calls only earlier parts. A header says what its
part is for and has the part's structs; a struct names the lock or thread of each field. Functions that no header
declares stay within their part.

Against the lock order (lock_rank) a thread only tries a lock. Eviction, flush_all and the crawler have an LRU lock and
try an item's lock. The page mover has the slabs lock and tries the item lock of a chunk's item. A thread linking an
item has the item lock and tries grow_lock and the lock of direct_index; with the slabs lock a thread also tries the
lock of direct_index. The pull of an LRU tail keeps item locks taken in this way.

A thread may have several locks of one rank. Eviction of S3-FIFO has HOT's LRU lock and takes COLD's. The growing thread
takes all item locks in their order, for a moment. So does a thread that makes or gives up the index of direct reads.
store_check takes all item locks and all LRU locks in the same way.
"""

cdef enum lock_rank:            # a thread with one of these locks may wait only for a lock further down
    DIRECT_LOCK
    GROW_LOCK
    MAINTAINER_LOCK
    CRAWLER_LOCK
    BUMP_LOCK                   # lru.bump_lock
    ITEM_LOCK
    BUMP_BUF_LOCK               # the lock of an lru_bump_buf
    REASSIGN_LOCK
    TUNE_LOCK                   # lru.tune_lock
    LRU_LOCK
    SLABS_LOCK
    CLOCK_LOCK

cdef struct store:
    # Constant after store_create, except settings that a function changes; integers among these are atomic.
    store_config config
    unsigned int stopping       # atomic: store_stop_threads wants all threads to end
    store_clock clock
    arena_head *head
    char pad_after_clock[CACHE_LINE]
    item_counters items
    hash_table assoc
    direct_index direct
    ghost_table ghost
    item_sizes sizes
    slabs slabs
    huge_pages huge
    slabs_thread reserver
    lru_queue queues[NUMBER_OF_QUEUES]
    lru_control lru
    crawler crawler
    maintainer maintainer
    reassign reassign
    slab_automove automove
    page_mover mover
    memory_file file
    recovered recovered
    foreign_pages foreign
    adoption adopt
