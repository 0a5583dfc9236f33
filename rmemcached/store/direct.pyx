cdef enum:
    DIRECT_BYTES = 12           # bytes of the index for each item, when there are many items
    DIRECT_BUCKETS_LEAST = 4096
    DIRECT_SPLITS = 64          # splits in a call: some ten microseconds
    DIRECT_CHAINS = 64          # chains of the hash table looked through by a split, at most
    DIRECT_BUILD_AHEAD = 16     # chains prefetched together, then entered
    DIRECT_BUILD_NS = 50000     # how long the thread works before a rest: a request may wait so long


cdef extern from *:
    """
    /* a bit of a bucket's version: an item found no room since the bucket was split */
    #define RMC_DIRECT_CROWDED ((uint64_t)1 << 63)
    """
    const uint64_t DIRECT_CROWDED "RMC_DIRECT_CROWDED"


cdef inline uint64_t _direct_buckets_for(store *s, uint64_t items) noexcept nogil:
    """How many buckets an index for so many items begins with: no fewer than item locks."""
    cdef uint64_t buckets = max(<uint64_t>DIRECT_BUCKETS_LEAST, <uint64_t>s.assoc.item_lock_mask + 1)
    return min(max(buckets, items * DIRECT_BYTES // sizeof(direct_bucket)), direct_most(s.direct.covered))


cdef bint _direct_open(store *s, size_t top) noexcept nogil:
    """Makes header and index accessible up to top. False: the system refuses the memory."""
    assert_held(&s.direct.lock)
    cdef char *base = <char *>s.direct.mapped
    cdef size_t length
    if top <= s.direct.opened:
        return True
    length = (top - s.direct.opened + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
    if s.config.direct_remote:
        # A device allows few registrations, and keeps the memory of each: so each part is as long as all before it, up
        # to an extent.
        length = max(length, min(s.direct.opened, <size_t>ARENA_EXTENT))
        length = min(length, <size_t>(_direct_end_of_index(s) - base) - s.direct.opened)
    if mprotect(base + s.direct.opened, length, PROT_READ | PROT_WRITE) != 0:
        return False
    if s.config.direct_remote and s.config.index_added != NULL:
        s.config.index_added(s.config.extent_arg, base + s.direct.opened, length)
    s.direct.opened += length
    return True


cdef inline bint _direct_layout_holds() noexcept nogil:
    """Whether items and chunks have the same layout in direct.pxd and in store.pxd."""
    cdef item it
    cdef direct_item read
    cdef item_chunk ch
    cdef direct_chunk piece
    cdef size_t of_item = <size_t>&it - <size_t>&read
    cdef size_t of_chunk = <size_t>&ch - <size_t>&piece
    return (sizeof(item) == sizeof(direct_item) and <size_t>&it.time - <size_t>&read.time == of_item
            and <size_t>&it.exptime - <size_t>&read.exptime == of_item
            and <size_t>&it.nbytes - <size_t>&read.nbytes == of_item
            and <size_t>&it.it_flags - <size_t>&read.it_flags == of_item
            and <size_t>&it.slabs_clsid - <size_t>&read.slabs_clsid == of_item
            and <size_t>&it.nkey - <size_t>&read.nkey == of_item
            and sizeof(item_chunk) == sizeof(direct_chunk) and <size_t>&ch.next - <size_t>&piece.next == of_chunk
            and <size_t>&ch.used - <size_t>&piece.used == of_chunk)


cdef bint _direct_set_chunks(store *s, direct_chunks *chunks, size_t before) noexcept nogil:
    """Describes where chunks are. False: there are too many for the bits of a slot."""
    cdef uint32_t least = SLAB_PAGE_SIZE
    cdef int clsid
    chunks.arena = before
    for clsid in range(MAX_NUMBER_OF_SLAB_CLASSES):
        chunks.sizes[clsid] = s.slabs.classes[clsid].size
        if chunks.sizes[clsid]:
            least = min(least, chunks.sizes[clsid])
    while SLAB_PAGE_SIZE // least > <uint32_t>1 << chunks.chunk_bits:
        chunks.chunk_bits += 1
    chunks.place_bits = chunks.chunk_bits
    while s.direct.covered // SLAB_PAGE_SIZE > <size_t>1 << (chunks.place_bits - chunks.chunk_bits):
        chunks.place_bits += 1
    return chunks.place_bits <= DIRECT_PLACE_MOST


cdef inline char *_direct_end_of_index(store *s) noexcept nogil:
    """The address where the index's memory ends, and the file of the arena begins with the mutex."""
    return s.slabs.arena - DIRECT_LIFE


cdef void _direct_unmap(char *base, size_t length) noexcept nogil:
    """Gives the memory back; the addresses stay reserved."""
    mmap(base, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)


cdef bint _direct_share(store *s, size_t length) noexcept nogil:
    """Maps a memfd before the arena. Only this mapping can change the file."""
    assert_held(&s.direct.lock)
    cdef char *base = _direct_end_of_index(s) - length
    cdef int fd = memfd_create(b"rmemcached index", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    if fd < 0:
        return False
    if ftruncate(fd, <long>length) != 0 \
            or mmap(base, length, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED \
            or fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0:
        close(fd)
        _direct_unmap(base, length)
        return False
    s.direct.fd = read_only(fd)
    s.direct.mapped = <direct_header *>base
    s.direct.opened = 0
    return True


cdef void _direct_close(store *s) noexcept nogil:
    # Gives the memory of an unpublished index back.
    assert_held(&s.direct.lock)
    assert_that(s.direct.header == NULL)
    close(s.direct.fd)
    _direct_unmap(<char *>s.direct.mapped, <size_t>(_direct_end_of_index(s) - <char *>s.direct.mapped))
    s.direct.mapped = NULL
    relaxed_store(&s.direct.bucket_count, 0)


cdef bint _direct_begin_life(store *s) noexcept nogil:
    """Makes and locks the mutex that tells clients whether the daemon lives. False: the system has no such mutexes, or
    no memory.
    """
    cdef pthread_mutex_t *life = <pthread_mutex_t *>head_life(s)
    cdef uint64_t word = 0
    if not lock_for_life(life):
        return False
    # Only the C library knows where a mutex has its owner: look for this thread's id.
    while word < sizeof(pthread_mutex_t) // 4 - 1 and (<uint32_t *>life)[word] != thread_id():
        word += 1
    s.direct.alive = <uint64_t>(<char *>life - _direct_end_of_index(s)) + word * 4
    s.direct.lives = True
    return True


cdef bint _direct_fill_header(store *s, size_t length) noexcept nogil:
    """Fills in the header of a new index. False: the arena has too many chunks, or there is no memory."""
    assert_held(&s.direct.lock)
    cdef direct_header *h = s.direct.mapped
    cdef uint64_t items, nbytes
    count_items(s, &items, &nbytes)
    relaxed_store_pointer(&s.direct.buckets, <char *>h + DIRECT_HEADER)
    relaxed_store(&s.direct.bucket_count, _direct_buckets_for(s, items))
    if not _direct_open(s, DIRECT_HEADER + s.direct.bucket_count * sizeof(direct_bucket)) \
            or not _direct_set_chunks(s, &h.chunks, length + DIRECT_LIFE):
        return False
    memcpy(h.magic, DIRECT_MAGIC, sizeof(h.magic))
    h.layout = DIRECT_VERSION
    h.sealed = s.config.direct_remote
    h.length = length + DIRECT_LIFE + s.direct.covered
    h.base = <uint64_t>h
    h.index = DIRECT_HEADER
    h.most = direct_most(s.direct.covered)
    h.hash = store_secrets
    h.alive = length + s.direct.alive
    h.buckets = s.direct.bucket_count
    return True


cdef void _direct_publish(store *s, direct_header *h) noexcept nogil:
    """From now on commands keep this index right; NULL: there is no index for commands any more."""
    assert_held(&s.direct.lock)
    cdef uint32_t i
    for i in range(s.assoc.item_lock_mask + 1):
        lock_next_ranked(&s.assoc.item_locks[i].lock, ITEM_LOCK)
    s.direct.header = h
    for i in range(s.assoc.item_lock_mask + 1):
        relaxed_store(&s.assoc.item_locks[i].indexed, 0)
        unlock_ranked(&s.assoc.item_locks[i].lock, ITEM_LOCK)


cdef bint _direct_create(store *s) noexcept nogil:
    """Makes an empty index, kept right from now on, and the thread to fill it. False: the system refuses."""
    assert_held(&s.direct.lock)
    cdef size_t length
    s.direct.covered = arena_seal(s)
    length = direct_bytes(s.direct.covered)
    if s.direct.covered == 0 or (length + DIRECT_LIFE + s.direct.covered) >> DIRECT_LENGTH_BITS:
        return False
    if s.direct.joinable:
        # The thread of the last index has nothing more to do, so this wait is short.
        pthread_join(s.direct.thread, NULL)
        s.direct.joinable = False
    if not _direct_share(s, length):
        return False
    if _direct_fill_header(s, length):
        do_direct_tell(s)
        _direct_publish(s, s.direct.mapped)
        relaxed_store(&s.direct.building, 1)
        s.direct.joinable = start_quiet_thread(&s.direct.thread, b"mc-direct", _direct_thread, s) == 0
        if s.direct.joinable:
            return True
        relaxed_store(&s.direct.building, 0)
        _direct_publish(s, NULL)
    _direct_close(s)
    return False


cdef bint direct_init(store *s) noexcept nogil:
    cdef bint made = True
    assert_that(_direct_layout_holds())
    assert_that(SLAB_PAGE_SIZE == 1 << DIRECT_PAGE_BITS)
    pthread_mutex_init(&s.direct.lock, NULL)
    cond_init(&s.direct.cond)
    if s.config.direct:
        made = (direct_bytes(s.config.maxbytes) + DIRECT_LIFE + s.config.maxbytes) >> DIRECT_LENGTH_BITS == 0 \
            and _direct_begin_life(s)
    if made and s.config.direct_remote:
        lock_ranked(&s.direct.lock, DIRECT_LOCK)
        made = _direct_create(s)
        unlock_ranked(&s.direct.lock, DIRECT_LOCK)
    return made


cdef void direct_stop(store *s) noexcept nogil:
    cdef bint joinable
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    joinable = s.direct.joinable
    s.direct.joinable = False
    pthread_cond_broadcast(&s.direct.cond)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)
    if joinable:
        pthread_join(s.direct.thread, NULL)


cdef void direct_destroy(store *s) noexcept nogil:
    cdef int error
    store_direct_end(s)
    if s.direct.lives:
        # If the mutex stayed locked, the kernel would write to its memory at the end of the locking thread, when the
        # memory is gone. Only the locking thread can unlock the mutex, so the caller must be this thread.
        error = pthread_mutex_unlock(<pthread_mutex_t *>head_life(s))
        assert_that(error == 0)
        pthread_mutex_destroy(<pthread_mutex_t *>head_life(s))
    if s.direct.mapped != NULL:
        close(s.direct.fd)
    pthread_cond_destroy(&s.direct.cond)
    pthread_mutex_destroy(&s.direct.lock)


# --- the thread ---

cdef void _direct_build_ahead(store *s, uint64_t number, uint64_t end) noexcept nogil:
    """Prefetches the next chains, like items_ahead."""
    cdef uint64_t one
    item_lock(s, <uint32_t>number)
    for one in range(number, end):
        prefetch(&s.assoc.primary_hashtable[one & s.assoc.hash_mask])
    for one in range(number, end):
        prefetch(<const char *>relaxed_load(&s.assoc.primary_hashtable[one & s.assoc.hash_mask]))
    item_unlock(s, <uint32_t>number)


cdef void _direct_build(store *s) noexcept nogil:
    """Enters the items stored before the index, a chain at a time. The thread rests as long as it works, so half of a
    processor is left to everybody else.
    """
    # While the table grows, `first` is the size of the old table. Otherwise each number stands for two chains.
    cdef uint64_t first = <uint64_t>1 << (relaxed_load(&s.assoc.hashpower) - 1)
    cdef uint64_t number = 0
    cdef uint64_t one, end
    cdef int64_t began = now_ns()
    cdef timespec pause = ns_timespec(DIRECT_BUILD_NS)
    while number < first and not relaxed_load(&s.stopping):
        end = min(number + DIRECT_BUILD_AHEAD, first)
        _direct_build_ahead(s, number, end)
        for one in range(number, end):
            item_lock(s, <uint32_t>one)
            _direct_enter_left_out(s, one, first)
            item_unlock(s, <uint32_t>one)
        if now_ns() - began > DIRECT_BUILD_NS:
            nanosleep(&pause, NULL)
            began = now_ns()
        number = end


cdef bint _direct_wait(store *s) noexcept nogil:
    """Waits for the end of the index. False: the store is stopping."""
    assert_held(&s.direct.lock)
    cdef timespec until
    cdef int64_t linger = <int64_t>s.config.direct_linger * 1000000000
    while not relaxed_load(&s.stopping):
        if s.direct.readers != 0 or s.config.direct_remote:
            pthread_cond_wait(&s.direct.cond, &s.direct.lock)
        elif now_ns() - s.direct.left_ns >= linger:
            return True
        else:
            until = ns_timespec(s.direct.left_ns + linger)
            pthread_cond_timedwait(&s.direct.cond, &s.direct.lock, &until)
    return False


cdef void *_direct_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    _direct_build(s)
    relaxed_store(&s.direct.building, 0)
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    if _direct_wait(s):
        relaxed_store(&s.direct.mapped.ended, 1)
        _direct_publish(s, NULL)
        _direct_close(s)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)
    return NULL


# --- for clients ---

cdef bint store_direct_give(store *s, int *index_fd, int *arena_fd) noexcept nogil:
    cdef bint given = False
    if not s.config.direct:
        return False
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    if not relaxed_load(&s.stopping):
        given = s.direct.mapped != NULL or _direct_create(s)
    if given:
        s.direct.readers += 1
        fetch_add(&s.direct.clients, 1)
        index_fd[0] = s.direct.fd
        arena_fd[0] = s.slabs.shared_fd
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)
    return given


cdef void store_direct_return(store *s) noexcept nogil:
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    assert_that(s.direct.readers != 0)
    s.direct.readers -= 1
    if s.direct.readers == 0:
        s.direct.left_ns = now_ns()
        pthread_cond_signal(&s.direct.cond)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)


cdef void store_direct_end(store *s) noexcept nogil:
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    if s.direct.mapped != NULL:
        relaxed_store(&s.direct.mapped.ended, 1)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)


cdef const void *store_direct_base(store *s) noexcept nogil:
    # No lock: the pointer is constant as long as a client has the memory.
    return s.direct.mapped


cdef void store_direct_stats(store *s, direct_stats *out) noexcept nogil:
    cdef uint32_t i
    memset(out, 0, sizeof(direct_stats))
    out.left_out = relaxed_load(&s.direct.left_out)
    out.clients = relaxed_load(&s.direct.clients)
    out.pinned_pages = relaxed_load(&s.slabs.pinned_pages)
    out.huge_pages = relaxed_load(&s.huge.made)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    out.sealed = s.slabs.sealed
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    out.readers = s.direct.readers
    out.building = relaxed_load(&s.direct.building)
    out.buckets = relaxed_load(&s.direct.bucket_count)
    if s.direct.mapped != NULL:
        for i in range(s.assoc.item_lock_mask + 1):
            out.items += relaxed_load(&s.assoc.item_locks[i].indexed)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)


# --- seals ---

cdef inline size_t direct_seal_room(store *s, size_t ntotal) noexcept nogil:
    cdef size_t whole = ((ntotal + 7) & ~<size_t>7) + sizeof(uint64_t)
    if not s.config.direct_remote or whole > min(<size_t>DIRECT_READ, <size_t>s.config.slab_chunk_size_max):
        return 0
    return whole - ntotal


cdef inline uint64_t *_seal_of(item *it) noexcept nogil:
    return <uint64_t *>(<char *>it + direct_seal_at(<direct_item *>it))


cdef inline void direct_write_seal(store *s, item *it) noexcept nogil:
    # An item has no seal while it is stale or a client recaches it: readers must ask, to learn who has won.
    if it.it_flags & (ITEM_SEAL_ROOM | ITEM_STALE | ITEM_TOKEN_SENT) == ITEM_SEAL_ROOM:
        store_release(_seal_of(it), direct_seal(&store_secrets, _direct_place(s, it), <direct_item *>it))


cdef inline void direct_take_seal(store *s, item *it) noexcept nogil:
    if it.it_flags & ITEM_SEAL_ROOM:
        relaxed_store(_seal_of(it), 0)
        write_fence()


cdef inline void _change_seal(item *it, uint64_t change) noexcept nogil:
    # Until the caller changes the field, too, the item does not verify itself.
    if it.it_flags & (ITEM_SEAL_ROOM | ITEM_LINKED) == ITEM_SEAL_ROOM | ITEM_LINKED and _seal_of(it)[0] != 0:
        relaxed_store(_seal_of(it), _seal_of(it)[0] ^ change)


cdef inline void direct_set_times(store *s, item *it, rel_time_t time, rel_time_t exptime) noexcept nogil:
    _change_seal(it, direct_times(it.time, it.exptime) ^ direct_times(time, exptime))
    item_set_time(it, time)
    item_set_exptime(it, exptime)


cdef inline void direct_set_cas(store *s, item *it, uint64_t cas) noexcept nogil:
    if ITEM_has(it, ITEM_CAS):
        _change_seal(it, direct_cas(ITEM_get_cas(it)) ^ direct_cas(cas))
        ITEM_set_cas(it, cas)


# --- entries ---

cdef inline bint _direct_covers(store *s, const item *it) noexcept nogil:
    """Whether the index can name the item. Memory from a raised limit is not covered, nor are foreign pages. For an
    item whose value is elsewhere clients must ask."""
    return s.direct.header != NULL and not it.it_flags & ITEM_HDR \
        and <size_t>(<const char *>it - s.slabs.arena) < s.direct.covered and not is_foreign(s, it)


cdef inline direct_bucket *_direct_bucket(store *s, uint32_t hv) noexcept nogil:
    # The item lock is held, so no split moves the hash to another bucket.
    assert_held(item_mutex(s, hv))
    return &s.direct.buckets[direct_bucket_of(hv, relaxed_load(&s.direct.header.buckets))]


cdef inline uint64_t _direct_place(store *s, const item *it) noexcept nogil:
    return <uint64_t>(<const char *>it - <const char *>s.direct.header)


cdef inline uint64_t _direct_slot(store *s, item *it, uint32_t hv) noexcept nogil:
    # The value of a slot for this item.
    cdef const direct_chunks *chunks = &s.direct.header.chunks
    cdef uint32_t at = <uint32_t>(<const char *>it - s.slabs.arena) & (SLAB_PAGE_SIZE - 1)
    cdef uint64_t page = <uint64_t>(<const char *>it - s.slabs.arena) >> DIRECT_PAGE_BITS
    cdef uint64_t clsid = ITEM_chunk_clsid(it)
    cdef uint64_t seal = 1 << DIRECT_CLASS_BITS if ITEM_has(it, ITEM_SEAL_ROOM) else 0
    return (direct_tag(chunks, hv) | (seal | clsid) << chunks.place_bits | page << chunks.chunk_bits
            | at // chunks.sizes[clsid])


cdef inline int _direct_find(const direct_bucket *bucket, uint64_t slot) noexcept nogil:
    """The number of the slot, or -1."""
    cdef uint32_t lower = <uint32_t>slot
    cdef int i
    for i in range(DIRECT_SLOTS):
        if bucket.lower[i] == lower and bucket.upper[i] == slot >> 32:
            return i
    return -1


cdef inline void _direct_set(direct_bucket *bucket, int i, uint64_t slot) noexcept nogil:
    """Writes a slot. The caller has made the bucket's version odd."""
    relaxed_store(&bucket.lower[i], <uint32_t>slot)
    relaxed_store(&bucket.upper[i], <uint16_t>(slot >> 32))


cdef inline void _direct_write(direct_bucket *bucket, int i, uint64_t slot) noexcept nogil:
    # Writes a slot, and makes the bucket's version odd meanwhile.
    relaxed_store(&bucket.version, bucket.version + 1)
    write_fence()
    _direct_set(bucket, i, slot)
    store_release(&bucket.version, bucket.version + 1)


cdef inline void _direct_enter(store *s, direct_bucket *bucket, item *it, uint32_t hv) noexcept nogil:
    # Puts the item into an empty slot; without an empty slot, marks the item for direct_note_use, and the bucket for
    # _direct_enter_left_out after a split.
    cdef item_stripe *stripe = &s.assoc.item_locks[hv & s.assoc.item_lock_mask]
    cdef int i = _direct_find(bucket, 0)
    if i < 0:
        fetch_add(&s.direct.left_out, 1)
        relaxed_store(&bucket.version, bucket.version | DIRECT_CROWDED)
        relaxed_store(&it.it_flags, it.it_flags | ITEM_LEFT_OUT)
        return
    _direct_write(bucket, i, _direct_slot(s, it, hv))
    relaxed_store(&stripe.indexed, stripe.indexed + 1)


cdef inline void direct_insert(store *s, item *it, uint32_t hv) noexcept nogil:
    if _direct_covers(s, it):
        _direct_enter(s, _direct_bucket(s, hv), it, hv)


cdef inline void direct_remove(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef item_stripe *stripe
    cdef direct_bucket *bucket
    cdef int i
    if not _direct_covers(s, it):
        return
    stripe = &s.assoc.item_locks[hv & s.assoc.item_lock_mask]
    bucket = _direct_bucket(s, hv)
    i = _direct_find(bucket, _direct_slot(s, it, hv))
    if i >= 0:
        _direct_write(bucket, i, 0)
        relaxed_store(&stripe.indexed, stripe.indexed - 1)


cdef inline void direct_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    cdef direct_bucket *bucket
    cdef int i
    if s.direct.header == NULL:
        return
    if not _direct_covers(s, fresh) or not _direct_covers(s, it):
        direct_remove(s, it, hv)
        direct_insert(s, fresh, hv)
        return
    bucket = _direct_bucket(s, hv)
    i = _direct_find(bucket, _direct_slot(s, it, hv))
    if i >= 0:
        _direct_write(bucket, i, _direct_slot(s, fresh, hv))
    else:
        _direct_enter(s, bucket, fresh, hv)


cdef void direct_note_use(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef direct_bucket *bucket
    # Only items left out are looked for: a get does not need the bucket's cache line otherwise.
    if it.it_flags & (ITEM_LINKED | ITEM_LEFT_OUT) != ITEM_LINKED | ITEM_LEFT_OUT or not _direct_covers(s, it):
        return
    bucket = _direct_bucket(s, hv)
    if _direct_find(bucket, _direct_slot(s, it, hv)) < 0:
        _direct_enter(s, bucket, it, hv)


cdef inline void direct_ahead(store *s, uint32_t hv) noexcept nogil:
    # The prefetch is only a hint: the index may move meanwhile, but nothing is read at the old address.
    cdef uint64_t buckets = relaxed_load(&s.direct.bucket_count)
    if buckets != 0:
        prefetch(<const direct_bucket *>relaxed_load(&s.direct.buckets) + direct_bucket_of(hv, buckets))


cdef inline void direct_begin(store *s, uint32_t hv) noexcept nogil:
    cdef direct_bucket *bucket
    if s.direct.header != NULL:
        bucket = _direct_bucket(s, hv)
        relaxed_store(&bucket.version, bucket.version + 1)
        write_fence()


cdef inline void direct_end(store *s, uint32_t hv) noexcept nogil:
    cdef direct_bucket *bucket
    if s.direct.header != NULL:
        bucket = _direct_bucket(s, hv)
        store_release(&bucket.version, bucket.version + 1)


cdef item *direct_item_at(store *s, uint32_t hv, uint64_t place) noexcept nogil:
    cdef const direct_chunks *chunks
    cdef direct_bucket *bucket
    cdef item *it
    cdef int i
    if s.direct.header == NULL:
        return NULL
    chunks = &s.direct.header.chunks
    bucket = _direct_bucket(s, hv)
    i = direct_next(chunks, bucket, hv, 0)
    while i < DIRECT_SLOTS:
        # An item in this bucket has the item lock of hv.
        if direct_place(chunks, direct_slot(bucket, i)) == place * 8:
            it = <item *>(<char *>s.direct.header + place * 8)
            return it if store_hash(ITEM_key(it), it.nkey) == hv else NULL
        i = direct_next(chunks, bucket, hv, i + 1)
    return NULL


# --- growth ---

cdef uint32_t _direct_moving(store *s, const direct_bucket *bucket, uint64_t bit) noexcept nogil:
    """The slots, as bits, whose item's hash has this bit set."""
    cdef const direct_chunks *chunks = &s.direct.header.chunks
    cdef const char *base = <const char *>s.direct.header
    cdef uint32_t moving = 0
    cdef item *it
    cdef int i
    for i in range(DIRECT_SLOTS):
        if direct_slot(bucket, i):
            prefetch(base + direct_place(chunks, direct_slot(bucket, i)))
    for i in range(DIRECT_SLOTS):
        if direct_slot(bucket, i):
            it = <item *>(base + direct_place(chunks, direct_slot(bucket, i)))
            if store_hash(ITEM_key(it), it.nkey) & bit:
                moving |= <uint32_t>1 << i
    return moving


cdef void _direct_enter_left_out(store *s, uint64_t number, uint64_t first) noexcept nogil:
    """Enters the items of bucket `number`, and of the bucket `first` further on, that the hash table has and the index
    lacks.
    """
    cdef uint64_t chains = max(<uint64_t>1, (<uint64_t>s.assoc.hash_mask + 1) // first)
    cdef uint64_t i
    cdef uint32_t hv
    cdef item *it
    # In a far too large table most chains are empty, and each look is a cache miss: the items stay left out.
    if chains > DIRECT_CHAINS:
        return
    for i in range(chains):
        it = assoc_bucket(s, <uint32_t>(number + i * first))[0]
        while it != NULL:
            hv = store_hash(ITEM_key(it), it.nkey)
            if hv & (first - 1) == number and _direct_covers(s, it) \
                    and _direct_find(_direct_bucket(s, hv), _direct_slot(s, it, hv)) < 0:
                _direct_enter(s, _direct_bucket(s, hv), it, hv)
            it = it.h_next


cdef void _direct_split(store *s, uint64_t buckets, uint64_t first) noexcept nogil:
    """Moves half of the bucket `buckets - first` to a new bucket. first: the largest power of two up to buckets."""
    assert_held(item_mutex(s, <uint32_t>(buckets - first)))
    cdef direct_bucket *old = &s.direct.buckets[buckets - first]
    cdef direct_bucket *fresh = &s.direct.buckets[buckets]
    cdef uint32_t moving = _direct_moving(s, old, first)
    cdef bint crowded = old.version & DIRECT_CROWDED != 0
    cdef int i
    cdef int count = 0
    relaxed_store(&fresh.version, fresh.version + 1)
    write_fence()
    for i in range(DIRECT_SLOTS):
        if moving >> i & 1:
            _direct_set(fresh, count, direct_slot(old, i))
            count += 1
    store_release(&fresh.version, fresh.version + 1)
    store_release(&s.direct.header.buckets, buckets + 1)
    relaxed_store(&old.version, old.version + 1)
    write_fence()
    for i in range(DIRECT_SLOTS):
        if moving >> i & 1:
            _direct_set(old, i, 0)
    store_release(&old.version, (old.version + 1) & ~DIRECT_CROWDED)
    if crowded:
        _direct_enter_left_out(s, buckets - first, first)


cdef void direct_check_load(store *s) noexcept nogil:
    cdef uint64_t items = 0
    cdef uint64_t buckets, first
    cdef int i, _try
    if relaxed_load(&s.direct.bucket_count) == 0 or not trylock_ranked(&s.direct.lock, DIRECT_LOCK):
        return
    for i in range(NUMBER_OF_QUEUES):
        items += relaxed_load(&s.queues[i].size)
    for _try in range(DIRECT_SPLITS):
        # The held lock keeps `header` unchanged.
        if s.direct.header == NULL:
            break
        buckets = relaxed_load(&s.direct.header.buckets)
        first = direct_power(buckets)
        # A split needs the bucket's item lock, which the caller, or another thread for long, may hold. So this thread
        # only tries the lock: if the lock is held, the next call tries again.
        if items * DIRECT_BYTES < (buckets + 1) * sizeof(direct_bucket) or buckets == s.direct.header.most \
                or not _direct_open(s, DIRECT_HEADER + (buckets + 1) * sizeof(direct_bucket)) \
                or not item_trylock(s, <uint32_t>(buckets - first)):
            break
        _direct_split(s, buckets, first)
        relaxed_store(&s.direct.bucket_count, buckets + 1)
        item_unlock(s, <uint32_t>(buckets - first))
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)
