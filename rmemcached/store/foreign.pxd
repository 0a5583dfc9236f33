"""Foreign pages: pages of a memory file with other chunk sizes than the classes have now (-f, -n, -I or slab_sizes have
changed). Their items stay where they are, and are found and evicted as others. But nobody allocates their chunks, and
the index of direct reads has no names for them. recover.pxd finds such pages, adopt.pxd empties them.

A freed chunk of a foreign page keeps its bytes, so its key can be read without a lock.
"""

cdef struct foreign_pages:
    uint32_t pages              # written with the slabs lock held; only the thread of adopt.pxd takes pages off
    uint16_t *live              # by page of the arena: chunks in use, if the page is foreign. The slabs lock
    uint32_t owner              # the thread's thread_id(); written by the thread before its first allocation

# Makes the counts, for recover. False: no memory.
cdef bint foreign_init(store *s) noexcept nogil
# Frees the counts, for store_destroy.
cdef void foreign_destroy(store *s) noexcept nogil
# Bytes of a chunk of a page, by the page's class; 0: the page has no chunks.
cdef uint32_t page_chunk_size(store *s, uint32_t page) noexcept nogil
cdef bint is_foreign_page(store *s, uint32_t page) noexcept nogil
# Whether a chunk lies on a foreign page.
cdef bint is_foreign(store *s, const void *chunk) noexcept nogil
# Bytes by which the classes may exceed the memory limit: an item evicted from a foreign page makes no room for others.
cdef uint64_t foreign_room(store *s) noexcept nogil
# Waits a moment for an emptied page, for an allocation without memory. waits: its waits so far. False: there are no
# foreign pages, or the allocation has waited long enough.
cdef bint foreign_wait(store *s, unsigned int *waits) noexcept nogil
# Notes that a chunk of a foreign page is no longer in use. The caller holds the slabs lock.
cdef void do_foreign_free(store *s, item *chunk) noexcept nogil
