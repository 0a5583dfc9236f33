cdef enum:
    RECOVER_AHEAD = 16          # items whose bucket is prefetched together
    CHUNK_LEAST_DATA = 512      # bytes in each chunk of a chain but the last
    KNOWN_FLAGS = (ITEM_LINKED | ITEM_CAS | ITEM_FETCHED | ITEM_ACTIVE | ITEM_CHUNKED | ITEM_CFLAGS | ITEM_HDR
                   | ITEM_TOKEN_SENT | ITEM_STALE | ITEM_KEY_BINARY | ITEM_SEAL_ROOM | ITEM_FREQUENCY | ITEM_LEFT_OUT)

cdef struct recovery:
    item *ahead[RECOVER_AHEAD]  # items found, to be linked
    uint32_t hashes[RECOVER_AHEAD]
    unsigned int waiting        # in `ahead`
    item *chained               # heads of chained items, linked by h_next: linked after all pages have been seen
    uint64_t steps              # chunks looked at in chains
    uint64_t headers            # items with values in external storage
    uint8_t *has_chunks         # by page: there are chunks of chains
    item **queues[NUMBER_OF_QUEUES]     # by queue: RECOVER_BUCKETS lists by age, linked by next and prev; NULL: none


# --- pages ---

cdef void _forget_foreign(store *s) noexcept nogil:
    """Empties the entries for chunk sizes without pages."""
    cdef uint8_t used[HEAD_FOREIGN]
    cdef uint32_t page
    cdef unsigned int clsid
    cdef int i
    memset(used, 0, sizeof(used))
    for page in range(<uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)):
        clsid = s.slabs.page_class[page]
        if clsid >= PAGE_FOREIGN and clsid < PAGE_FOREIGN + HEAD_FOREIGN:
            used[clsid - PAGE_FOREIGN] = 1
    for i in range(HEAD_FOREIGN):
        if not used[i]:
            s.head.foreign[i] = 0


cdef unsigned int _foreign_class(store *s, uint32_t size) noexcept nogil:
    """The page class for foreign chunks of this size. PAGE_RELEASED: the file has pages of too many different sizes,
    and the page's items are lost.
    """
    cdef int i
    for i in range(HEAD_FOREIGN):
        if s.head.foreign[i] == size:
            return PAGE_FOREIGN + i
    for i in range(HEAD_FOREIGN):
        if s.head.foreign[i] == 0:
            store_release(&s.head.foreign[i], size)
            return PAGE_FOREIGN + i
    return PAGE_RELEASED


cdef inline bint _is_chunk_size(uint32_t size) noexcept nogil:
    return sizeof(item) < size <= SLAB_PAGE_SIZE and size % 8 == 0


cdef void _count_lost(store *s, uint32_t page, uint32_t size) noexcept nogil:
    """Counts the lost items of a page."""
    cdef uint32_t i
    for i in range(SLAB_PAGE_SIZE // size if _is_chunk_size(size) else 0):
        s.recovered.dropped += ((<item *>(page_address(s, page) + <size_t>i * size)).it_flags & ITEM_LINKED) != 0


cdef void recover_mark_foreign(store *s) noexcept nogil:
    cdef uint32_t page, size
    cdef unsigned int clsid, foreign
    _forget_foreign(s)
    for page in range(<uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)):
        clsid = s.slabs.page_class[page]
        if clsid == SLAB_GLOBAL_PAGE_POOL or clsid >= MAX_NUMBER_OF_SLAB_CLASSES:
            continue
        size = s.file.last.sizes[clsid]
        if size != s.slabs.class_size[clsid]:
            foreign = _foreign_class(s, size) if _is_chunk_size(size) else PAGE_RELEASED
            if foreign == PAGE_RELEASED:
                _count_lost(s, page, size)
            store_release(&s.slabs.page_class[page], <uint8_t>foreign)


cdef bint _recover_arena(store *s) noexcept nogil:
    """Makes the used part of the arena accessible, and known to devices."""
    assert_held(&s.slabs.lock)
    cdef size_t at = 0
    if not arena_open_to(s, s.slabs.arena_used) or not arena_lengthen(s, s.slabs.arena_used):
        return False
    while s.config.extent_added != NULL and at < s.slabs.arena_used:
        s.config.extent_added(s.config.extent_arg, s.slabs.arena + at, ARENA_EXTENT)
        at += ARENA_EXTENT
    return True


cdef bint _recover_pages(store *s) noexcept nogil:
    """Puts each page into its list. Gives the memory of pages without a class back: its bytes must be zero."""
    cdef uint32_t page
    cdef unsigned int clsid
    cdef bint done
    cdef bint watched = memory_file_is_watched(s)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    done = _recover_arena(s)
    for page in range(<uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)):
        clsid = s.slabs.page_class[page]
        if s.file.has_holes and page_chunk_size(s, page) != 0 and not page_reserve(s, page):
            done = False
        if SLAB_GLOBAL_PAGE_POOL < clsid <= s.slabs.power_largest:
            do_page_append(s, &s.slabs.classes[clsid].pages, page)
            s.slabs.malloced += page_bytes(s, clsid)
        elif clsid >= PAGE_FOREIGN and clsid < PAGE_FOREIGN + HEAD_FOREIGN \
                and _is_chunk_size(s.head.foreign[clsid - PAGE_FOREIGN]):
            s.foreign.pages += 1
            s.slabs.malloced += SLAB_PAGE_SIZE
        else:
            if watched or madvise(page_address(s, page), SLAB_PAGE_SIZE, MADV_REMOVE) != 0:
                memset(page_address(s, page), 0, SLAB_PAGE_SIZE)
            s.slabs.page_class[page] = PAGE_RELEASED
            do_page_append(s, &s.slabs.released, page)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return done and (s.foreign.pages == 0 or foreign_init(s))


cdef void _recover_free(store *s, void *chunk) noexcept nogil:
    """Makes a chunk free."""
    cdef item *it = <item *>chunk
    if is_foreign(s, chunk):
        relaxed_store(&it.it_flags, ITEM_SLABBED)
        return
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    do_slabs_push(s, it, s.slabs.page_class[<size_t>(<char *>chunk - s.slabs.arena) // SLAB_PAGE_SIZE])
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


# --- sound items ---

cdef bint _item_is_sound(item *it, uint32_t size) noexcept nogil:
    """Whether an item, or the head of a chained item, lies within its chunk and has only known flags."""
    cdef size_t data = <size_t>(ITEM_data(it) - <char *>it)
    if it.it_flags & ~KNOWN_FLAGS or not 1 <= it.nkey <= KEY_MAX_LENGTH or it.nbytes < 2 or data >= size:
        return False
    if it.it_flags & ITEM_HDR:
        return data + sizeof(item_hdr) <= size and not it.it_flags & (ITEM_CHUNKED | ITEM_SEAL_ROOM)
    if it.it_flags & ITEM_CHUNKED:
        return <size_t>(<char *>ITEM_schunk(it) - <char *>it) + sizeof(item_chunk) <= size \
            and not it.it_flags & ITEM_SEAL_ROOM
    if data + <size_t>it.nbytes > size \
            or (it.it_flags & ITEM_SEAL_ROOM and direct_seal_at(<direct_item *>it) + sizeof(uint64_t) > size):
        return False
    return memcmp(ITEM_data(it) + it.nbytes - 2, b"\r\n", 2) == 0


cdef void *_at_home(store *s, const void *address) noexcept nogil:
    """Where a chunk lies now, by its address in this run or an earlier one. NULL: at no chunk's start."""
    cdef const head_run *run = head_present(s)
    cdef size_t at
    cdef uint32_t size
    cdef int i
    for i in range(HEAD_BASES):
        at = <size_t>address - <size_t>run.bases[i]
        if run.bases[i] != 0 and at < s.slabs.arena_used:
            size = page_chunk_size(s, <uint32_t>(at // SLAB_PAGE_SIZE))
            if size != 0 and at % SLAB_PAGE_SIZE % size == 0 and at % SLAB_PAGE_SIZE // size < SLAB_PAGE_SIZE // size:
                return s.slabs.arena + at
            return NULL
    return NULL


cdef bint _chain_is_sound(store *s, recovery *r, item *head, item *claimed_by) noexcept nogil:
    """Whether the chain of an item is whole, and its chunks are unclaimed, or claimed by the item `claimed_by`, which
    goes.
    """
    cdef item_chunk *ch = ITEM_schunk(head)
    cdef uint64_t found = 0
    cdef bint is_last = False
    cdef uint32_t room
    cdef char before_last = 0
    cdef char last = 0
    while found < <uint64_t>head.nbytes:
        ch = <item_chunk *>_at_home(s, ch.next)
        # Damaged chains that meet themselves have no more steps together than whole chains could have.
        if ch == NULL or is_last or r.steps > 2 * s.slabs.arena_used // CHUNK_LEAST_DATA \
                or ch.it_flags != ITEM_CHUNK or (ch.refcount != 0 and ch.head != claimed_by):
            return False
        room = page_chunk_size(s, <uint32_t>(<size_t>(<char *>ch - s.slabs.arena) // SLAB_PAGE_SIZE)) \
            - <uint32_t>sizeof(item_chunk)
        if not 0 < ch.used <= ch.size or <uint32_t>ch.size > room:
            return False
        found += ch.used
        is_last = ch.used != ch.size or ch.used < CHUNK_LEAST_DATA
        before_last = (<char *>(ch + 1))[ch.used - 2] if ch.used > 1 else last
        last = (<char *>(ch + 1))[ch.used - 1]
        r.steps += 1
    return found == <uint64_t>head.nbytes and before_last == c'\r' and last == c'\n'


cdef void _chain_disclaim(item *head) noexcept nogil:
    cdef item_chunk *ch = ITEM_schunk(head).next
    while ch != NULL and ch.refcount != 0:
        ch.refcount = 0
        ch = ch.next


cdef bint _chain_claim(store *s, item *head) noexcept nogil:
    """Gives the chunks of a sound chain to the head. False: the chain meets itself; its chunks are not claimed."""
    cdef item_chunk *before = ITEM_schunk(head)
    cdef item_chunk *ch
    cdef uint64_t found = 0
    before.prev = NULL
    before.head = head
    while found < <uint64_t>head.nbytes:
        ch = <item_chunk *>_at_home(s, before.next)
        before.next = ch
        if ch.refcount != 0:
            _chain_disclaim(head)
            return False
        ch.refcount = 1
        ch.prev = before
        ch.head = head
        found += ch.used
        if not is_foreign(s, ch):
            ch.slabs_clsid = s.slabs.page_class[<size_t>(<char *>ch - s.slabs.arena) // SLAB_PAGE_SIZE]
        before = ch
    before.next = NULL
    return True


# --- links ---

cdef inline uint32_t _age_bucket(uint32_t age) noexcept nogil:
    """The list for an age; a larger number is an older item."""
    cdef uint32_t octave = 0
    if age < RECOVER_RECENT:
        return age
    while age >> octave >= 2 * RECOVER_RECENT:
        octave += 1
    return RECOVER_RECENT + octave * RECOVER_STEPS \
        + ((age >> octave) - RECOVER_RECENT) * RECOVER_STEPS // RECOVER_RECENT


cdef inline unsigned int _queue_now(store *s, const item *it, unsigned int clsid) noexcept nogil:
    """The queue of an item under this run's algorithm."""
    cdef unsigned int lru = ITEM_lruid(it)
    if lru == TEMP_LRU:
        return clsid | (TEMP_LRU if s.config.temp_lru else COLD_LRU)
    if s.config.s3fifo:
        return clsid | (HOT_LRU if lru == HOT_LRU else COLD_LRU)
    return clsid | (lru if s.config.lru_segmented else COLD_LRU)


cdef bint _recover_enqueue(store *s, recovery *r, item *it) noexcept nogil:
    """Puts the item into the list of its queue and age. False: no memory."""
    cdef item **lists = r.queues[it.slabs_clsid]
    cdef item **first
    if lists == NULL:
        lists = r.queues[it.slabs_clsid] = <item **>calloc(RECOVER_BUCKETS, sizeof(item *))
        if lists == NULL:
            return False
    first = &lists[_age_bucket(store_time(s) - it.time)]
    it.prev = NULL
    it.next = first[0]
    if it.next != NULL:
        it.next.prev = it
    first[0] = it
    return True


cdef void _recover_unlink(store *s, recovery *r, item *it, uint32_t hv) noexcept nogil:
    """Takes a linked item out: an item found later gets the key."""
    cdef item **lists = r.queues[it.slabs_clsid]
    if it.prev != NULL:
        it.prev.next = it.next
    else:
        lists[_age_bucket(store_time(s) - it.time)] = it.next
    if it.next != NULL:
        it.next.prev = it.prev
    change_unlink(s, it, hv)
    do_count_unlinked(s, it, hv)
    if it.it_flags & ITEM_CHUNKED:
        _chain_disclaim(it)
    _recover_free(s, it)
    s.recovered.items -= 1
    s.recovered.dropped += 1


cdef inline bint _is_newer(item *it, item *other) noexcept nogil:
    """Whether an item takes the place of another item with its key. A move to or from external storage keeps the CAS
    value, and a value in memory needs nothing else.
    """
    if ITEM_get_cas(it) == ITEM_get_cas(other):
        return other.it_flags & ~it.it_flags & ITEM_HDR
    return ITEM_get_cas(it) > ITEM_get_cas(other)


cdef bint _recover_link(store *s, recovery *r, item *it, uint32_t hv) noexcept nogil:
    """Links a sound item, or frees it. False: no memory."""
    cdef item *other
    cdef bint sound = True
    cdef bint done = True
    item_lock(s, hv)
    other = assoc_find(s, ITEM_key(it), it.nkey, hv)
    if other != NULL and not _is_newer(it, other):
        sound = False
    elif it.it_flags & ITEM_HDR:
        r.headers += 1
        sound = s.config.external != NULL and s.config.external.restore(s.config.external.arg, it)
    elif it.it_flags & ITEM_CHUNKED:
        sound = _chain_is_sound(s, r, it, other)
    if sound and other != NULL:
        _recover_unlink(s, r, other, hv)
    if sound and it.it_flags & ITEM_CHUNKED:
        sound = _chain_claim(s, it)
    if sound:
        change_restore(s, it, hv)
        do_count_linked(s, it, hv)
        s.recovered.items += 1
        done = _recover_enqueue(s, r, it)
    else:
        _recover_free(s, it)
        s.recovered.dropped += 1
    item_unlock(s, hv)
    return done


cdef bint _recover_ahead(store *s, recovery *r) noexcept nogil:
    """Links the items found."""
    cdef unsigned int i
    for i in range(r.waiting):
        r.hashes[i] = store_hash(ITEM_key(r.ahead[i]), r.ahead[i].nkey)
        prefetch(&s.assoc.primary_hashtable[r.hashes[i] & s.assoc.hash_mask])
    for i in range(r.waiting):
        prefetch(<const char *>s.assoc.primary_hashtable[r.hashes[i] & s.assoc.hash_mask])
    for i in range(r.waiting):
        if not _recover_link(s, r, r.ahead[i], r.hashes[i]):
            return False
    r.waiting = 0
    return True


# --- the passes ---

cdef bint _recover_item(store *s, recovery *r, item *it, uint32_t page) noexcept nogil:
    """Looks at an item with ITEM_LINKED. False: no memory."""
    cdef rel_time_t now = store_time(s)
    cdef unsigned int clsid = s.slabs.page_class[page]
    cdef size_t room
    if not _item_is_sound(it, page_chunk_size(s, page)) or not _item_fits(s, it):
        _recover_free(s, it)
        s.recovered.dropped += 1
        return True
    if it.time > now:
        it.time = now
    if item_is_expired(s, it):
        _recover_free(s, it)
        s.recovered.expired += 1
        return True
    relaxed_store(&it.it_flags, it.it_flags & ~(ITEM_LEFT_OUT | (0 if s.config.s3fifo else ITEM_FREQUENCY)))
    if it.it_flags & ITEM_CHUNKED:
        ITEM_schunk(it).orig_clsid = <uint8_t>clsid
        clsid = s.slabs.power_largest
    elif clsid >= PAGE_FOREIGN:
        room = 0 if it.it_flags & ITEM_HDR else direct_seal_room(s, ITEM_size(it))
        clsid = slabs_clsid(s, ITEM_size(it) + room)
    it.slabs_clsid = _queue_now(s, it, clsid)
    if it.it_flags & ITEM_CHUNKED:
        it.h_next = r.chained
        r.chained = it
        return True
    r.ahead[r.waiting] = it
    r.waiting += 1
    return r.waiting < RECOVER_AHEAD or _recover_ahead(s, r)


cdef inline bint _item_fits(store *s, item *it) noexcept nogil:
    """Whether the item is within this run's item size limit."""
    return ITEM_ntotal(it) <= s.config.item_size_max


cdef bint _recover_page(store *s, recovery *r, uint32_t page) noexcept nogil:
    """The first pass: links unchained items, collects the chained items, and frees unused chunks. False: no memory."""
    cdef uint32_t size = page_chunk_size(s, page)
    cdef item *chunk
    cdef uint32_t i
    for i in range(SLAB_PAGE_SIZE // size if size else 0):
        chunk = <item *>(page_address(s, page) + <size_t>i * size)
        prefetch(<char *>chunk + 4 * size)
        if chunk.it_flags & ITEM_LINKED:
            if not _recover_item(s, r, chunk, page):
                return False
        elif chunk.it_flags == ITEM_CHUNK:
            chunk.refcount = 0
            r.has_chunks[page] = 1
        else:
            _recover_free(s, chunk)
    return True


cdef bint _recover_chained(store *s, recovery *r) noexcept nogil:
    """The second pass: links the chained items, then frees chunks without an item."""
    cdef item *it = r.chained
    cdef item *after
    cdef item *chunk
    cdef uint32_t page, i, size
    while it != NULL:
        after = it.h_next
        if not _recover_link(s, r, it, store_hash(ITEM_key(it), it.nkey)):
            return False
        it = after
    for page in range(<uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)):
        if not r.has_chunks[page]:
            continue
        size = page_chunk_size(s, page)
        for i in range(SLAB_PAGE_SIZE // size):
            chunk = <item *>(page_address(s, page) + <size_t>i * size)
            if chunk.it_flags == ITEM_CHUNK and chunk.refcount == 0:
                _recover_free(s, chunk)
    return True


cdef void _recover_queues(store *s, recovery *r) noexcept nogil:
    """Moves the items from the lists into the queues, the oldest first."""
    cdef lru_queue *q
    cdef item *it
    cdef item *after
    cdef int i, bucket
    for i in range(NUMBER_OF_QUEUES):
        if r.queues[i] == NULL:
            continue
        q = &s.queues[i]
        lock_ranked(&q.lock, LRU_LOCK)
        for bucket in range(RECOVER_BUCKETS - 1, -1, -1):
            it = r.queues[i][bucket]
            while it != NULL:
                after = it.next
                do_item_link_q(s, q, it)
                it = after
        unlock_ranked(&q.lock, LRU_LOCK)


cdef void _count_live(store *s) noexcept nogil:
    """Counts the chunks in use on foreign pages, after all items have been linked."""
    cdef uint32_t page, i, size
    cdef item *chunk
    for page in range(<uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE) if s.foreign.pages else 0):
        size = page_chunk_size(s, page) if is_foreign_page(s, page) else 0
        for i in range(SLAB_PAGE_SIZE // size if size else 0):
            chunk = <item *>(page_address(s, page) + <size_t>i * size)
            s.foreign.live[page] += not chunk.it_flags & ITEM_SLABBED


cdef bint _recover_items(store *s, recovery *r) noexcept nogil:
    cdef uint32_t page
    cdef uint32_t pages = <uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)
    r.has_chunks = <uint8_t *>calloc(pages + 1, 1)
    if r.has_chunks == NULL or not _recover_pages(s):
        return False
    for page in range(pages):
        if not _recover_page(s, r, page):
            return False
    if not _recover_ahead(s, r) or not _recover_chained(s, r):
        return False
    _recover_queues(s, r)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    page = 0
    while page < pages:
        do_join_pages(s, page_address(s, page))
        page += HUGE_PAGE // SLAB_PAGE_SIZE
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    _count_live(s)
    memory_file_forget_bases(s)
    return True


cdef bint recover(store *s) noexcept nogil:
    cdef recovery r
    cdef int64_t began = now_ns()
    cdef bint done
    cdef int i
    memset(&r, 0, sizeof(r))
    done = _recover_items(s, &r)
    for i in range(NUMBER_OF_QUEUES):
        free(r.queues[i])
    free(r.has_chunks)
    if s.config.external == NULL:
        memory_file_note_headers(s, r.headers)
    s.recovered.ns = now_ns() - began
    return done
