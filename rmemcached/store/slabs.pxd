"""Slab classes in one reserved arena. memcached: slabs.c.

The arena is cut into pages. At any time a page is in the list of a slab class, in the global pool (class 0), among the
released pages, or in transit between two lists. The bytes of a page without a class are all zero, so a chunk carved out
of the page has no flags before its owner sets some.

While the page mover empties a page, nobody allocates the page's chunks: a free chunk, or a chunk freed meanwhile, is
*taken* (do_move_take). The page is empty when all its chunks are taken.

store.pxd declares item_pin, item_unpin, store_pin_memory and store_set_memory_limit.
"""

cdef enum:
    PAGE_RELEASED = MAX_NUMBER_OF_SLAB_CLASSES      # page_class of a page given back to the system
    PAGE_IN_TRANSIT                                 # ... of a page in no list
    PAGE_FOREIGN = 128                              # ... and more: of a page with other chunk sizes (foreign.pxd)
    NO_PAGE = 0xffffffff

cdef struct page_list:          # pages by number, linked by slabs.page_next. The slabs lock
    uint32_t head               # the oldest; NO_PAGE: none
    uint32_t tail
    uint32_t count

cdef struct slab_class:         # the slabs lock. Class 0 is the global pool: pages only
    uint32_t size               # bytes of a chunk. Constant, as is perslab
    uint32_t perslab            # chunks in a page
    page_list pages
    uint32_t carve_left         # never used chunks of the page `carve`; their bytes are all zero
    char *carve                 # NULL: no page yet
    item *slots                 # free chunks, linked by next and prev
    uint64_t sl_curr            # free chunks: slots and carve_left

cdef struct page_move:          # the page being emptied
    # Constant during a move. The mover alone sets them, with the slabs lock held, and reads them without the lock.
    char *page                  # NULL: none
    unsigned int src
    unsigned int dst
    uint32_t size               # bytes of a chunk
    uint32_t perslab
    # the slabs lock
    uint32_t taken_count        # chunks taken
    uint32_t given_back         # of these, the chunks freed by their users during the present pass
    uint8_t *taken              # by chunk; written with relaxed stores, as the mover reads without the lock

cdef struct slabs:
    # constant
    unsigned int power_largest  # id of the class with the largest chunks
    uint32_t class_size[MAX_NUMBER_OF_SLAB_CLASSES]
    int memfd                   # of the arena, with store_config.direct; the memory file, if there is one; else -1
    int shared_fd               # a read-only descriptor of the same file, for clients; else -1
    char *mapping               # the whole reserved range, from mmap
    size_t mapping_length
    char *arena                 # in mapping, aligned to a huge page, behind room for an index and the head
    size_t head_length          # bytes of the head, right before the arena: DIRECT_LIFE with store_config.direct
    size_t arena_length         # a multiple of ARENA_EXTENT
    char pad_after_constants[CACHE_LINE]
    pthread_mutex_t lock        # the slabs lock, for all fields below
    slab_class classes[MAX_NUMBER_OF_SLAB_CLASSES]
    size_t arena_open           # accessible bytes of the arena
    size_t arena_used           # bytes of the arena given out as pages; written with relaxed stores, also in the head
    size_t file_length          # of memfd
    bint sealed                 # arena_seal has readied memfd for clients: memfd keeps its pages and does not shrink
    uint64_t malloced           # total_malloced of the pages of classes and pool
    page_list released          # pages given back to the system
    bint pinned                 # by store_pin_memory. If pinned or sealed, the pool keeps all pages: none is released
    uint8_t *page_class         # per page of the arena: its class, PAGE_RELEASED, ...; lies in the head
    uint32_t *page_next         # per page of the arena: the next page of its list
    page_move move
    # atomic
    uint32_t *page_pins         # per page of the arena: pinned chunks on the page; NULL without config.direct
    uint64_t pinned_pages       # pages with pinned chunks

# Computes the chunk sizes and reserves the arena, for store_create. False: no address space, or no memory.
cdef bint slabs_init(store *s) noexcept nogil
# Gives all memory back, for store_destroy. Also after a failed slabs_init.
cdef void slabs_destroy(store *s) noexcept nogil
# Takes all memory of the limit and gives each class a page, for store_create (-L). False: the limit is too small, or
# the system has less memory.
cdef bint slabs_preallocate(store *s) noexcept nogil

# Takes all memory of the limit as pages of the pool, for store_create with external storage: its automove keeps a part
# of the pool free. The pages are not touched.
cdef void slabs_fill_pool(store *s) noexcept nogil

# --- chunks ---
# The class for an item or chunk of size bytes: the largest class, if size needs several chunks; 0: no item has this
# size.
cdef unsigned int slabs_clsid(store *s, size_t size) noexcept nogil
# Allocates a chunk of the class, with one reference and no flags, for item_alloc and the page mover. Evicts nothing.
# new_page: the class may take a page for the chunk. NULL: no chunk is free, and the class gets no page.
cdef item *slabs_alloc(store *s, unsigned int clsid, bint new_page) noexcept nogil
# Frees an item's memory when the last reference is gone: its chunk, or its head and all chunks of the chain.
cdef void slabs_free(store *s, item *it) noexcept nogil
# Frees a chunk: puts the chunk into the free list of its class or, on the page being emptied, takes the chunk
# (do_move_take) and counts it in given_back. The slabs lock is held in this function and in the next two.
cdef void do_slabs_push(store *s, item *it, unsigned int clsid) noexcept nogil
# Takes a free chunk out of the free list of its class, for the page mover.
cdef void do_slabs_unlink_free_chunk(store *s, item *it, unsigned int clsid) noexcept nogil
# Marks an unused chunk of the page being emptied as taken: nobody allocates the chunk during the move.
cdef void do_move_take(store *s, item *chunk) noexcept nogil
# Whether a chunk lies on the page being emptied. The caller has the slabs lock, or is the mover.
cdef bint on_moving_page(store *s, void *chunk) noexcept nogil
# The index in page_move.taken of a chunk on the page being emptied.
cdef uint32_t move_chunk_index(store *s, void *chunk) noexcept nogil

# --- pages ---
# How much a page of the class adds to total_malloced.
cdef uint64_t page_bytes(store *s, unsigned int clsid) noexcept nogil
# Takes space in the memory file for a page. The caller holds the slabs lock. False: the file system is full.
cdef bint page_reserve(store *s, uint32_t page) noexcept nogil
# Asks for a huge page around the slab page `last`, if all chunks of its slab pages have been used. The caller holds the
# slabs lock.
cdef void do_join_pages(store *s, char *last) noexcept nogil
cdef char *page_address(store *s, uint32_t page) noexcept nogil
# Whether a page has pinned chunks, and so cannot be emptied.
cdef bint page_is_pinned(store *s, uint32_t page) noexcept nogil
# Appends a page to a list. The caller holds the slabs lock.
cdef void do_page_append(store *s, page_list *pages, uint32_t page) noexcept nogil
# Takes the oldest page out of a list that is not empty. The caller holds the slabs lock.
cdef uint32_t do_page_take(store *s, page_list *pages) noexcept nogil
# Gives pages of the pool back to the system while more memory is used than the limit allows, unless the memory is
# pinned or sealed. Called after a change of the limit, and by the mover after each move. Takes the slabs lock.
cdef void slabs_release(store *s) noexcept nogil
# The number of pages in the pool. mem_limit_reached: whether all memory of the limit has been taken. Takes the slabs
# lock.
cdef unsigned int global_page_pool_size(store *s, bint *mem_limit_reached) noexcept nogil
