"""The store as a whole.

The parts are included in store.pxd from the lowest to the highest, and a part calls only those before it. Each header
says what the part is for and has the structs that it owns; a struct says which lock or thread each field belongs to.
What a header does not declare stays within its part.

Against the lock order (lock_rank) locks are only tried: eviction has an LRU lock and tries the item lock of its victim,
the page mover has the slabs lock and tries the item lock of a chunk's item, and whoever links an item tries grow_lock
and the lock of direct_index. A pull of an LRU tail keeps the item locks that it got so. The growing thread takes all
item locks in their order, for a moment, and so does whoever makes or gives up the index of direct reads; store_check
takes all item locks and all LRU locks in the same way.
"""

cdef enum lock_rank:            # a thread that holds one of these locks may wait only for those that come later
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

cdef struct store:
    # Constant after store_create, except for the settings that have functions; integers among these are atomic.
    store_config config
    unsigned int stopping       # atomic: store_stop_threads wants all threads to end
    store_clock clock
    char pad_after_clock[CACHE_LINE]    # every get reads the clock, every set writes items.cas_id
    item_counters items
    hash_table assoc
    direct_index direct
    ghost_table ghost
    item_sizes sizes
    slabs slabs
    huge_pages huge
    lru_queue queues[NUMBER_OF_QUEUES]
    lru_control lru
    crawler crawler
    maintainer maintainer
    reassign reassign
    slab_automove automove
    page_mover mover
