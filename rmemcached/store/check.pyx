"""Walks hash table, LRU queues and slab classes, and compares them with each other and with the counts."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from rmemcached.direct cimport (
    DIRECT_SLOTS, direct_bucket, direct_bucket_of, direct_chunks, direct_class, direct_has_seal, direct_item,
    direct_next, direct_place, direct_seal, direct_seal_at, direct_slot,
)
from rmemcached.store.store cimport (
    BUMP_LOCK, ITEM_CHUNK, ITEM_CHUNKED, ITEM_LINKED, ITEM_LOCK, ITEM_SEAL_ROOM, ITEM_SLABBED, ITEM_STALE,
    ITEM_TOKEN_SENT, LRU_LOCK, MAX_NUMBER_OF_SLAB_CLASSES, NO_PAGE, NUMBER_OF_QUEUES, PAGE_FOREIGN, PAGE_IN_TRANSIT,
    PAGE_RELEASED, SLABS_LOCK, SLAB_PAGE_SIZE, ITEM_chunk_clsid, ITEM_clsid, ITEM_has, ITEM_key, ITEM_size, ITEM_schunk,
    assoc_find, count_items, is_foreign, item, item_chunk, lru_maintainer_bumps, lru_queue, move_chunk_index,
    on_moving_page, page_list, slab_class, store_hash,
)
from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.debug cimport assert_held, lock_next_ranked, lock_ranked, unlock_ranked


cdef struct found:              # the contents of the hash table
    uint64_t items
    uint64_t nbytes
    uint64_t used[MAX_NUMBER_OF_SLAB_CLASSES]   # chunks of the items, by slab class


cdef inline void _count_chunk(store *s, void *chunk, unsigned int clsid, found *f) noexcept nogil:
    """Counts a chunk in use; no class has the chunks of foreign pages."""
    if not is_foreign(s, chunk):
        f.used[clsid] += 1


cdef const char *_check_chain(store *s, item *it, found *f) noexcept nogil:
    """Checks the chunks of a chained item."""
    cdef item_chunk *ch = ITEM_schunk(it)
    cdef size_t total = 0
    _count_chunk(s, it, ch.orig_clsid, f)
    ch = ch.next
    while ch != NULL:
        if ch.head != it or ch.it_flags != ITEM_CHUNK or ch.used > ch.size or ch.prev.next != ch:
            return b"a chunk of a chained item is inconsistent"
        total += ch.used
        _count_chunk(s, ch, ch.slabs_clsid, f)
        ch = ch.next
    if total != <size_t>it.nbytes:
        return b"the chunks of a chained item do not add up to its length"
    return NULL


cdef const char *_check_bucket(store *s, item *it, uint64_t mask, uint64_t bucket, bint at_rest,
                               found *f) noexcept nogil:
    """Checks the items of a bucket, from `it` on."""
    cdef const char *error
    cdef uint32_t hv
    cdef uint16_t refcount
    while it != NULL:
        hv = store_hash(ITEM_key(it), it.nkey)
        if hv & mask != bucket or assoc_find(s, ITEM_key(it), it.nkey, hv) != it:
            return b"an item in the hash table is not found by its key"
        if it.it_flags & ITEM_LINKED == 0 or it.it_flags & (ITEM_SLABBED | ITEM_CHUNK):
            return b"an item in the hash table has wrong flags"
        refcount = <uint16_t>relaxed_load(&it.refcount)
        if refcount == 0 or (at_rest and refcount != 1):
            return b"an item in the hash table has a wrong reference count"
        f.items += 1
        f.nbytes += ITEM_size(it)
        if it.it_flags & ITEM_CHUNKED:
            error = _check_chain(s, it, f)
            if error != NULL:
                return error
        else:
            _count_chunk(s, it, ITEM_clsid(it), f)
        it = it.h_next
    return NULL


cdef const char *_check_hash(store *s, bint at_rest, found *f) noexcept nogil:
    """Checks every bucket of the table, and of the old table while the table grows."""
    cdef const char *error = NULL
    cdef uint64_t bucket
    for bucket in range(s.assoc.hash_mask + 1):
        if error == NULL:
            error = _check_bucket(s, s.assoc.primary_hashtable[bucket], s.assoc.hash_mask, bucket, at_rest, f)
    if s.assoc.expanding:
        for bucket in range(s.assoc.old_hash_mask + 1):
            if error == NULL:
                error = _check_bucket(s, s.assoc.old_hashtable[bucket], s.assoc.old_hash_mask, bucket, at_rest, f)
    return error


cdef bint _seal_holds(store *s, item *it) noexcept nogil:
    cdef uint64_t *seal = <uint64_t *>(<char *>it + direct_seal_at(<direct_item *>it))
    cdef uint64_t place = <uint64_t>(<char *>it - <char *>s.direct.header)
    # The item with its seal must fit into a READ of its chunk.
    if <size_t>(<char *>(seal + 1) - <char *>it) > s.direct.header.chunks.sizes[ITEM_clsid(it)]:
        return False
    if it.it_flags & (ITEM_STALE | ITEM_TOKEN_SENT):
        return seal[0] == 0
    return seal[0] == direct_seal(&s.direct.header.hash, place, <direct_item *>it)


cdef const char *_check_direct(store *s) noexcept nogil:
    """Checks the index for direct reads: it has linked items only, each in the bucket of its hash."""
    cdef const direct_bucket *b
    cdef const direct_chunks *chunks
    cdef uint64_t slot
    cdef item *it
    cdef uint64_t bucket
    cdef uint64_t items = 0
    cdef uint64_t counted = 0
    cdef uint32_t hv
    cdef int i
    if s.direct.header == NULL:
        return NULL
    chunks = &s.direct.header.chunks
    for bucket in range(s.direct.header.buckets):
        b = &s.direct.buckets[bucket]
        if b.version & 1:
            return b"a bucket of the index is being changed"
        for i in range(DIRECT_SLOTS):
            slot = direct_slot(b, i)
            if slot == 0:
                continue
            it = <item *>(<char *>s.direct.header + direct_place(chunks, slot))
            hv = store_hash(ITEM_key(it), it.nkey)
            if assoc_find(s, ITEM_key(it), it.nkey, hv) != it:
                return b"the index has an item that the hash table has not"
            if direct_bucket_of(hv, s.direct.header.buckets) != bucket \
                    or direct_next(chunks, b, hv, i) != i or direct_class(chunks, slot) != ITEM_chunk_clsid(it):
                return b"an item is in the wrong bucket of the index, or in a wrong slot"
            if direct_has_seal(chunks, slot) != ITEM_has(it, ITEM_SEAL_ROOM) \
                    or (direct_has_seal(chunks, slot) and not _seal_holds(s, it)):
                return b"an item does not verify itself"
            items += 1
    for hv in range(s.assoc.item_lock_mask + 1):
        counted += s.assoc.item_locks[hv].indexed
    if items != counted:
        return b"the index does not agree with its count"
    return NULL


cdef const char *_check_lru(store *s, uint64_t *items, uint64_t *nbytes) noexcept nogil:
    cdef int i
    cdef lru_queue *q
    cdef item *it
    cdef item *newer
    cdef uint64_t count, total
    cdef bint crawl_found
    for i in range(NUMBER_OF_QUEUES):
        q = &s.queues[i]
        count = total = 0
        newer = NULL
        crawl_found = q.crawl == NULL
        it = q.head
        while it != NULL and count <= q.size:
            if it.prev != newer or it.slabs_clsid != i or it.it_flags & ITEM_LINKED == 0:
                return b"an item in an LRU list is inconsistent"
            if assoc_find(s, ITEM_key(it), it.nkey, store_hash(ITEM_key(it), it.nkey)) != it:
                return b"an item in an LRU list is not in the hash table"
            count += 1
            total += ITEM_size(it)
            crawl_found = crawl_found or q.crawl == it
            newer = it
            it = it.next
        if q.tail != newer or count != q.size or total != q.bytes:
            return b"an LRU list does not agree with its totals"
        if not crawl_found:
            return b"the crawler is not in the LRU list that it crawls"
        items[0] += count
        nbytes[0] += total
    return NULL


cdef const char *_check_pages(store *s) noexcept nogil:
    """Checks that every used page of the arena is in the list named by page_class."""
    cdef uint8_t clsid
    cdef page_list *pages
    cdef uint32_t page, last, count
    cdef uint32_t total = 0
    cdef uint32_t used = <uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)
    for page in range(used):
        total += s.slabs.page_class[page] == PAGE_IN_TRANSIT or s.slabs.page_class[page] >= PAGE_FOREIGN
    for clsid in range(PAGE_RELEASED + 1):
        pages = &s.slabs.released if clsid == PAGE_RELEASED else &s.slabs.classes[clsid].pages
        if clsid != PAGE_RELEASED and clsid > s.slabs.power_largest:
            continue
        count = 0
        last = NO_PAGE
        page = pages.head
        while page != NO_PAGE and count <= pages.count:
            if page >= used or s.slabs.page_class[page] != clsid:
                return b"a list of slab pages has one that is not its own"
            count += 1
            last = page
            page = s.slabs.page_next[page]
        if count != pages.count or last != pages.tail:
            return b"a list of slab pages does not agree with its length"
        total += count
    if total != used:
        return b"a slab page is in no list"
    return NULL


cdef const char *_check_class(store *s, unsigned int clsid, uint64_t used, bint at_rest) noexcept nogil:
    """Checks the free list of a class, and the sum of its chunks: used, free, or taken by the page mover."""
    cdef slab_class *p = &s.slabs.classes[clsid]
    cdef item *it = p.slots
    cdef item *before = NULL
    cdef uint64_t count = p.carve_left
    cdef uint64_t taken = 0
    cdef size_t offset
    while it != NULL and count <= p.sl_curr:
        offset = <size_t>(<char *>it - s.slabs.arena)
        if offset >= s.slabs.arena_used or s.slabs.page_class[offset // SLAB_PAGE_SIZE] != clsid \
                or offset % SLAB_PAGE_SIZE % p.size != 0:
            return b"a free chunk lies outside of its slab class"
        if it.it_flags != ITEM_SLABBED or it.slabs_clsid != clsid or it.prev != before:
            return b"a free chunk is inconsistent"
        if on_moving_page(s, it) and s.slabs.move.taken[move_chunk_index(s, it)]:
            return b"a chunk that the page mover has taken is on a free list"
        count += 1
        before = it
        it = it.next
    if count != p.sl_curr:
        return b"a slab class does not agree with its free list"
    if s.slabs.move.page != NULL and s.slabs.move.src == clsid:
        for offset in range(s.slabs.move.perslab):
            taken += s.slabs.move.taken[offset]
        if taken != s.slabs.move.taken_count:
            return b"the page mover does not agree with the chunks it has taken"
    count = <uint64_t>p.pages.count * p.perslab - p.sl_curr - taken
    if used > count or (at_rest and used != count):
        return b"the used chunks of a slab class do not agree with the items"
    return NULL


cdef const char *_check_slabs(store *s, bint at_rest, const uint64_t *used) noexcept nogil:
    cdef unsigned int clsid
    cdef const char *error = _check_pages(s)
    for clsid in range(1, s.slabs.power_largest + 1):
        if error == NULL:
            error = _check_class(s, clsid, used[clsid], at_rest)
    return error


cdef const char *_check(store *s, bint at_rest) noexcept nogil:
    """store_check with all item locks, LRU locks and the slabs lock held."""
    assert_held(&s.slabs.lock)
    cdef const char *error
    cdef found f
    cdef uint64_t lru_items = 0
    cdef uint64_t lru_nbytes = 0
    cdef uint64_t counted_items, counted_nbytes
    memset(&f, 0, sizeof(f))
    count_items(s, &counted_items, &counted_nbytes)
    error = _check_hash(s, at_rest, &f)
    if error == NULL:
        error = _check_direct(s)
    if error == NULL:
        error = _check_lru(s, &lru_items, &lru_nbytes)
    if error == NULL and (f.items != lru_items or f.nbytes != lru_nbytes):
        error = b"the hash table and the LRU lists do not hold the same items"
    if error == NULL and (f.items != counted_items or f.nbytes != counted_nbytes):
        error = b"the counts of items and bytes are not what the hash table holds"
    if error == NULL:
        error = _check_slabs(s, at_rest, f.used)
    return error


cdef const char *store_check(store *s, bint at_rest) noexcept nogil:
    cdef const char *error
    cdef uint32_t lock
    cdef int i
    if at_rest and s.lru.bump_bufs != NULL:
        # Moves waiting for the maintainer hold references, so make the moves first.
        lock_ranked(&s.lru.bump_lock, BUMP_LOCK)
        lru_maintainer_bumps(s)
        unlock_ranked(&s.lru.bump_lock, BUMP_LOCK)
    for lock in range(s.assoc.item_lock_mask + 1):
        lock_next_ranked(&s.assoc.item_locks[lock].lock, ITEM_LOCK)
    for i in range(NUMBER_OF_QUEUES):
        lock_next_ranked(&s.queues[i].lock, LRU_LOCK)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    error = _check(s, at_rest)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    for i in range(NUMBER_OF_QUEUES):
        unlock_ranked(&s.queues[i].lock, LRU_LOCK)
    for lock in range(s.assoc.item_lock_mask + 1):
        unlock_ranked(&s.assoc.item_locks[lock].lock, ITEM_LOCK)
    return error
