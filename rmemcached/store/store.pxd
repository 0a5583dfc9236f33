"""The item store: slabs, hash table, LRU. No networking, no Python objects.

Memory layout, sizes and rules follow memcached 1.6 (items.c, slabs.c, assoc.c, thread.c). All functions are
thread-safe, except those named ``do_...``: their caller holds a lock, in this interface the item lock of the key's hash
(``item_get_locked``).

An ``item *`` from this interface carries a reference. The caller gives the reference back with ``item_remove``. Only a
thread with the item lock may write the data of a linked item, and only while the reference count is two (the table's
and the writer's). So a thread with a reference reads stable bytes without a lock.

Failures in this folder: a `bint` is False, a pointer NULL, a missing number -1; a result with more outcomes is an enum.
No caller needs errno.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.direct cimport (
    DIRECT_ACTIVE, DIRECT_CHUNK, DIRECT_CHUNKED, DIRECT_ELSEWHERE, DIRECT_FETCHED, DIRECT_FREQUENCY_ONE, DIRECT_LINKED,
    DIRECT_SLABBED, DIRECT_STALE, DIRECT_TOKEN_SENT, DIRECT_WITH_CAS, DIRECT_WITH_FLAGS, direct_bucket, direct_header,
)
from rmemcached.logger cimport logger
from rmemcached.sys.atomics cimport relaxed_load, relaxed_store
from rmemcached.sys.debug cimport assert_that
from rmemcached.sys.key_hash cimport hash_secrets, key_hash
from rmemcached.sys.linux cimport pthread_cond_t, pthread_mutex_t, pthread_t, timespec

# Seconds since store_process_started(); 0: never. As in memcached, the clock begins at ITEM_UPDATE_INTERVAL + 2, so
# neither "now" nor "a bump interval ago" is ever 0. Uptime is store_time() - ITEM_UPDATE_INTERVAL.
ctypedef uint32_t rel_time_t

cdef enum:
    KEY_MAX_LENGTH = 250
    SLAB_CLASS_BITS = 6
    MAX_NUMBER_OF_SLAB_CLASSES = 1 << SLAB_CLASS_BITS   # class ids are 1..63; 0 is the pool of unassigned pages
    SLAB_CLASS_MASK = MAX_NUMBER_OF_SLAB_CLASSES - 1
    NUMBER_OF_QUEUES = 4 * MAX_NUMBER_OF_SLAB_CLASSES   # LRU queues: class id | queue << SLAB_CLASS_BITS
    ITEM_UPDATE_INTERVAL = 60         # seconds between two LRU bumps of an item
    SLAB_PAGE_SIZE = 1024 * 1024
    SLAB_GLOBAL_PAGE_POOL = 0
    ARENA_EXTENT = 64 * SLAB_PAGE_SIZE  # the arena becomes usable (and registrable) in extents of so many bytes
    REALTIME_MAXDELTA = 60 * 60 * 24 * 30   # seconds; a client's larger expiry time is a Unix time
    SIZES_GRANULARITY = 32            # bytes of a bucket of `stats sizes`
    CACHE_LINE = 64

# item.it_flags, memcached's values. Clients with direct reads look at the flags in direct.pxd.
cdef enum:
    ITEM_LINKED = DIRECT_LINKED
    ITEM_CAS = DIRECT_WITH_CAS
    ITEM_SLABBED = DIRECT_SLABBED
    ITEM_FETCHED = DIRECT_FETCHED
    ITEM_ACTIVE = DIRECT_ACTIVE
    ITEM_CHUNKED = DIRECT_CHUNKED
    ITEM_CHUNK = DIRECT_CHUNK
    # The value is elsewhere: the item is a header with an item_hdr in place of the data, and nbytes is the value's.
    ITEM_HDR = DIRECT_ELSEWHERE
    ITEM_CFLAGS = DIRECT_WITH_FLAGS
    ITEM_TOKEN_SENT = DIRECT_TOKEN_SENT
    ITEM_STALE = DIRECT_STALE
    ITEM_KEY_BINARY = 4096
    # ours: the item has room for a seal behind its data
    ITEM_SEAL_ROOM = 1024
    # ours: the count of S3-FIFO, 0 to 3 (lru_algorithm=s3fifo): a fetch adds one, an escape from eviction takes one off
    ITEM_FREQUENCY_ONE = DIRECT_FREQUENCY_ONE
    ITEM_FREQUENCY = 3 * ITEM_FREQUENCY_ONE
    # ours: the index of direct reads had no room for the item; the item may have got a slot since
    ITEM_LEFT_OUT = 32768

cdef struct item:
    # The LRU lock of the item's queue guards next and prev; refcount is atomic. The item lock guards the other fields
    # once the item is linked; before, they are the allocating thread's. A thread with a reference may read the flags,
    # times and CAS value without the lock. The functions below read and write these fields atomically.
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
    # in ITEM_CHUNKED items an item_chunk header without data bytes (ITEM_schunk) is in the data's place, in ITEM_HDR
    # items an item_hdr.

cdef struct item_chunk:
    # Guarded by the same lock as the head item.
    item_chunk *next
    item_chunk *prev        # NULL in the header inside the head item
    item *head
    int32_t size            # capacity of this chunk's data in bytes
    int32_t used            # data bytes in the chunk
    int32_t nbytes
    uint16_t refcount
    uint16_t it_flags       # ITEM_CHUNK
    uint8_t slabs_clsid
    uint8_t orig_clsid      # in the header inside the head item: the class of the head's chunk
    # data at offset 48

cdef struct item_hdr:           # the place of a value in external storage (rmemcached/flash); memcached's structure
    uint32_t page_version
    uint32_t offset         # bytes from the beginning of the page
    uint16_t page_id

cdef inline bint ITEM_has(const item *it, unsigned int flag) noexcept nogil:
    """Whether a flag is set. Flags about the item's layout never change: a thread may read them without the item lock,
    while another thread changes ITEM_LINKED, ITEM_FETCHED and the like.
    """
    return (<uint16_t>relaxed_load(&(<item *>it).it_flags) & flag) != 0

cdef inline uint64_t ITEM_get_cas(const item *it) noexcept nogil:
    return relaxed_load(<uint64_t *>(<item *>it + 1)) if ITEM_has(it, ITEM_CAS) else 0

cdef inline void ITEM_set_cas(item *it, uint64_t value) noexcept nogil:
    """Sets the CAS value of an item without a seal at present: do_item_set_cas also changes the seal."""
    if ITEM_has(it, ITEM_CAS):
        relaxed_store(<uint64_t *>(it + 1), value)

cdef inline void item_set_flags(item *it, unsigned int flags) noexcept nogil:
    """Sets flags of a new item, which no lookup finds yet: do_item_set_flags is for linked items. The write is atomic,
    because the page mover may look at the flags meanwhile.
    """
    assert_that(not it.it_flags & ITEM_LINKED)
    relaxed_store(&it.it_flags, it.it_flags | flags)

cdef inline rel_time_t item_time(const item *it) noexcept nogil:
    return <rel_time_t>relaxed_load(&(<item *>it).time)

cdef inline void item_set_time(item *it, rel_time_t now) noexcept nogil:
    """Sets the time of an unlinked item: direct_set_times also changes the seal."""
    relaxed_store(&it.time, now)

cdef inline rel_time_t item_exptime(const item *it) noexcept nogil:
    return <rel_time_t>relaxed_load(&(<item *>it).exptime)

cdef inline void item_set_exptime(item *it, rel_time_t exptime) noexcept nogil:
    """Sets the expiry time of an unlinked item: do_item_set_exptime is for linked items."""
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
    """The first data byte of an unchained item. In a chained item the item_chunk header (ITEM_schunk) begins here,
    rounded up to eight bytes.
    """
    return ITEM_key(it) + it.nkey + 1 + (4 if ITEM_has(it, ITEM_CFLAGS) else 0)

cdef inline item_chunk *ITEM_schunk(item *it) noexcept nogil:
    """The item_chunk header inside the head of an ITEM_CHUNKED item, aligned to eight bytes."""
    return <item_chunk *>(<char *>it + ((<size_t>(ITEM_data(it) - <char *>it) + 7) & ~<size_t>7))

cdef inline size_t ITEM_ntotal(item *it) noexcept nogil:
    """The item's size in statistics and `me`, in bytes: header, cas, key, flags, data."""
    return <size_t>(ITEM_data(it) - <char *>it) + <size_t>it.nbytes

cdef inline item_hdr ITEM_get_hdr(item *it) noexcept nogil:
    """The place of an ITEM_HDR item's value. The caller has the item lock, or the item is not linked."""
    cdef item_hdr where
    memcpy(&where, ITEM_data(it), sizeof(where))
    return where

cdef inline size_t ITEM_size(item *it) noexcept nogil:
    """The item's bytes in memory, chunk headers excepted: ITEM_ntotal, or the size of a header."""
    cdef size_t data = sizeof(item_hdr) if ITEM_has(it, ITEM_HDR) else <size_t>it.nbytes
    return <size_t>(ITEM_data(it) - <char *>it) + data

cdef inline unsigned int ITEM_clsid(const item *it) noexcept nogil:
    return <unsigned int>relaxed_load(&(<item *>it).slabs_clsid) & SLAB_CLASS_MASK

cdef inline unsigned int ITEM_chunk_clsid(item *it) noexcept nogil:
    """The slab class of the item's own chunk: the head of a chained item is in another class than ITEM_clsid."""
    return ITEM_schunk(it).orig_clsid if ITEM_has(it, ITEM_CHUNKED) else ITEM_clsid(it)

cdef inline unsigned int ITEM_queue(const item *it) noexcept nogil:
    """The item's LRU queue: class id | queue << SLAB_CLASS_BITS. Queues: 0 HOT, 1 WARM, 2 COLD, 3 TEMP."""
    return <unsigned int>relaxed_load(&(<item *>it).slabs_clsid)

cdef enum store_item_type:
    NOT_STORED = 0
    STORED
    EXISTS
    NOT_FOUND
    # For the protocol's log entries after a failed item_alloc: store_item returns neither.
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

cdef struct victim:             # an item handed over by eviction
    item *it                    # with a reference
    uint32_t hv                 # its item lock is held

# External storage, as the store sees it.
cdef struct external_storage:
    void *arg
    # An allocation is about to evict the item. Puts a header in its place, if there is room for the value at once.
    # False: the item is evicted. The functions of headers may be called, with the victim's item lock.
    bint (*take)(void *arg, const victim *v) noexcept nogil
    # The pool has as few free pages as it should keep, or fewer: a class has taken a page, with the slabs lock held.
    void (*scarce)(void *arg) noexcept nogil
    # The next two are told about headers (ITEM_HDR), with the item lock held, perhaps with an LRU lock: they must not
    # call the store.
    # The linked header is leaving the table or gets another place: its value is no longer needed.
    void (*gone)(void *arg, item *it) noexcept nogil
    # Whether the header's value is still there.
    bint (*exists)(void *arg, item *it) noexcept nogil
    # With a memory file, for store_create: begin, then restore for each header found, then end. begin and end return
    # the error, or NULL.
    # number: of the memory file (memory_file_id). fresh: there are no headers.
    const char *(*begin)(void *arg, uint64_t number, bint fresh) noexcept nogil
    # Whether the header's value is there; the value is needed from now on. The header is not in the table yet. Also
    # called later, for a copy of a linked header with the same place.
    bint (*restore)(void *arg, item *it) noexcept nogil
    const char *(*end)(void *arg) noexcept nogil

cdef enum restart_policy:       # what a start does with the items of a memory file (-o restart)
    RESTART_AUTO = 0            # keeps them, but not after three crashes within a minute
    RESTART_ALWAYS
    RESTART_FRESH               # starts with an empty file

ctypedef void (*extent_fn)(void *arg, void *addr, size_t length) noexcept nogil

# Settings of storage on flash, as `stats settings` shows them with ext_ before the name. The command extstore changes
# all but wbuf_size. `stats settings` also shows slab_automove_freeratio (store_config) among them.
cdef struct flash_settings:
    uint32_t item_size          # bytes: smaller items stay in memory
    uint32_t item_age           # seconds: items not used for so long go to flash
    uint32_t low_ttl            # seconds: items with a shorter life go to pages of their own
    uint32_t recache_rate       # one of so many hits brings its item back to memory; 0: none
    uint32_t wbuf_size          # bytes of a write buffer
    uint32_t compact_under      # compact pages when fewer are free
    uint32_t drop_under         # drop items, in place of moving them, when fewer pages are free
    uint32_t max_sleep          # microseconds between two looks at the LRU's tails, at most
    double max_frag             # pages with a smaller share in use are compacted
    uint32_t drop_unread        # 1: compaction drops items never read

cdef struct store_config:
    uint64_t maxbytes           # memory limit in bytes
    uint64_t item_size_max      # bytes, header included
    uint32_t slab_chunk_size_max  # the largest chunk; larger items are chained
    uint32_t chunk_size         # room of the smallest chunk beside the item header (-n)
    double factor               # growth between classes (-f)
    bint use_cas
    bint evict_to_free
    unsigned int hashpower_init  # 0: the default
    bint hash_expand            # whether the hash table grows (no_hashexpand)
    unsigned int nthreads       # worker threads: they decide the number of item locks
    # The segmented LRU. `lru tune`, `lru mode` and `lru temp_ttl` change the settings from lru_segmented to
    # temporary_ttl, except for s3fifo.
    bint lru_maintainer         # run the maintainer thread
    bint lru_segmented
    bint s3fifo                 # evict by S3-FIFO: there are no segments then, and lru_segmented is False
    unsigned int hot_lru_pct    # percent of a class's memory
    unsigned int warm_lru_pct
    double hot_max_factor       # of the age of COLD's tail
    double warm_max_factor
    bint temp_lru
    unsigned int temporary_ttl  # seconds
    # The crawler. `lru_crawler enable|disable|sleep|tocrawl` change the next three settings.
    bint lru_crawler
    unsigned int lru_crawler_sleep    # microseconds
    unsigned int lru_crawler_tocrawl  # 0: no limit
    # The LRU again. Seconds after which an unused item at its queue's tail is freed in spite of its references: the
    # references have probably leaked. 0: never. No command changes this setting.
    unsigned int tail_repair_time
    # The page mover. `slabs automove` changes the four slab_automove settings.
    bint slab_reassign
    unsigned int slab_automove        # 0, 1, 2
    double slab_automove_ratio
    unsigned int slab_automove_window
    double slab_automove_freeratio    # share of all memory to stay free pages (slabs_set_automove_freeratio)
    const char *memory_file           # -e: the path of the file with the items; NULL: none
    restart_policy restart
    bint preallocate                  # -L: take (and touch) all memory at start
    uint64_t initial_malloced         # start value of total_malloced, in bytes; memcached's test suite sets it
    uint32_t slab_sizes[MAX_NUMBER_OF_SLAB_CLASSES]    # -o slab_sizes: chunk sizes, ended by 0; [0] = 0: by factor
    bint huge_pages             # put items into huge pages where the system has them (huge.pxd)
    bint direct                 # clients may read the memory themselves: a memfd holds it (direct.pxd)
    uint32_t direct_linger      # seconds without such clients, after which the store gives the index up
    bint direct_remote          # with direct: clients also READ over devices, so items have seals
    bint track_sizes            # count items by size for `stats sizes`
    flash_settings flash        # the command extstore changes it
    const external_storage *external    # NULL: no item has ITEM_HDR
    logger *log                 # receives entries about fetches, stores, evictions and background work; may be NULL
    # Called before the first use of an extent of the arena: the server registers the extent with its devices. The
    # slabs lock is held, so the function must not call the store. May be NULL.
    extent_fn extent_added
    # With direct_remote, called before the first use of a part of header and index of direct reads, for the same
    # purpose. The caller may hold item locks, so the function must not call the store. May be NULL.
    extent_fn index_added
    void *extent_arg            # the first argument of both functions

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
    uint64_t get_expired        # lookups of expired items
    uint64_t get_flushed        # ... of items older than flush_all
    uint64_t outofmemory        # failed allocations
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
    uint64_t ghost_hits         # s3fifo: keys stored again soon after their eviction
    uint64_t ghost_bytes        # ... bytes of the table of evicted keys, at most
    double small_lru_pct        # ... the small queues' share of the items, in percent
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
    uint64_t restored_items     # of the memory file, at the start
    uint64_t restored_dropped   # ... items that did not hold together
    uint64_t restored_expired
    uint64_t restored_us        # ... microseconds it took
    uint64_t foreign_pages      # pages of the memory file with old chunk sizes, still to be emptied,
    uint64_t foreign_dropped    # ... and items of such pages that found no room

# Counters and sizes of a slab class. Read with store_get_class_stats.
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

# --- creation, end and settings ---
# Makes an empty store and starts the threads named in config. Touches little memory, except with config.preallocate.
# NULL: *error is the reason, a text not to be freed.
cdef store *store_create(const store_config *config, const char **error) noexcept nogil
# A line about the start for the operator, such as why a memory file's items were not kept; empty: nothing to say.
cdef const char *store_note(store *s) noexcept nogil
# Ends all threads of the store; a second call is harmless. The server calls this while its workers still run: the store
# stays usable, but grows and maintains nothing any more. A running dump ends with done(False), so its crawler_client
# must still exist.
cdef void store_stop_threads(store *s) noexcept nogil
# Stops the threads and frees everything. No other thread may be in the store, and nobody may use an item afterwards.
# With config.direct only the thread of store_create may call this: it holds a mutex for clients locked (direct.pxd).
cdef void store_destroy(store *s) noexcept nogil
# The store's own settings, no copy: read constant fields directly, and changing integers with relaxed_load.
# store_copy_config copies all settings at one moment.
cdef const store_config *store_get_config(store *s) noexcept nogil
cdef void store_copy_config(store *s, store_config *out) noexcept nogil
# Changes the settings of flash. `number` is a field of *store_flash_settings(s).
cdef flash_settings *store_flash_settings(store *s) noexcept nogil
cdef void store_set_flash(store *s, uint32_t *number, uint32_t value) noexcept nogil
cdef void store_set_flash_max_frag(store *s, double share) noexcept nogil

# --- direct reads (docs/direct-reads.md) ---
cdef struct direct_stats:
    uint64_t buckets            # of the index; 0: no index
    uint64_t items              # in the index
    uint64_t left_out           # times an item found no room in the index
    uint64_t clients            # clients that got the memory since the start,
    uint64_t readers            # ... and clients with the memory now
    uint64_t sealed             # 1: the memory was readied for clients, and no page goes back to the system any more
    uint64_t building           # 1: the thread still enters the items stored before the index was made
    uint64_t pinned_pages       # pages with pinned items
    uint64_t huge_pages         # huge pages of 2 MB made so far (store_config.huge_pages)

# Gives a client the memory: two descriptors, of the index and of the arena. The store owns the descriptors, and keeps
# them unchanged until store_direct_return. Makes the index, if there is none. The workers call this for an RDMA
# connection whose client may read directly. False: config.direct is not set, the store is stopping, or the system
# refuses the index.
cdef bint store_direct_give(store *s, int *index_fd, int *arena_fd) noexcept nogil
# Tells the store that a client with the memory has gone: one call for each successful store_direct_give.
cdef void store_direct_return(store *s) noexcept nogil
# The start of the memory: header and index come first. Places count from here. Either a client has the memory
# (store_direct_give), or config.direct_remote is set: otherwise another thread may give the index up.
cdef const void *store_direct_base(store *s) noexcept nogil
cdef void store_direct_stats(store *s, direct_stats *out) noexcept nogil
# Tells clients that the memory is no longer kept: they ask the daemon from now on. For direct_destroy, and for tests.
cdef void store_direct_end(store *s) noexcept nogil
# Notes a client's direct read of the item at this place (direct_place / 8), under a key with this hash, as a get does
# for eviction (do_item_bump). For the command rdma_hits: hv and place come from the client, and may be anything. False:
# there is no such item, or the item has expired. Takes the item lock.
cdef bint item_note_read(store *s, uint32_t hv, uint64_t place) noexcept nogil

# Pins an item for a client that will read the data in place (rmemcached/rdma/pins.pyx). The caller has a reference, and
# keeps the reference until item_unpin. The page mover begins no move of a page with pinned items. False: the pinned
# items of all clients would lie on more than `most` pages, or the mover is emptying a page of the item.
cdef bint item_pin(store *s, item *it, uint64_t most) noexcept nogil
# Ends the pin of item_pin.
cdef void item_unpin(store *s, item *it) noexcept nogil

# --- time ---
# Sets the clock by CLOCK_MONOTONIC, and grows a crowded hash table. The server's main thread calls this once a second.
cdef void store_tick(store *s) noexcept nogil
# Moves the clock by so many seconds, which may be negative. For the command debugtime: tests of expiry and LRU age.
cdef void store_advance(store *s, int64_t seconds) noexcept nogil
# Stops the clock (paused: store_tick leaves the clock alone), or lets the clock go on. For debugtime as well.
cdef void store_pause(store *s, bint paused) noexcept nogil
# The store's clock, as set by the last store_tick or store_advance.
cdef rel_time_t store_time(store *s) noexcept nogil
# Unix time of rel_time_t 0.
cdef int64_t store_process_started(store *s) noexcept nogil
# A client's expiry time on the store's clock. 0: never; negative: at once; up to 30 days: from now; else a Unix time.
cdef rel_time_t realtime(store *s, int64_t exptime) noexcept nogil
# Invalidates all present items, at once (exptime <= 0) or when the clock reaches realtime(exptime).
cdef void store_flush_all(store *s, int64_t exptime) noexcept nogil

# --- slab pages ---
cdef enum reassign_result:
    REASSIGN_OK = 0
    REASSIGN_RUNNING        # a page is being moved, too many requests wait, or there is no page mover
    REASSIGN_BADCLASS       # no such class, or no class has a page to spare
    REASSIGN_NOSPARE        # the source has less than two pages
    REASSIGN_SRC_DST_SAME

# Requests the move of a page from class src to class dst; 0 is the global pool, src -1 any class. Returns at once:
# store_stats show when the page has moved. allow_evictions: the mover may evict items for the move when memory is full.
cdef reassign_result slabs_reassign(store *s, int src, int dst, bint allow_evictions) noexcept nogil
# Sets the level of `slabs automove`. 0: pages move on request only. 1: also as automove decides. 2: also with every
# eviction.
cdef void slabs_set_automove(store *s, unsigned int level) noexcept nogil
# A class may take a page if its oldest item is younger than this share of the age of the oldest item of all.
cdef void slabs_set_automove_ratio(store *s, double ratio) noexcept nogil
# How many runs of automove, at most ten a second, a decision looks back at; greater than zero.
cdef void slabs_set_automove_window(store *s, unsigned int runs) noexcept nogil
# The share of all memory that automove keeps as free pages with external storage. Without, the ratio is kept and shown,
# but has no effect, as in memcached.
cdef void slabs_set_automove_freeratio(store *s, double ratio) noexcept nogil
# Changes the memory limit at run time. A lower limit gives pages of the pool back to the system, at once and as the
# page mover frees more. After store_pin_memory, or once the memory was readied for clients, the pages stay in the pool
# instead. Until the limit allows more, a class gets a page of this pool only as its first page. False: maxbytes is 0,
# the memory was preallocated, or the reserved range is too small.
cdef bint store_set_memory_limit(store *s, uint64_t maxbytes) noexcept nogil
# From now on the arena keeps its physical memory: no page goes back to the system. Called when a
# device that knows memory by its physical address is opened, before the device registers the arena.
cdef void store_pin_memory(store *s) noexcept nogil

# --- items ---
# Unlocks the item lock of hv, after item_get_locked.
cdef void item_unlock(store *s, uint32_t hv) noexcept nogil
# Takes the item lock of hv outside of the lock order, for the command `debugitem lock`.
cdef void store_debug_lock(store *s, uint32_t hv) noexcept nogil
# Releases the lock of store_debug_lock, for `debugitem unlock`. Only the thread with the lock may call this.
cdef void store_debug_unlock(store *s, uint32_t hv) noexcept nogil
# Whether an item of these sizes is within the item size limit.
cdef bint item_size_ok(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil
# Allocates an unlinked item for nbytes of data: the value and \r\n. The \r\n is already written. nkey is at most
# KEY_MAX_LENGTH. A large item comes with all its chunks. Older items may be evicted. NULL: the item is over the item
# size limit (item_size_ok), or there is no memory.
cdef item *item_alloc(store *s, const char *key, size_t nkey, uint32_t flags, rel_time_t exptime,
                      size_t nbytes) noexcept nogil
cdef struct key_ahead:           # a key whose item will be looked up soon
    const char *key
    size_t nkey
    uint32_t hv                  # set by items_ahead

# Looks up the key's item. Unlinks an expired or flushed item. do_update: the lookup counts as a use. NULL: no item.
cdef item *item_get(store *s, const char *key, size_t nkey, bint do_update) noexcept nogil
# Prepares the lookups of several keys: computes their hash values and prefetches the memory that the lookups read, so
# the cache misses overlap.
cdef void items_ahead(store *s, key_ahead *keys, unsigned int n) noexcept nogil
# item_get for a key prepared by items_ahead: holds the item lock during the look-up, and returns a reference.
cdef item *item_get_ahead(store *s, const key_ahead *key, bint do_update) noexcept nogil
# item_get, but the item lock of *hv stays held, even when the result is NULL.
cdef item *item_get_locked(store *s, const char *key, size_t nkey, bint do_update, uint32_t *hv) noexcept nogil
# item_get with do_update, and sets a new expiry time.
cdef item *item_touch(store *s, const char *key, size_t nkey, rel_time_t exptime) noexcept nogil
# Gives a reference back; the last reference frees the item. The caller needs no lock.
cdef void item_remove(store *s, item *it) noexcept nogil
# item_remove by memcached's name for a caller with the item lock, although the lock is not needed.
cdef void do_item_remove(store *s, item *it) noexcept nogil
# Unlinks the key's item, if there is one. The argument is a key, because the page mover may put a copy in the item's
# place whenever the item lock is free.
cdef void item_unlink(store *s, const char *key, size_t nkey) noexcept nogil
# Unlinks the item, if it is linked. The caller's reference stays.
cdef void do_item_unlink(store *s, item *it, uint32_t hv) noexcept nogil
# Links the item with this CAS value. The key has no linked item. The hash table takes a reference of its own.
cdef void do_item_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil
# Notes a fetch of the item, for eviction: of a get, of mg, or of a direct read reported by a client. In the segmented
# LRU the second fetch makes the item active, which saves the item from eviction; S3-FIFO counts fetches; flat mode does
# the same as do_item_update (lru.pxd).
cdef void do_item_bump(store *s, item *it, uint32_t hv) noexcept nogil
# Sets flags of an item that is, or was, linked. The caller holds the item lock: without the lock another thread's
# change of a flag, even of ITEM_LINKED, could be lost. Readers need no lock. ITEM_STALE and ITEM_TOKEN_SENT also take
# the seal away.
cdef void do_item_set_flags(store *s, item *it, unsigned int flags) noexcept nogil
# Clears flags of such an item. The caller holds the item lock. The seal does not come back.
cdef void do_item_clear_flags(store *s, item *it, unsigned int flags) noexcept nogil
# Changes the expiry time of an item that is, or was, linked. The caller holds the item lock.
cdef void do_item_set_exptime(store *s, item *it, rel_time_t exptime) noexcept nogil
# Changes the CAS value of an item that is, or was, linked. The caller holds the item lock.
cdef void do_item_set_cas(store *s, item *it, uint64_t cas) noexcept nogil
# Chooses the client that recaches a stale item. The caller has a reference to the item, and has read this CAS value.
# True: the caller's client recaches the item, and the item gets ITEM_TOKEN_SENT. False: another client does, or the
# item has left the table, is not stale, or was stored or marked again since. Takes the item lock. For mg without the
# item lock.
cdef bint item_win(store *s, item *it, uint64_t cas) noexcept nogil
# Takes the next CAS value.
cdef uint64_t get_cas_id(store *s) noexcept nogil

# store_item stores an item as op says. The caller keeps its reference in any case. The item carries the CAS value to
# compare with (ITEM_set_cas; 0: none).
# - cas: the CAS value for the stored item; 0: the next value.
# - set_stale: NREAD_CAS stores a value with an older CAS value than the present item's, too, and marks it ITEM_STALE.
# - out: may be NULL.
# Append and prepend without memory for the result are NOT_STORED.
cdef struct stored_item:
    uint64_t cas                # the stored item's CAS value; untouched unless STORED
    int nbytes                  # data length after append and prepend; otherwise untouched
cdef store_item_type store_item(store *s, item *it, store_op op, uint64_t cas, bint set_stale,
                                stored_item *out) noexcept nogil
# store_item for a caller with the item lock of hv.
cdef store_item_type do_store_item(store *s, item *it, uint32_t hv, store_op op, uint64_t cas, bint set_stale,
                                   stored_item *out) noexcept nogil
# Adds delta to a decimal value (incr), or subtracts it. incr wraps at 64 bits, decr stops at 0.
# - buf: INCR_MAX_STORAGE_LEN bytes for the new value as text with a NUL.
# - cas (may be NULL): in, the CAS value to compare with (0: none); out, the new CAS value.
# Writes the new value in place, padded with spaces, if it fits and nobody else has a reference. Otherwise a new item
# takes the item's place.
cdef delta_result_type add_delta(store *s, const char *key, size_t nkey, bint incr, uint64_t delta, char *buf,
                                 uint64_t *cas) noexcept nogil
# add_delta for an item from item_get_locked.
cdef delta_result_type do_add_delta(store *s, item *it, uint32_t hv, bint incr, uint64_t delta, char *buf,
                                    uint64_t *cas) noexcept nogil

# --- the bytes of an item ---
# Describes data bytes [offset, offset + length), clipped to the item's nbytes; returns the number of entries filled.
# With too small a max_iov the entries cover only the first bytes: go on at offset + the sum of their lengths.
cdef int item_iov(item *it, size_t offset, size_t length, iovec *iov, int max_iov) noexcept nogil

# --- items with values in external storage ---
# Hands over the item of the class that eviction would take next, in place of freeing it. False: there is none, or it is
# locked. The caller ends with victim_release.
cdef bint store_take_victim(store *s, unsigned int clsid, victim *v) noexcept nogil
cdef void victim_release(store *s, victim *v) noexcept nogil
# Puts a header in the victim's place: its value is at `where` now. False: no memory for a header.
cdef bint do_victim_to_header(store *s, const victim *v, const item_hdr *where) noexcept nogil
# Finds the header of a key whose value is at `where`, and locks hv until item_unlock. NULL: there is no such header, or
# it has expired; nothing is locked.
cdef item *header_find_locked(store *s, const char *key, size_t nkey, uint32_t hv,
                              const item_hdr *where) noexcept nogil
# Gives the header of header_find_locked another place.
cdef void do_header_move(store *s, item *it, const item_hdr *where) noexcept nogil
# An unlinked item with the header's key, sizes, client flags and expiry time, for reading its value. NULL: no memory.
cdef item *header_buffer(store *s, item *it) noexcept nogil
# Locks the key of a header to which the caller has a reference, until item_unlock. Returns the key's hash. Meanwhile
# the header keeps its place and, while linked, its value.
cdef uint32_t header_lock(store *s, item *it) noexcept nogil
# The item linked in the place of a header, with a reference, if the reply to a get of the header describes this item,
# too: the same length, client flags, expiry time and CAS value. Else NULL. The caller has the item lock.
cdef item *do_header_successor(store *s, item *it, uint32_t hv) noexcept nogil
# Unlinks the key's header if its value is at `where`.
cdef void header_drop(store *s, item *it, const item_hdr *where) noexcept nogil
# Whether clients fetch the item often: the header is linked, and was fetched twice, lately. No lock is needed.
cdef bint header_is_hot(store *s, item *it) noexcept nogil
# Puts `value`, from header_buffer, in the place of a hot header, unless another thread has the item lock. True: value
# is linked now.
cdef bint header_recache(store *s, item *it, item *value) noexcept nogil
# The room of a slab class.
cdef struct class_room:
    uint32_t perslab            # chunks in a page
    uint64_t chunks_free        # free chunks, without pages of the pool
    uint64_t total_pages
cdef void store_class_room(store *s, unsigned int clsid, class_room *out) noexcept nogil
# Free pages of the pool, and how many the pool should have by automove.
cdef unsigned int store_free_pages(store *s) noexcept nogil
cdef unsigned int store_pool_least(store *s) noexcept nogil
# The share of memory whose items are too small for external storage, in hundredths of a percent.
cdef unsigned int store_memory_pressure(store *s) noexcept nogil

# --- the LRU at run time (memcached: lru tune, mode, temp_ttl) ---
# Sets the shares of HOT and WARM, in percent of a class's memory, and how old their tails may be, in multiples of the
# age of COLD's tail.
cdef void lru_tune(store *s, unsigned int hot_lru_pct, unsigned int warm_lru_pct, double hot_max_factor,
                   double warm_max_factor) noexcept nogil
# The next two functions need the maintainer (store_get_config(s).lru_maintainer), and otherwise do nothing. Flat mode
# (False): new items enter COLD, and the maintainer empties HOT and WARM into COLD.
cdef void lru_set_segmented(store *s, bint segmented) noexcept nogil
# New items that live at most ttl seconds enter TEMP; negative: none enters TEMP.
cdef void lru_set_temp_ttl(store *s, int32_t ttl) noexcept nogil
# Does the maintainer's work at once; for tests.
cdef void lru_maintain(store *s) noexcept nogil

# --- the crawler ---
cdef enum crawler_result_type:
    CRAWLER_OK = 0
    CRAWLER_RUNNING         # busy with another crawl
    CRAWLER_BADCLASS        # the text does not name slab classes
    CRAWLER_NOTSTARTED      # the text names no class
    CRAWLER_ERROR           # no crawler thread, or the thread cannot do this crawl

# The destination of a dump. The crawler thread calls these functions, `done` last and once.
cdef struct crawler_client:
    void *arg
    # Takes an item that is neither expired nor flushed. The item lock is held: copy the wanted parts into memory;
    # neither wait nor call a function of the store. False: no memory; the dump ends.
    bint (*item_found)(void *arg, item *it) noexcept nogil
    # Called between items: before each item of a queue, after each bucket of the hash table with items. No lock is
    # held: the function may wait, for a slow reader as well. False: the reader is gone; the dump ends.
    bint (*flush)(void *arg) noexcept nogil
    # Ends the dump. The crawler accepts the next crawl before `done` returns. complete: all items were visited; else a
    # function above returned False, or the store is stopping.
    void (*done)(void *arg, bint complete) noexcept nogil

# Starts the crawler thread. False: the thread runs already or cannot be started, or the store is stopping.
cdef bint lru_crawler_enable(store *s) noexcept nogil
# Ends the crawler thread: at once or, during a crawl, after the crawl.
cdef void lru_crawler_disable(store *s) noexcept nogil
# Sets the microseconds of the crawler's sleep after each 1000 items (`lru_crawler sleep`).
cdef void lru_crawler_set_sleep(store *s, uint32_t usec) noexcept nogil
# Sets how many items of each queue a crawl looks at, at most; 0: all (`lru_crawler tocrawl`).
cdef void lru_crawler_set_tocrawl(store *s, uint32_t items) noexcept nogil
# Starts a crawl that frees expired items of the classes, and looks at up to lru_crawler_tocrawl items of each queue.
# classes: slab class ids separated by commas, or "all".
cdef crawler_result_type lru_crawler_crawl(store *s, const char *classes, size_t length) noexcept nogil
# Starts a dump of the classes, or of "hash": a walk of the hash table, which disturbs the LRU less. Copies *client.
cdef crawler_result_type lru_crawler_dump(store *s, const char *classes, size_t length,
                                          const crawler_client *client) noexcept nogil

# --- statistics ---
# The figures of `stats`: sums over all queues. The counters of each queue are of one moment. An item on its way to
# another queue counts once.
cdef void store_get_stats(store *s, store_stats *out) noexcept nogil
# Clears the counters, for `stats reset`; sizes and current amounts stay.
cdef void store_reset_stats(store *s) noexcept nogil
# The id of the class with the largest chunks; the classes are 1 to this id.
cdef unsigned int store_largest_class(store *s) noexcept nogil
# The statistics of a class. False: no class has this id.
cdef bint store_get_class_stats(store *s, unsigned int clsid, class_stats *out) noexcept nogil
# The class of an item of so many bytes (ITEM_ntotal); 0: larger than the item size limit.
cdef unsigned int store_class_of(store *s, size_t ntotal) noexcept nogil
# Linked items by size, for `stats sizes`: bucket b counts items of more than SIZES_GRANULARITY * (b - 1) and at most
# SIZES_GRANULARITY * b bytes. store_sizes_buckets is the number of buckets: 0 unless config.track_sizes is set.
cdef uint32_t store_sizes_buckets(store *s) noexcept nogil
cdef uint32_t store_sizes(store *s, uint32_t bucket) noexcept nogil
# The lines of `stats cachedump`, END included, malloc'd; NULL: no memory. limit 0: as many as fit into 2 MB.
cdef char *store_cachedump(store *s, unsigned int clsid, uint32_t limit, size_t *length) noexcept nogil

# --- the parts, internal to the store; from the lowest to the highest, see layout.pxd ---
include "hash.pxd"
include "threads.pxd"
include "tell.pxd"
include "memory_file.pxd"
include "clock.pxd"
include "foreign.pxd"
include "arena.pxd"
include "huge.pxd"
include "reserve.pxd"
include "slabs.pxd"
include "assoc.pxd"
include "direct.pxd"
include "ghost.pxd"
include "change.pxd"
include "link.pxd"
include "reassign.pxd"
include "lru.pxd"
include "data.pxd"
include "items.pxd"
include "commands.pxd"
include "headers.pxd"
include "crawler.pxd"
include "stats.pxd"
include "maintainer.pxd"
include "automove.pxd"
include "mover.pxd"
include "recover.pxd"
include "adopt.pxd"
include "cachedump.pxd"
include "life.pxd"
include "layout.pxd"
