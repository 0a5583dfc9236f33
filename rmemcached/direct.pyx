"""Reads the daemon's memory directly; see direct.pxd."""

from libc.errno cimport EPROTO
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from posix.stat cimport S_ISREG, fstat, struct_stat
from posix.unistd cimport geteuid

from rmemcached.sys.atomics cimport load_acquire, read_fence, relaxed_load
from rmemcached.sys.clock cimport coarse_ms
from rmemcached.sys.key_hash cimport hash_secrets, key_hash
from rmemcached.sys.linux cimport (
    F_GET_SEALS, F_SEAL_SHRINK, HUGE_PAGE, MADV_DONTDUMP, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE,
    MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, TMPFS_MAGIC, errno, fcntl, fstatfs, madvise, mincore, mmap, mprotect,
    munlock, munmap, populate_read, snprintf, struct_statfs,
)

cdef enum:
    FREQUENCY = 3 * DIRECT_FREQUENCY_ONE
    # of the robust mutex's word (the kernel's futex.h)
    OWNER_DIED = 0x40000000
    OWNER = 0x3fffffff

cdef enum:
    HEAD_MOST = 512              # bytes of an item before its data
    CHUNK_LEAST = 512            # bytes in each chunk of a value but the last; daemons have no shorter chunks
    PAGE = 4096                  # of the system: with pages of another size the daemon does not start
    PREFAULT_PAGES = 8192        # pages of a call of direct_prefault, which takes about a millisecond
    STALL_MS = 2000              # without a move of the daemon's clock, after which clients ask the daemon
    UPDATE_INTERVAL = 60         # seconds; ITEM_UPDATE_INTERVAL of the store
    NAMED_MS = 100               # a hit to be named is told at once if the last line is older


# ---- the mapping -----------------------------------------------------------------------------------------------------

cdef bint is_sound(const direct_header *h, uint64_t index, uint64_t length) noexcept nogil:
    """Whether everything named in the header lies within the memory, and the memory is not longer than a daemon's.
    index: the length of the first file, with header and index. length: of both files.
    """
    cdef uint64_t arena = index + DIRECT_LIFE
    return (memcmp(h.magic, DIRECT_MAGIC, sizeof(h.magic)) == 0 and h.layout == DIRECT_VERSION
            and h.chunks.arena == arena and h.length <= length and h.length >> DIRECT_LENGTH_BITS == 0
            and h.length >= 2 * DIRECT_HEADER and arena <= h.length - HEAD_MOST
            and h.index >= sizeof(direct_header) and h.index % 64 == 0 and h.index <= index and h.most > 0
            and h.most <= (index - h.index) // sizeof(direct_bucket)
            and h.alive % 4 == 0 and h.alive <= arena - 4
            and h.chunks.chunk_bits <= h.chunks.place_bits and h.chunks.place_bits <= DIRECT_PLACE_MOST)


cdef bint tells_pages(const direct_memory *m) noexcept nogil:
    """Whether mincore tells this process the resident pages. About another user's file the kernel calls all pages
    resident. The last page shows the difference: a daemon has this page only with all pages in use.
    """
    cdef unsigned char last = 1
    return mincore(<void *>(m.base + (m.length - PAGE & ~<size_t>(PAGE - 1))), PAGE, &last) == 0 and not last & 1


cdef bint keeps_length(int fd, const struct_stat *status, bint is_arena) noexcept nogil:
    """Whether the file will not become shorter: reading behind its end would end this process. Only a memfd has seals.
    A memory file (-e) has none, and its owner can cut it. A process trusts its own user and root, which could end it
    anyway, but nobody else.
    """
    cdef int seals = fcntl(fd, F_GET_SEALS)
    if seals >= 0 and seals & F_SEAL_SHRINK:
        return True
    return is_arena and S_ISREG(status.st_mode) and (status.st_uid == 0 or status.st_uid == geteuid())


cdef int memory_of(int fd, bint is_arena, uint64_t *length, uint64_t *there) noexcept nogil:
    """The length of a part of the memory, and its bytes with pages. Returns 0, or -EPROTO for any unsuitable file."""
    cdef struct_stat status
    cdef struct_statfs system
    # A file in memory that cannot shrink keeps its pages for ever, except that huge pages (hugetlbfs) may be missing. A
    # file longer than a daemon's would only use up addresses here.
    if fstat(fd, &status) < 0 or not keeps_length(fd, &status, is_arena) or fstatfs(fd, &system) < 0 \
            or system.f_type != TMPFS_MAGIC or status.st_size <= 0 or status.st_size >> DIRECT_LENGTH_BITS != 0 \
            or status.st_size % PAGE != 0:
        return -EPROTO
    length[0] = <uint64_t>status.st_size
    there[0] = <uint64_t>status.st_blocks * 512
    return 0


cdef bint map_part(char *at, uint64_t length, int fd) noexcept nogil:
    # With mlockall(MCL_FUTURE) the kernel would fill a readable mapping at once, holes and all. So the mapping becomes
    # readable only after munlock.
    if mmap(at, length, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED \
            or munlock(at, length) != 0 or mprotect(at, length, PROT_READ) != 0:
        return False
    # A client's core dump must not contain the cache.
    madvise(at, length, MADV_DONTDUMP)
    return True


cdef int direct_map(direct_memory *m, int index_fd, int arena_fd) noexcept nogil:
    cdef direct_header header
    cdef uint64_t index_length, arena_length, there
    cdef void *mapping
    memset(m, 0, sizeof(direct_memory))
    if memory_of(index_fd, False, &index_length, &there) < 0 or memory_of(arena_fd, True, &arena_length, &there) < 0 \
            or index_length < 2 * DIRECT_HEADER:
        return -EPROTO
    # The memory begins at a multiple of 2 MB, so that huge pages of the arena can be mapped as such.
    mapping = mmap(NULL, index_length + arena_length + HUGE_PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapping == MAP_FAILED:
        return -errno
    m.mapping = <char *>mapping
    m.mapped = index_length + arena_length + HUGE_PAGE
    m.base = <char *>((<size_t>mapping + HUGE_PAGE - 1) & ~<size_t>(HUGE_PAGE - 1))
    if not map_part(<char *>m.base, index_length, index_fd) \
            or not map_part(<char *>m.base + index_length, arena_length, arena_fd):
        direct_unmap(m)
        return -EPROTO
    m.header = <const direct_header *>m.base
    # Check and use a copy, whatever the daemon writes meanwhile.
    memcpy(&header, m.base, sizeof(header))
    if not is_sound(&header, index_length, index_length + arena_length):
        direct_unmap(m)
        return -EPROTO
    m.length = header.length
    m.index = <const direct_bucket *>(m.base + header.index)
    m.most = header.most
    m.chunks = header.chunks
    m.alive = <const uint32_t *>(m.base + header.alive)
    m.daemon = header.base
    m.tells = tells_pages(m)
    m.used = min(header.used, there, m.length - m.chunks.arena)
    return 0


cdef bint direct_prefault(const direct_memory *m, uint64_t *at, uint64_t *mapped) noexcept nogil:
    # Reading a page missing in the daemon would make the page, at the reader's expense. So mincore tells the pages to
    # read.
    cdef unsigned char there[PREFAULT_PAGES]
    cdef uint64_t used = relaxed_load(&(<direct_header *>m.header).used) if m.tells else m.used
    cdef uint64_t end = min(used, m.length - m.chunks.arena, at[0] + PREFAULT_PAGES * PAGE) & ~<uint64_t>(PAGE - 1)
    cdef const char *begin = m.base + m.chunks.arena + at[0]
    cdef size_t pages, last
    cdef size_t first = 0
    if at[0] >= end or m.chunks.arena % PAGE or mincore(<void *>begin, end - at[0], there) != 0:
        return False
    pages = (end - at[0]) // PAGE
    at[0] = end
    while first < pages:
        last = first
        while last < pages and there[last] & 1:
            last += 1
        if last > first and populate_read(begin + first * PAGE, (last - first) * PAGE) != 0:
            return False
        mapped[0] += (last - first) * PAGE
        first = last + 1
    return True


cdef void direct_unmap(direct_memory *m) noexcept nogil:
    munmap(m.mapping, m.mapped)
    m.base = NULL


cdef bint direct_is_alive(const direct_memory *m) noexcept nogil:
    cdef uint64_t word = relaxed_load(<uint32_t *>m.alive)
    return word & OWNER != 0 and not word & OWNER_DIED and not relaxed_load(&(<direct_header *>m.header).ended)


cdef inline bint clock_moves(const direct_header *h) noexcept nogil:
    """Whether the daemon has set its clock in the last seconds. Without a moving clock nobody knows the expired items.
    From another time namespace the clock seems to stand still.
    """
    cdef int64_t since = coarse_ms() - <int64_t>load_acquire(&(<direct_header *>h).beat)
    return -STALL_MS <= since <= STALL_MS


cdef bint direct_is_read(const direct_memory *m) noexcept nogil:
    return direct_is_alive(m) and clock_moves(m.header)


# ---- finding and copying ---------------------------------------------------------------------------------------------

cdef inline bint is_unchanged(const direct_bucket *bucket, uint64_t version) noexcept nogil:
    # Earlier reads must not move behind this load.
    read_fence()
    return relaxed_load(&(<direct_bucket *>bucket).version) == version


cdef inline direct_item *item_at(const direct_memory *m, uint64_t place) noexcept nogil:
    """The item at a place, if its head can be read; else NULL."""
    if place < m.chunks.arena or place > m.length - HEAD_MOST:
        return NULL
    return <direct_item *>(m.base + place)


cdef inline bint is_current(uint32_t oldest, uint32_t now, const direct_item *it) noexcept nogil:
    """Whether the item is neither expired nor flushed. do_item_find of the store judges in the same way."""
    cdef uint32_t exptime = <uint32_t>relaxed_load(&(<direct_item *>it).exptime)
    if exptime != 0 and exptime <= now:
        return False
    return oldest > now or <uint32_t>relaxed_load(&(<direct_item *>it).time) > oldest


cdef inline bint would_count(uint32_t algorithm, uint32_t now, uint32_t flags, const direct_item *it) noexcept nogil:
    """Whether the daemon has to hear of the hit by name: a fetch through the daemon would change the item."""
    if algorithm == DIRECT_SEGMENTED:
        return not flags & DIRECT_ACTIVE
    if algorithm == DIRECT_S3FIFO and flags & FREQUENCY != FREQUENCY:
        return True
    return not flags & DIRECT_FETCHED or <uint32_t>relaxed_load(&(<direct_item *>it).time) + UPDATE_INTERVAL < now


cdef direct_answer take(const direct_clock *clock, const char *end, size_t longest, direct_item *it,
                        direct_hit *hit) noexcept nogil:
    """Fills the hit from an item with the key. end: of the memory around the item. longest: for a chained value."""
    # Load the CAS value before the flags: if the item got a new CAS value by becoming stale, its flags show this.
    cdef uint64_t cas = load_acquire(<uint64_t *>(it + 1)) if relaxed_load(&it.it_flags) & DIRECT_WITH_CAS else 0
    cdef uint32_t flags = <uint32_t>relaxed_load(&it.it_flags)
    cdef size_t nbytes = <size_t>relaxed_load(&it.nbytes)
    cdef const char *data = direct_key(it) + it.nkey + 1
    if flags & (DIRECT_LINKED | DIRECT_SLABBED | DIRECT_CHUNK | DIRECT_ELSEWHERE | DIRECT_STALE
                | DIRECT_TOKEN_SENT) != DIRECT_LINKED \
            or not is_current(clock.oldest_live, clock.now, it):
        return DIRECT_ASK
    hit.flags = 0
    if flags & DIRECT_WITH_FLAGS:
        memcpy(&hit.flags, data, 4)
        data += 4
    hit.chained = flags & DIRECT_CHUNKED != 0
    if hit.chained:
        data = <const char *>((<size_t>data + 7) & ~<size_t>7)
    # The data ends in \r\n.
    if nbytes < 2 or nbytes > (longest if hit.chained else <size_t>(end - data)):
        return DIRECT_ASK
    hit.data = data
    hit.cas = cas
    hit.length = nbytes - 2
    hit.queue = <uint8_t>relaxed_load(&it.slabs_clsid)
    hit.counts = would_count(clock.algorithm, clock.now, flags, it)
    return DIRECT_FOUND


cdef direct_answer direct_find(const direct_memory *m, const char *key, size_t nkey, direct_hit *hit) noexcept nogil:
    cdef const direct_header *h = m.header
    cdef uint32_t hv = key_hash(&h.hash, key, nkey)
    cdef uint64_t buckets = relaxed_load(&(<direct_header *>h).buckets)
    cdef direct_clock clock
    cdef uint64_t place
    cdef direct_bucket *bucket
    cdef direct_item *it
    cdef direct_answer answer = DIRECT_ASK
    cdef int i
    if buckets - 1 >= m.most or not clock_moves(h):
        return DIRECT_ASK
    clock.now = <uint32_t>relaxed_load(&(<direct_header *>h).current_time)
    clock.oldest_live = <uint32_t>relaxed_load(&(<direct_header *>h).oldest_live)
    clock.algorithm = <uint32_t>relaxed_load(&(<direct_header *>h).algorithm)
    bucket = <direct_bucket *>m.index + direct_bucket_of(hv, buckets)
    hit.bucket = bucket
    hit.version = load_acquire(&bucket.version)
    if hit.version & 1:
        return DIRECT_TORN
    i = direct_next(&m.chunks, bucket, hv, 0)
    while i < DIRECT_SLOTS:
        place = direct_place(&m.chunks, direct_slot(bucket, i))
        it = item_at(m, place)
        if it != NULL and it.nkey == nkey and memcmp(direct_key(it), key, nkey) == 0:
            hit.place = place
            hit.hv = hv
            answer = take(&clock, m.base + m.length, m.length, it, hit)
            break
        i = direct_next(&m.chunks, bucket, hv, i + 1)
    # The length, at least, must be right now: the caller makes room for so many bytes.
    if answer == DIRECT_FOUND and not is_unchanged(bucket, hit.version):
        return DIRECT_TORN
    return answer


cdef bint copy_chain(const direct_memory *m, const direct_hit *hit, char *to) noexcept nogil:
    """Copies a chained value. False: the chain is broken, or has changed."""
    cdef const direct_chunk *chunk = <const direct_chunk *>hit.data
    cdef size_t left = hit.length
    cdef size_t n
    cdef uint64_t place
    while left:
        place = relaxed_load(&(<direct_chunk *>chunk).next) - m.daemon
        if place < m.chunks.arena or place > m.length - HEAD_MOST:
            return False
        chunk = <const direct_chunk *>(m.base + place)
        n = min(left, <size_t><uint32_t>relaxed_load(&(<direct_chunk *>chunk).used))
        if n < min(left, <size_t>CHUNK_LEAST) or n > m.length - place - sizeof(direct_chunk):
            return False
        memcpy(to, chunk + 1, n)
        to += n
        left -= n
    return True


cdef direct_answer direct_copy(const direct_memory *m, const direct_hit *hit, char *to) noexcept nogil:
    cdef bint copied = True
    if hit.chained:
        copied = copy_chain(m, hit, to)
    else:
        memcpy(to, hit.data, hit.length)
    if not is_unchanged(hit.bucket, hit.version) or not copied:
        return DIRECT_TORN
    # If the daemon has died, a new daemon may have newer values.
    return DIRECT_FOUND if direct_is_alive(m) else DIRECT_ASK


# ---- seals, and READs ------------------------------------------------------------------------------------------------

cdef bint direct_is_usable(const direct_header *h) noexcept nogil:
    return is_sound(h, h.chunks.arena - DIRECT_LIFE, h.length) and h.sealed != 0


cdef int direct_look(const direct_chunks *chunks, const direct_bucket *bucket, uint32_t hv, int first) noexcept nogil:
    cdef int i = direct_next(chunks, bucket, hv, first)
    cdef uint64_t slot
    while i < DIRECT_SLOTS:
        slot = direct_slot(bucket, i)
        # Halves of two slots may name a missing class. Nothing can be read there.
        if direct_has_seal(chunks, slot) and chunks.sizes[direct_class(chunks, slot)] >= sizeof(direct_item):
            break
        i = direct_next(chunks, bucket, hv, i + 1)
    return i


cdef direct_answer direct_verify(const hash_secrets *secrets, const direct_clock *clock, uint64_t place, uint32_t hv,
                                 const char *copy, size_t size, const char *key, size_t nkey,
                                 direct_hit *hit) noexcept nogil:
    cdef direct_item *it = <direct_item *>copy
    cdef size_t at
    cdef uint64_t seal
    if size < sizeof(direct_item) or <uint32_t>it.nbytes > size \
            or it.it_flags & (DIRECT_LINKED | DIRECT_SLABBED | DIRECT_CHUNK | DIRECT_CHUNKED
                              | DIRECT_ELSEWHERE) != DIRECT_LINKED:
        return DIRECT_TORN
    at = direct_seal_at(it)
    if at + sizeof(seal) > size:
        return DIRECT_TORN
    memcpy(&seal, copy + at, sizeof(seal))
    if seal == 0 or seal != direct_seal(secrets, place, it):
        return DIRECT_TORN
    if it.nkey != nkey or memcmp(direct_key(it), key, nkey) != 0:
        return DIRECT_FOREIGN
    hit.bucket = NULL
    hit.place = place
    hit.hv = hv
    return take(clock, copy + size, 0, it, hit)


# ---- the report of hits ----------------------------------------------------------------------------------------------

cdef inline uint32_t clock_of(const direct_header *h) noexcept nogil:
    return <uint32_t>relaxed_load(&(<direct_header *>h).current_time)


cdef inline bint may_be_named(direct_report *r, const direct_header *h, const direct_hit *hit) noexcept nogil:
    """Whether naming this hit tells the daemon anything beyond the hits named already. If so, counts the naming."""
    cdef uint64_t *known = &r.recent[(hit.place >> 3) * 0x9e3779b97f4a7c15ULL >> 56]
    cdef uint64_t most = 3 if relaxed_load(&(<direct_header *>h).algorithm) == DIRECT_S3FIFO else 2
    # A place is a multiple of 8, so the lower three bits have room for the number of times.
    if known[0] & ~<uint64_t>7 != hit.place:
        known[0] = hit.place
    elif known[0] & 7 >= most:
        return False
    known[0] += 1
    return True


cdef void direct_report_begin(direct_report *r, const direct_header *h) noexcept nogil:
    r.told = clock_of(h)


cdef bint direct_note(direct_report *r, const direct_header *h, const direct_hit *hit) noexcept nogil:
    r.counts[hit.queue] += 1
    r.total += 1
    if hit.counts and r.used < DIRECT_NAMED and may_be_named(r, h, hit):
        r.named[r.used].hv = hit.hv
        r.named[r.used].place = hit.place // 8
        r.used += 1
        return r.used == DIRECT_NAMED or coarse_ms() - r.told_ms > NAMED_MS
    return r.told != clock_of(h)


cdef size_t direct_line(direct_report *r, const direct_header *h, char *out) noexcept nogil:
    cdef size_t used
    cdef unsigned int i
    r.told = clock_of(h)
    r.told_ms = coarse_ms()
    if r.total == 0:
        return 0
    # Counts that do not fit wait for the next line.
    used = snprintf(out, DIRECT_LINE, "rdma_hits")
    for i in range(r.used):
        used += snprintf(out + used, DIRECT_LINE - used, " @%x:%llx", r.named[i].hv,
                         <unsigned long long>r.named[i].place)
    r.used = 0
    r.total = 0
    for i in range(<unsigned int>DIRECT_QUEUES):
        if r.counts[i] and used < DIRECT_LINE - 32:
            used += snprintf(out + used, DIRECT_LINE - used, " %u:%llu", i, <unsigned long long>r.counts[i])
            r.counts[i] = 0
        r.total += r.counts[i]
    memset(r.recent, 0, sizeof(r.recent))
    return used + snprintf(out + used, DIRECT_LINE - used, "\r\n")
