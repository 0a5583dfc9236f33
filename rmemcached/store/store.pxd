"""The item store: slabs, hash table, LRU. No networking, no Python objects.

Memory layout, sizes and rules follow memcached 1.6 (items.c, slabs.c, assoc.c, thread.c). All functions are
thread-safe unless their name begins with ``do_``: for those the caller holds the item lock of the key's hash
(``item_get_locked``).

An ``item *`` returned by this interface carries one reference that the caller gives back with ``item_remove``.
The data of a linked item is never written again, except under its item lock and only with a reference count of two
(the table's and the writer's): whoever has a reference reads stable bytes without a lock.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.direct cimport (
    DIRECT_ACTIVE, DIRECT_CHUNK, DIRECT_CHUNKED, DIRECT_FETCHED, DIRECT_FREQUENCY_ONE, DIRECT_LINKED, DIRECT_SLABBED,
    DIRECT_STALE, DIRECT_TOKEN_SENT, DIRECT_WITH_CAS, DIRECT_WITH_FLAGS, direct_bucket, direct_header,
)
from rmemcached.logger cimport logger
from rmemcached.sys.atomics cimport relaxed_load, relaxed_store
from rmemcached.sys.debug cimport assert_that
from rmemcached.sys.key_hash cimport hash_secrets, key_hash
from rmemcached.sys.linux cimport pthread_cond_t, pthread_mutex_t, pthread_t, timespec

# Seconds since store_process_started(); 0: never. The clock begins at ITEM_UPDATE_INTERVAL + 2, as memcached's does,
# so that neither "now" nor "a bump interval ago" is ever 0. Uptime is store_time() - ITEM_UPDATE_INTERVAL.
ctypedef uint32_t rel_time_t

cdef enum:
    KEY_MAX_LENGTH = 250
    SLAB_CLASS_BITS = 6
    MAX_NUMBER_OF_SLAB_CLASSES = 1 << SLAB_CLASS_BITS   # class ids are 1..63; 0 is the pool of unassigned pages
    SLAB_CLASS_MASK = MAX_NUMBER_OF_SLAB_CLASSES - 1
    NUMBER_OF_QUEUES = 4 * MAX_NUMBER_OF_SLAB_CLASSES   # LRU queues: class id | queue << SLAB_CLASS_BITS
    ITEM_UPDATE_INTERVAL = 60         # seconds between two LRU bumps of one item
    SLAB_PAGE_SIZE = 1024 * 1024
    SLAB_GLOBAL_PAGE_POOL = 0
    ARENA_EXTENT = 64 * SLAB_PAGE_SIZE  # bytes of arena that become usable (and registrable) at a time
    REALTIME_MAXDELTA = 60 * 60 * 24 * 30
    SIZES_GRANULARITY = 32            # bytes of one bucket of `stats sizes`
    CACHE_LINE = 64

# item.it_flags, memcached's values. Clients that read the memory look at those that direct.pxd has.
cdef enum:
    ITEM_LINKED = DIRECT_LINKED
    ITEM_CAS = DIRECT_WITH_CAS
    ITEM_SLABBED = DIRECT_SLABBED
    ITEM_FETCHED = DIRECT_FETCHED
    ITEM_ACTIVE = DIRECT_ACTIVE
    ITEM_CHUNKED = DIRECT_CHUNKED
    ITEM_CHUNK = DIRECT_CHUNK
    ITEM_CFLAGS = DIRECT_WITH_FLAGS
    ITEM_TOKEN_SENT = DIRECT_TOKEN_SENT
    ITEM_STALE = DIRECT_STALE
    ITEM_KEY_BINARY = 4096
    # ours: it has room for a seal behind its data
    ITEM_SEAL_ROOM = 1024
    # ours: how often the item was fetched since it entered its queue, 0 to 3 (lru_algorithm=s3fifo)
    ITEM_FREQUENCY_ONE = DIRECT_FREQUENCY_ONE
    ITEM_FREQUENCY = 3 * ITEM_FREQUENCY_ONE
    # ours: it has found no room in the index for clients that read the memory, and may have found it since
    ITEM_LEFT_OUT = 32768

cdef struct item:
    # next, prev: the LRU lock of the item's class. refcount: atomic. All else: the item lock once linked,
    # the thread that allocated it before. Whoever has a reference may read the flags, times and CAS value without the
    # lock: they are written, and so read, with the functions below.
    item *next
    item *prev
    item *h_next            # hash chain
    rel_time_t time         # last access
    rel_time_t exptime      # 0: never
    int32_t nbytes          # data length including the trailing \r\n
    uint16_t refcount
    uint16_t it_flags
    uint8_t slabs_clsid     # class id | queue << SLAB_CLASS_BITS. The queue may change while somebody has a reference
    uint8_t nkey
    # At offset 48: cas (8 bytes, if ITEM_CAS), key and a NUL, client flags (4 bytes, if ITEM_CFLAGS), then the data;
    # for ITEM_CHUNKED items an item_chunk header (ITEM_schunk) instead of the data, with no bytes of its own.

cdef struct item_chunk:
    # Owned as the head item is.
    item_chunk *next
    item_chunk *prev        # NULL in the head's own
    item *head
    int32_t size            # capacity of this chunk's data in bytes
    int32_t used            # bytes of it that hold data
    int32_t nbytes
    uint16_t refcount
    uint16_t it_flags       # ITEM_CHUNK
    uint8_t slabs_clsid
    uint8_t orig_clsid      # in the head's own item_chunk: the class the head was taken from
    # data at offset 48

cdef inline bint ITEM_has(const item *it, unsigned int flag) noexcept nogil:
    """Whether a flag is set. Safe without the item lock for the flags that say how the item is laid out, which never
    change, while others (ITEM_LINKED, ITEM_FETCHED, ...) may change at the same time.
    """
    return (<uint16_t>relaxed_load(&(<item *>it).it_flags) & flag) != 0

cdef inline uint64_t ITEM_get_cas(const item *it) noexcept nogil:
    return relaxed_load(<uint64_t *>(<item *>it + 1)) if ITEM_has(it, ITEM_CAS) else 0

cdef inline void ITEM_set_cas(item *it, uint64_t value) noexcept nogil:
    """Of an item that has no seal now: do_item_set_cas is for others."""
    if ITEM_has(it, ITEM_CAS):
        relaxed_store(<uint64_t *>(it + 1), value)

cdef inline void item_set_flags(item *it, unsigned int flags) noexcept nogil:
    """Of a new item, which nobody can look up yet: do_item_set_flags is for others. An atomic store, because the page
    mover may look at the flags meanwhile.
    """
    assert_that(not it.it_flags & ITEM_LINKED)
    relaxed_store(&it.it_flags, it.it_flags | flags)

cdef inline rel_time_t item_time(const item *it) noexcept nogil:
    return <rel_time_t>relaxed_load(&(<item *>it).time)

cdef inline void item_set_time(item *it, rel_time_t now) noexcept nogil:
    """Of an item that is not linked."""
    relaxed_store(&it.time, now)

cdef inline rel_time_t item_exptime(const item *it) noexcept nogil:
    return <rel_time_t>relaxed_load(&(<item *>it).exptime)

cdef inline void item_set_exptime(item *it, rel_time_t exptime) noexcept nogil:
    """Of an item that is not linked: do_item_set_exptime is for others."""
    relaxed_store(&it.exptime, exptime)

cdef inline char *ITEM_key(item *it) noexcept nogil:
    return <char *>(it + 1) + (8 if ITEM_has(it, ITEM_CAS) else 0)

cdef inline uint32_t ITEM_client_flags(item *it) noexcept nogil:
    """The client's 32 bit flags."""
    cdef uint32_t value = 0
    if ITEM_has(it, ITEM_CFLAGS):
        memcpy(&value, ITEM_key(it) + it.nkey + 1, sizeof(value))
    return value

cdef inline char *ITEM_data(item *it) noexcept nogil:
    """First byte of the data of an item that is not chunked (else of its first item_chunk header)."""
    return ITEM_key(it) + it.nkey + 1 + (4 if ITEM_has(it, ITEM_CFLAGS) else 0)

cdef inline item_chunk *ITEM_schunk(item *it) noexcept nogil:
    """The item_chunk header inside the head of an ITEM_CHUNKED item, aligned to eight bytes."""
    return <item_chunk *>(<char *>it + ((<size_t>(ITEM_data(it) - <char *>it) + 7) & ~<size_t>7))

cdef inline size_t ITEM_ntotal(item *it) noexcept nogil:
    """Bytes that the item counts as in statistics and `me`: header, cas, key, flags, data."""
    return <size_t>(ITEM_data(it) - <char *>it) + <size_t>it.nbytes

cdef inline unsigned int ITEM_clsid(const item *it) noexcept nogil:
    return <unsigned int>relaxed_load(&(<item *>it).slabs_clsid) & SLAB_CLASS_MASK

cdef inline unsigned int ITEM_chunk_clsid(item *it) noexcept nogil:
    """The slab class that the item's memory was taken from: that of a chained item's head is another one."""
    return ITEM_schunk(it).orig_clsid if ITEM_has(it, ITEM_CHUNKED) else ITEM_clsid(it)

cdef inline unsigned int ITEM_queue(const item *it) noexcept nogil:
    """The LRU queue that the item is in: class id | queue << SLAB_CLASS_BITS. Queues: 0 HOT, 1 WARM, 2 COLD, 3 TEMP."""
    return <unsigned int>relaxed_load(&(<item *>it).slabs_clsid)

cdef enum store_item_type:
    NOT_STORED = 0
    STORED
    EXISTS
    NOT_FOUND
    TOO_LARGE
    NO_MEMORY

cdef enum delta_result_type:
    OK = 0
    NON_NUMERIC
    EOM
    DELTA_ITEM_NOT_FOUND
    DELTA_ITEM_CAS_MISMATCH

cdef enum store_op:
    NREAD_ADD = 1
    NREAD_SET
    NREAD_REPLACE
    NREAD_APPEND
    NREAD_PREPEND
    NREAD_CAS
    NREAD_APPENDVIV
    NREAD_PREPENDVIV

cdef enum:
    INCR_MAX_STORAGE_LEN = 24

ctypedef void (*extent_fn)(void *arg, void *addr, size_t length) noexcept nogil

cdef struct store_config:
    uint64_t maxbytes           # memory limit in bytes
    uint64_t item_size_max      # bytes, header included
    uint32_t slab_chunk_size_max  # the largest chunk; larger items are chained
    uint32_t chunk_size         # smallest data size that the first class has room for (-n)
    double factor               # growth between classes (-f)
    bint use_cas
    bint evict_to_free
    unsigned int hashpower_init  # 0: the default
    bint hash_expand            # the hash table grows (no_hashexpand: it does not)
    unsigned int nthreads       # for the number of item locks
    # The segmented LRU. What `lru tune`, `lru mode` and `lru temp_ttl` change starts with these.
    bint lru_maintainer         # run the maintainer thread
    bint lru_segmented
    bint s3fifo                 # evict by S3-FIFO: there are no segments then, and lru_segmented is False
    unsigned int hot_lru_pct    # percent of a class's memory
    unsigned int warm_lru_pct
    double hot_max_factor       # of the age of COLD's tail
    double warm_max_factor
    bint temp_lru
    unsigned int temporary_ttl  # seconds
    # The crawler. `lru_crawler enable|disable|sleep|tocrawl` change these.
    bint lru_crawler
    unsigned int lru_crawler_sleep    # microseconds
    unsigned int lru_crawler_tocrawl  # 0: no limit
    unsigned int tail_repair_time     # seconds; 0: off
    # The page mover. `slabs automove` changes slab_automove.
    bint slab_reassign
    unsigned int slab_automove        # 0, 1, 2
    double slab_automove_ratio
    unsigned int slab_automove_window
    double slab_automove_freeratio    # share of all memory to be kept as free pages (0.01 = 1 %)
    bint preallocate                  # -L: take (and touch) all memory at start
    uint64_t initial_malloced         # bytes that total_malloced begins with; memcached's test suite sets it
    uint32_t slab_sizes[MAX_NUMBER_OF_SLAB_CLASSES]    # -o slab_sizes: chunk sizes, ended by 0; [0] = 0: by factor
    bint huge_pages             # use such for items where the system has them (huge.pxd)
    bint direct                 # clients may read the memory themselves: it is in a memfd (direct.pxd)
    uint32_t direct_linger      # seconds without such clients after which there is no index any more
    bint direct_remote          # with direct: also by READs over devices, so that items have seals
    bint track_sizes            # count items by size for `stats sizes`
    logger *log                 # receives fetches, stores and evictions; NULL: nobody does
    # Called before an extent of the arena is first used, with the slabs lock held: it must not call the store. May be
    # NULL.
    extent_fn extent_added
    # With direct_remote: the same before a part of header and index is first used. Item locks may be held.
    extent_fn index_added
    void *extent_arg

# Counters of the whole store. Read with store_get_stats.
cdef struct store_stats:
    uint64_t curr_items
    uint64_t total_items
    uint64_t curr_bytes
    uint64_t evictions
    uint64_t reclaimed
    uint64_t expired_unfetched
    uint64_t evicted_unfetched
    uint64_t evicted_active
    uint64_t lrutail_reflocked
    uint64_t malloc_fails       # no memory to grow the hash table
    uint64_t hash_bytes
    unsigned int hash_power_level
    bint hash_is_expanding
    uint64_t get_expired        # items that a lookup found expired
    uint64_t get_flushed        # ... found older than flush_all
    uint64_t outofmemory        # allocations that failed
    uint64_t direct_reclaims    # times an allocation had to pull an LRU tail
    uint64_t total_malloced     # bytes of slab pages taken from the arena
    uint64_t crawler_items_checked
    uint64_t crawler_reclaimed
    uint64_t lru_crawler_starts
    bint lru_crawler_running
    uint64_t lru_maintainer_juggles
    uint64_t moves_to_cold
    uint64_t moves_to_warm
    uint64_t moves_within_lru
    uint64_t lru_bumps_dropped
    uint64_t ghost_hits         # s3fifo: keys that came back soon after they were evicted
    uint64_t ghost_bytes        # ... the memory by which they are known, at most
    double small_lru_pct        # ... and how many of a hundred items the small queues may have
    bint slab_reassign_running
    uint64_t slabs_moved
    uint64_t slab_global_page_pool
    uint64_t slab_reassign_rescues
    uint64_t slab_reassign_chunk_rescues
    uint64_t slab_reassign_inline_reclaim
    uint64_t slab_reassign_busy_items
    uint64_t slab_reassign_busy_deletes
    uint64_t slab_reassign_busy_nomem
    const char *slab_reassign_last_busy_status
    rel_time_t oldest_live      # `stats settings` oldest

# Counters and sizes of one slab class. Read with store_get_class_stats.
cdef struct class_stats:
    uint32_t chunk_size
    uint32_t chunks_per_page
    uint32_t total_pages
    uint64_t total_chunks
    uint64_t used_chunks
    uint64_t free_chunks
    uint64_t number             # items linked in the class
    uint64_t mem_requested
    uint64_t evicted
    uint64_t evicted_nonzero
    rel_time_t evicted_time
    uint64_t outofmemory
    uint64_t reclaimed
    uint64_t expired_unfetched
    uint64_t evicted_unfetched
    uint64_t evicted_active
    uint64_t lrutail_reflocked
    uint64_t age                # seconds since the oldest item was used
    # `stats items` of the segmented LRU
    uint64_t number_hot
    uint64_t number_warm
    uint64_t number_cold
    uint64_t number_temp
    rel_time_t age_hot
    rel_time_t age_warm
    uint64_t tailrepairs
    uint64_t crawler_reclaimed
    uint64_t crawler_items_checked
    uint64_t moves_to_cold
    uint64_t moves_to_warm
    uint64_t moves_within_lru
    uint64_t direct_reclaims

cdef struct store           # layout.pxd

# --- life and settings ---
# A new, empty store, or NULL with a text in *error, which is not to be freed. Starts the threads that config asks for;
# touches little memory.
cdef store *store_create(const store_config *config, const char **error) noexcept nogil
# Ends all threads of the store; twice is harmless. The store stays usable, but grows and maintains nothing any more. A
# dump ends with done(False): what it reports to must still be there.
cdef void store_stop_threads(store *s) noexcept nogil
# Stops the threads and frees everything. No other thread may be in the store, and no item may be used afterwards.
cdef void store_destroy(store *s) noexcept nogil
# For what never changes, and for integers with relaxed_load; store_copy_config is for all settings at one moment.
cdef const store_config *store_get_config(store *s) noexcept nogil
cdef void store_copy_config(store *s, store_config *out) noexcept nogil

# --- reads of clients that do not ask (docs/direct-reads.md) ---
cdef struct direct_stats:
    uint64_t buckets            # of the index; 0: there is none
    uint64_t items              # in the index
    uint64_t left_out           # times that there was no room for an item
    uint64_t clients            # that got the memory,
    uint64_t readers            # ... and those that have it now
    uint64_t sealed             # 1: a client has had the memory, of which no page goes back to the system any more
    uint64_t building           # what was stored before the index was made is being entered
    uint64_t pinned_pages       # with items that clients look at
    uint64_t huge_pages         # of 2 MB, that were made (store_config.huge_pages)

# A client gets the memory: two descriptors, of the index and of the arena. They are the store's, and stay what they are
# until store_direct_return. The first client's index is made while it asks. False: there is none to be had.
cdef bint store_direct_give(store *s, int *index_fd, int *arena_fd) noexcept nogil
# That client has gone.
cdef void store_direct_return(store *s) noexcept nogil
# Where the memory begins, with header and index: what places are counted from. For a caller of whose clients one has
# the memory.
cdef const void *store_direct_base(store *s) noexcept nogil
cdef void store_direct_stats(store *s, direct_stats *out) noexcept nogil
# From now on no client takes anything for valid.
cdef void store_direct_end(store *s) noexcept nogil
# A client has read the item at this place (direct_place / 8), under a key with this hash: does what a get does for
# eviction. False: it is not there any more. Both may be anything.
cdef bint item_used(store *s, uint32_t hv, uint64_t place) noexcept nogil

# A client is to look at an item where it lies; it has a reference, which it keeps until item_unpin. The page mover does
# not begin with a page that has such items. False: what all clients look at would lie on more than `most` pages, or a
# page of the item is being emptied.
cdef bint item_pin(store *s, item *it, uint64_t most) noexcept nogil
cdef void item_unpin(store *s, item *it) noexcept nogil

# --- time ---
# Call once a second: sets the clock by CLOCK_MONOTONIC, and grows the hash table when it is crowded.
cdef void store_tick(store *s) noexcept nogil
# Moves the clock; stops it and lets it go on. For tests of expiry and LRU age (memcached: debugtime).
cdef void store_advance(store *s, int64_t seconds) noexcept nogil
cdef void store_pause(store *s, bint paused) noexcept nogil
# The clock at the last store_tick.
cdef rel_time_t store_time(store *s) noexcept nogil
# Unix time of rel_time_t 0.
cdef int64_t store_process_started(store *s) noexcept nogil
# A client's expiry time on the store's clock. 0: never; negative: at once; up to 30 days: from now; else a Unix time.
cdef rel_time_t realtime(store *s, int64_t exptime) noexcept nogil
# Invalidates all items that there are, at once (exptime <= 0) or when the clock reaches realtime(exptime).
cdef void store_flush_all(store *s, int64_t exptime) noexcept nogil

# --- slab pages ---
cdef enum reassign_result:
    REASSIGN_OK = 0
    REASSIGN_RUNNING        # a page is being moved, or there is no page mover
    REASSIGN_BADCLASS       # no such class, or no class has a page to spare
    REASSIGN_NOSPARE        # the source has less than two pages
    REASSIGN_SRC_DST_SAME

# Asks for a page of class src to be moved to class dst; 0 is the global pool, src -1 any class. Returns at once:
# store_stats tell when the page has moved. allow_evictions: items may be evicted for it when memory is full.
cdef reassign_result slabs_reassign(store *s, int src, int dst, bint allow_evictions) noexcept nogil
# 0: pages move on request only. 1: also as automove decides. 2: also with every eviction.
cdef void slabs_set_automove(store *s, unsigned int level) noexcept nogil
# A class may take a page if its oldest item is younger than this share of the age of the oldest item of all.
cdef void slabs_set_automove_ratio(store *s, double ratio) noexcept nogil
# Runs of automove, at most ten a second, that a decision looks back at; greater than zero.
cdef void slabs_set_automove_window(store *s, unsigned int runs) noexcept nogil
# Kept and shown, without effect, as in a memcached without external storage.
cdef void slabs_set_automove_freeratio(store *s, double ratio) noexcept nogil
# Changes the memory limit at run time. When it shrinks, pages of the pool are given back to the system at once, others
# as the page mover frees them; after store_pin_memory they stay in the pool, where no class gets them until the limit
# allows it. False: the memory was preallocated, or the reserved range is smaller than that.
cdef bint store_set_memory_limit(store *s, uint64_t maxbytes) noexcept nogil
# From now on the arena keeps its physical memory: no page is given back to the system. Call it when the arena has been
# registered with a device that knows memory by its physical address, before the memory limit may change.
cdef void store_pin_memory(store *s) noexcept nogil

# --- items ---
# After item_get_locked.
cdef void item_unlock(store *s, uint32_t hv) noexcept nogil
# Take and release an item lock outside of the lock order (debugitem lock, unlock). The same thread must do both.
cdef void store_debug_lock(store *s, uint32_t hv) noexcept nogil
cdef void store_debug_unlock(store *s, uint32_t hv) noexcept nogil
# Whether an item of these sizes is within the item size limit.
cdef bint item_size_ok(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil
# A new item, not linked, for nbytes of data: value and \r\n, which is already written. nkey is at most KEY_MAX_LENGTH.
# A large item comes with all the chunks that it needs. Older items may be evicted. NULL: it is over the item size limit
# (item_size_ok), or there is no memory.
cdef item *item_alloc(store *s, const char *key, size_t nkey, uint32_t flags, rel_time_t exptime,
                      size_t nbytes) noexcept nogil
cdef struct key_ahead:
    const char *key
    size_t nkey
    uint32_t hv                  # set by items_ahead

# The item of the key, or NULL. Unlinks it if it has expired or was flushed. do_update: this counts as a use.
cdef item *item_get(store *s, const char *key, size_t nkey, bint do_update) noexcept nogil
# Keys that are going to be looked up soon: computes their hash values, and asks for the memory that the lookups will
# read, so that they wait for it together.
cdef void items_ahead(store *s, key_ahead *keys, unsigned int n) noexcept nogil
# item_get for such a key.
cdef item *item_get_ahead(store *s, const key_ahead *key, bint do_update) noexcept nogil
# item_get that leaves the item lock of *hv held, also when it returns NULL.
cdef item *item_get_locked(store *s, const char *key, size_t nkey, bint do_update, uint32_t *hv) noexcept nogil
# item_get that sets a new expiry time.
cdef item *item_touch(store *s, const char *key, size_t nkey, rel_time_t exptime) noexcept nogil
# Gives a reference back; the last one frees the item. Neither needs the item lock.
cdef void item_remove(store *s, item *it) noexcept nogil
cdef void do_item_remove(store *s, item *it) noexcept nogil
# Unlinks the item of the key, if there is one. By its key, because the page mover may put a copy in an item's place
# whenever its lock is free.
cdef void item_unlink(store *s, const char *key, size_t nkey) noexcept nogil
# Takes the item out of the hash table, if it is there. The caller's reference stays.
cdef void do_item_unlink(store *s, item *it, uint32_t hv) noexcept nogil
# Puts the item into the hash table, which takes a reference of its own, with that CAS value.
cdef void do_item_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil
# Notes that the item was fetched. The second fetch makes it active, which saves it from COLD.
cdef void do_item_bump(store *s, item *it, uint32_t hv) noexcept nogil
# Change flags of an item that is, or was, linked. The item lock is held: a flag that somebody else changes meanwhile
# would be lost, ITEM_LINKED among them. Readers may look at the flags without the lock.
cdef void do_item_set_flags(store *s, item *it, unsigned int flags) noexcept nogil
cdef void do_item_clear_flags(store *s, item *it, unsigned int flags) noexcept nogil
# Changes when an item that is, or was, linked expires. The item lock is held.
cdef void do_item_set_exptime(store *s, item *it, rel_time_t exptime) noexcept nogil
# The same of its CAS value.
cdef void do_item_set_cas(store *s, item *it, uint64_t cas) noexcept nogil
# Makes the caller the one client that is to recache a stale item, of which it has a reference and has read that CAS
# value: the item gets ITEM_TOKEN_SENT. False: another client is, or the item is not in the table any more, or is not
# stale, or was stored or marked again since. Takes the item lock.
cdef bint item_win(store *s, item *it, uint64_t cas) noexcept nogil
# The next CAS value.
cdef uint64_t get_cas_id(store *s) noexcept nogil

# Stores an item as op says. The caller keeps its reference whatever the result. The CAS value that the client compares
# with is in the item (ITEM_set_cas; 0: none).
# - cas_in: the CAS value that the stored item gets; 0: the next one.
# - cas_out (may be NULL): the stored item's CAS value, if STORED.
# - set_stale: a value whose CAS value is older than the present item's is stored, and marked ITEM_STALE.
# - nbytes_out (may be NULL): data length after append and prepend, otherwise untouched.
# Append and prepend without memory for the result are NOT_STORED.
cdef store_item_type store_item(store *s, item *it, store_op op, uint64_t cas_in, uint64_t *cas_out,
                                bint set_stale, int *nbytes_out) noexcept nogil
cdef store_item_type do_store_item(store *s, item *it, store_op op, uint32_t hv, uint64_t cas_in, uint64_t *cas_out,
                                   bint set_stale, int *nbytes_out) noexcept nogil
# Adds to (incr) or takes from a decimal value. incr wraps at 64 bits, decr stops at 0.
# - buf: INCR_MAX_STORAGE_LEN bytes for the new value as text with a NUL.
# - cas (may be NULL): in, the CAS value to compare with (0: none); out, the new one.
# The value is written in place, padded with spaces, when it fits and nobody else has a reference; otherwise a new item
# takes the item's place.
cdef delta_result_type add_delta(store *s, const char *key, size_t nkey, bint incr, uint64_t delta, char *buf,
                                 uint64_t *cas) noexcept nogil
# it: from item_get_locked.
cdef delta_result_type do_add_delta(store *s, item *it, uint32_t hv, bint incr, uint64_t delta, char *buf,
                                    uint64_t *cas) noexcept nogil

# --- the bytes of an item ---
# Describes data bytes [offset, offset + length), clipped to the item's nbytes; returns the number of entries filled.
# When max_iov is too small they cover only the first of the bytes: go on at offset + the sum of their lengths.
cdef int item_iov(item *it, size_t offset, size_t length, iovec *iov, int max_iov) noexcept nogil

# --- the LRU at run time (memcached: lru tune, mode, temp_ttl) ---
# Percent of a class's memory that HOT and WARM may have, and how old their tails may be: multiples of the age of COLD's
# tail.
cdef void lru_tune(store *s, unsigned int hot_lru_pct, unsigned int warm_lru_pct, double hot_max_factor,
                   double warm_max_factor) noexcept nogil
# These two need the maintainer (store_get_config(s).lru_maintainer), and do nothing without.
# Flat mode (False): new items enter COLD, and the maintainer empties HOT and WARM into it.
cdef void lru_set_segmented(store *s, bint segmented) noexcept nogil
# New items that live for ttl seconds or less enter TEMP; negative: none does.
cdef void lru_set_temp_ttl(store *s, int32_t ttl) noexcept nogil
# Does at once what the maintainer would do in a while; for tests.
cdef void lru_maintain(store *s) noexcept nogil

# --- the crawler ---
cdef enum crawler_result_type:
    CRAWLER_OK = 0
    CRAWLER_RUNNING         # busy with another crawl
    CRAWLER_BADCLASS        # the text does not name slab classes
    CRAWLER_NOTSTARTED      # it names none
    CRAWLER_ERROR           # there is no crawler thread, or it does not do that

# Where a dump goes. The crawler thread calls these, `done` last and once.
cdef struct crawler_client:
    void *arg
    # One item that is neither expired nor flushed. Its item lock is held: write what is wanted of it into memory;
    # neither wait nor call a function of the store. False: no memory; the dump ends.
    bint (*item_found)(void *arg, item *it) noexcept nogil
    # Between items: before each item of a queue, after each bucket of the hash table that had some. No lock is held: it
    # may wait, for a slow reader as well. False: the reader is gone; the dump ends.
    bint (*flush)(void *arg) noexcept nogil
    # The dump is over; the crawler may be busy with another one already when this writes what is left. complete: all
    # items were visited; else one of the above returned False, or the store is being stopped.
    void (*done)(void *arg, bint complete) noexcept nogil

# Starts the crawler thread. False: there is one already, or none can be started.
cdef bint lru_crawler_enable(store *s) noexcept nogil
# Ends the crawler thread: at once or, when a crawl is under way, after it.
cdef void lru_crawler_disable(store *s) noexcept nogil
cdef void lru_crawler_set_sleep(store *s, uint32_t usec) noexcept nogil
cdef void lru_crawler_set_tocrawl(store *s, uint32_t items) noexcept nogil
# Starts a crawl that frees expired items of the classes, looking at lru_crawler_tocrawl items of each queue at most.
# classes: slab class ids separated by commas, or "all".
cdef crawler_result_type lru_crawler_crawl(store *s, const char *classes, size_t length) noexcept nogil
# Starts a dump of the classes, or of "hash", a walk of the hash table, which disturbs the LRU less. Copies *client.
cdef crawler_result_type lru_crawler_dump(store *s, const char *classes, size_t length,
                                          const crawler_client *client) noexcept nogil

# --- statistics ---
# Sums of all classes; each class is consistent in itself. An item counts once whatever queue it moves to.
cdef void store_get_stats(store *s, store_stats *out) noexcept nogil
# Clears the counters; sizes and current amounts stay.
cdef void store_reset_stats(store *s) noexcept nogil
cdef unsigned int store_largest_class(store *s) noexcept nogil
# False: there is no class of that id.
cdef bint store_get_class_stats(store *s, unsigned int clsid, class_stats *out) noexcept nogil
# The class of an item of so many bytes (ITEM_ntotal); 0: larger than the item size limit.
cdef unsigned int store_class_of(store *s, size_t ntotal) noexcept nogil
# Linked items by size, for `stats sizes`: bucket b counts those of more than SIZES_GRANULARITY * (b - 1) and at most
# SIZES_GRANULARITY * b bytes. The number of buckets is 0 unless config.track_sizes is set.
cdef uint32_t store_sizes_buckets(store *s) noexcept nogil
cdef uint32_t store_sizes(store *s, uint32_t bucket) noexcept nogil
# The lines of `stats cachedump`, END included, malloc'd; NULL: no memory. limit 0: as many as fit into 2 MB.
cdef char *store_cachedump(store *s, unsigned int clsid, uint32_t limit, size_t *length) noexcept nogil

# --- the parts, for each other only; from the lowest to the highest, see layout.pxd ---
include "hash.pxd"
include "threads.pxd"
include "tell.pxd"
include "clock.pxd"
include "arena.pxd"
include "huge.pxd"
include "slabs.pxd"
include "assoc.pxd"
include "direct.pxd"
include "ghost.pxd"
include "link.pxd"
include "reassign.pxd"
include "lru.pxd"
include "data.pxd"
include "items.pxd"
include "commands.pxd"
include "crawler.pxd"
include "stats.pxd"
include "maintainer.pxd"
include "automove.pxd"
include "mover.pxd"
include "cachedump.pxd"
include "life.pxd"
include "layout.pxd"
