"""Slab classes in one reserved arena. memcached: slabs.c.

The arena is cut into pages. At any time a page is in the list of one slab class, in the global pool (class 0), among
the released pages, or in transit between two of them. The bytes of a page without a class are all zero, so that a chunk
carved out of it has no flags before its owner sets some.

While the page mover empties a page, that page's chunks are never allocated: a chunk that is free, or becomes free, is
*taken* (do_move_take), and the page is empty when all of its chunks have been taken.
"""

cdef enum:
    PAGE_RELEASED = MAX_NUMBER_OF_SLAB_CLASSES      # page_class of a page that was given back to the system
    PAGE_IN_TRANSIT                                 # ... of one that is in no list
    NO_PAGE = 0xffffffff

cdef struct page_list:          # pages by number, linked by slabs.page_next. The slabs lock
    uint32_t head               # the oldest; NO_PAGE: none
    uint32_t tail
    uint32_t count

cdef struct slab_class:         # the slabs lock. Class 0 is the global pool: pages only
    uint32_t size               # bytes of a chunk. Constant, as is perslab
    uint32_t perslab            # chunks in a page
    page_list pages
    uint32_t carve_left         # chunks of one of the pages that were never used; their memory is untouched
    char *carve                 # that page
    item *slots                 # free chunks, linked by next and prev
    uint64_t sl_curr            # free chunks: slots and carve_left

cdef struct page_move:          # the page that is being emptied
    # Constant during a move. The mover alone sets them, with the slabs lock held, and reads them without the lock.
    char *page                  # NULL: none
    unsigned int src
    unsigned int dst
    uint32_t size               # bytes of a chunk
    uint32_t perslab
    # the slabs lock
    uint32_t taken_count        # chunks taken
    uint32_t given_back         # of these, the chunks that became free by themselves during the present pass
    uint8_t *taken              # by chunk; written with relaxed stores, as the mover reads it without the lock

cdef struct slabs:
    # constant
    unsigned int power_largest  # id of the class with the largest chunks
    uint32_t class_size[MAX_NUMBER_OF_SLAB_CLASSES]
    int memfd                   # store_config.direct: of the arena, else -1;
    int shared_fd               # ... the same for clients, who can only read by it
    char *mapping               # what mmap returned
    size_t mapping_length
    char *arena                 # in it, aligned to a huge page. Before it is room for an index and DIRECT_LIFE
    size_t arena_length         # a multiple of ARENA_EXTENT
    char pad_after_constants[CACHE_LINE]
    pthread_mutex_t lock        # the slabs lock, which guards all that follows
    slab_class classes[MAX_NUMBER_OF_SLAB_CLASSES]
    size_t arena_open           # bytes of the arena that can be accessed
    size_t arena_used           # bytes of the arena that were given out as pages; written with relaxed stores
    size_t file_length          # of memfd
    bint sealed                 # clients have memfd: what it has it keeps, and stays as long as it is
    uint64_t malloced           # what the pages of classes and pool count as in total_malloced
    page_list released          # pages given back to the system
    bint pinned                 # store_pin_memory. Pinned or sealed, no page is released: the pool has what is over
    uint8_t *page_class         # per page of the arena: the class it belongs to, PAGE_RELEASED, PAGE_IN_TRANSIT
    uint32_t *page_next         # per page of the arena: the next one of its list
    page_move move
    # atomic
    uint32_t *page_pins         # per page of the arena: chunks on it that clients look at; NULL without config.direct
    uint64_t pinned_pages       # pages that have such

# Computes the chunk sizes and reserves the arena. False: there is no address space for it.
cdef bint slabs_init(store *s) noexcept nogil
cdef void slabs_destroy(store *s) noexcept nogil
# Takes all memory of the limit and gives each class a page. False: the limit is too small for that, or the system has
# less memory.
cdef bint slabs_preallocate(store *s) noexcept nogil

# --- chunks ---
# The class for an item or chunk of size bytes: the largest class for what needs several chunks; 0: no item has that
# size.
cdef unsigned int slabs_clsid(store *s, size_t size) noexcept nogil
# A free chunk of the class, with one reference and no flags, or NULL. new_page: the class may take a page for it.
cdef item *slabs_alloc(store *s, unsigned int clsid, bint new_page) noexcept nogil
# Frees an item's memory: its chunk, or its head and all chunks of the chain.
cdef void slabs_free(store *s, item *it) noexcept nogil
# Frees one chunk. The slabs lock is held here and in the next two.
cdef void do_slabs_push(store *s, item *it, unsigned int clsid) noexcept nogil
cdef void do_slabs_unlink_free_chunk(store *s, item *it, unsigned int clsid) noexcept nogil
# Takes a chunk of the page that is being emptied. Nobody uses it any more.
cdef void do_move_take(store *s, item *chunk) noexcept nogil
# Whether a chunk lies on the page that is being emptied. The slabs lock is held, or the mover asks.
cdef bint on_moving_page(store *s, void *chunk) noexcept nogil
cdef uint32_t move_chunk_index(store *s, void *chunk) noexcept nogil

# --- pages ---
cdef char *page_address(store *s, uint32_t page) noexcept nogil
# Whether a client looks at something on the page: it cannot be emptied.
cdef bint page_is_pinned(store *s, uint32_t page) noexcept nogil
# Appends a page to a list, and takes the oldest page from a list that is not empty. The slabs lock is held.
cdef void do_page_append(store *s, page_list *pages, uint32_t page) noexcept nogil
cdef uint32_t do_page_take(store *s, page_list *pages) noexcept nogil
# Gives pages of the pool back to the system while more memory is used than the limit allows.
cdef void slabs_release(store *s) noexcept nogil
# The number of pages in the pool. mem_limit_reached: whether all memory of the limit has been taken.
cdef unsigned int global_page_pool_size(store *s, bint *mem_limit_reached) noexcept nogil
