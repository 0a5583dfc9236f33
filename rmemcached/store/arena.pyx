cdef enum:
    BASE_TRIES = 16             # addresses tried for the arena of a memory file

cdef extern from *:
    """
    /* The arenas of memory files lie between these addresses: neither programs nor libraries are there. */
    #define RMC_BASE_LEAST ((uint64_t)1 << 44)
    #define RMC_BASE_ROOM ((uint64_t)1 << 45)
    """
    const uint64_t BASE_LEAST "RMC_BASE_LEAST"
    const uint64_t BASE_ROOM "RMC_BASE_ROOM"


cdef bint _arena_make_file(store *s) noexcept nogil:
    """Takes the memory file, or makes a memfd, and a descriptor for clients. False: the system refuses."""
    cdef size_t length = s.slabs.head_length + s.slabs.arena_length
    if s.file.fd >= 0:
        s.slabs.memfd = s.file.fd
        if s.file.fresh:
            return ftruncate(s.slabs.memfd, <long>s.slabs.head_length) == 0 \
                and fallocate(s.slabs.memfd, 0, 0, <long>s.slabs.head_length) == 0
        return True
    s.slabs.memfd = memfd_create(b"rmemcached items", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    s.slabs.file_length = s.slabs.arena_length
    return s.slabs.memfd >= 0 and ftruncate(s.slabs.memfd, <long>length) == 0


cdef bint _arena_map(store *s) noexcept nogil:
    """Maps the arena's file, if any, over the address space of head and arena. False: the system refuses."""
    cdef size_t length = s.slabs.head_length + s.slabs.arena_length
    if s.config.direct or s.file.fd >= 0:
        if not _arena_make_file(s):
            return False
        if s.config.direct:
            # Get the descriptor now: after a change of user, /proc would refuse it.
            s.slabs.shared_fd = memory_file_reader(s) if s.file.fd >= 0 else read_only(dup(s.slabs.memfd))
        if (s.config.direct and s.slabs.shared_fd < 0) \
                or mmap(s.slabs.arena - s.slabs.head_length, length, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                        s.slabs.memfd, 0) == MAP_FAILED:
            return False
    s.head = <arena_head *>(s.slabs.arena - s.slabs.head_length)
    return mprotect(s.head, s.slabs.head_length, PROT_READ | PROT_WRITE) == 0


cdef void arena_release(store *s) noexcept nogil:
    if s.slabs.mapping != NULL:
        munmap(s.slabs.mapping, s.slabs.mapping_length)
        s.slabs.mapping = NULL
        s.head = NULL
    if s.slabs.shared_fd >= 0:
        close(s.slabs.shared_fd)
    if s.slabs.memfd >= 0 and s.slabs.memfd != s.file.fd:
        close(s.slabs.memfd)
    s.slabs.memfd = s.slabs.shared_fd = -1


cdef uint64_t _arena_random_base() noexcept nogil:
    cdef uint64_t base = 0
    getrandom(&base, sizeof(base), 0)
    return BASE_LEAST + base % BASE_ROOM // HUGE_PAGE * HUGE_PAGE


cdef void *_arena_map_at(uint64_t base, size_t before, size_t total) noexcept nogil:
    cdef void *at = <void *>(base - before)
    cdef void *got = mmap(at, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                          -1, 0)
    if got != MAP_FAILED and got != at:
        # A kernel before 4.17 takes the address as a hint.
        munmap(got, total)
        got = MAP_FAILED
    return got


cdef void *_arena_reserve_file(store *s, size_t before, size_t total) noexcept nogil:
    """Reserves address space for the arena of a memory file: where the arena was before, so that the chains of large
    items need no change, or at a random address.
    """
    cdef void *mapping = MAP_FAILED
    cdef int _try
    if not s.file.fresh and s.file.last.bases[0] % HUGE_PAGE == 0 and s.file.last.bases[0] > before:
        mapping = _arena_map_at(s.file.last.bases[0], before, total)
    for _try in range(BASE_TRIES):
        if mapping != MAP_FAILED:
            break
        mapping = _arena_map_at(_arena_random_base(), before, total)
    return mapping


cdef bint _is_clear_of_bases(store *s) noexcept nogil:
    """Whether no address of the arena stood for another place in an earlier run. Otherwise an address in a chain could
    mean two places.
    """
    cdef uint64_t base = <uint64_t>s.slabs.arena
    cdef uint64_t other
    cdef int i
    for i in range(HEAD_BASES):
        other = s.file.last.bases[i]
        if other != 0 and other != base and base - other + s.slabs.arena_length < 2 * s.slabs.arena_length:
            return False
    return True


cdef bint arena_reserve(store *s, size_t length) noexcept nogil:
    cdef size_t head = head_bytes(length) if s.file.fresh else s.slabs.head_length
    cdef size_t before = direct_bytes(length) + head if s.config.direct else head
    cdef size_t total = before + length + HUGE_PAGE
    cdef void *mapping = MAP_FAILED
    if head_bytes(length) > head or (s.config.direct and head != DIRECT_LIFE):
        # The file, from a run with a larger limit or without direct reads, does not fit this arena.
        return False
    if s.file.fd >= 0:
        mapping = _arena_reserve_file(s, before, total)
    if mapping == MAP_FAILED:
        mapping = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapping == MAP_FAILED:
        return False
    s.slabs.mapping = <char *>mapping
    s.slabs.mapping_length = total
    s.slabs.head_length = head
    s.slabs.arena = <char *>((<size_t>mapping + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE) + before
    s.slabs.arena_length = length
    if (not s.file.fresh and not _is_clear_of_bases(s)) or not _arena_map(s):
        arena_release(s)
        return False
    return True


cdef bint _arena_set_length(store *s, size_t length) noexcept nogil:
    """Sets memfd's length; a shorter length is possible until the file is sealed. Another process of the same user may
    open the file and lengthen it: a longer file is no reason to refuse.
    """
    cdef struct_stat status
    return ftruncate(s.slabs.memfd, <long>(s.slabs.head_length + length)) == 0 \
        or (fstat(s.slabs.memfd, &status) == 0 and <size_t>status.st_size >= s.slabs.head_length + length)


cdef size_t arena_seal(store *s) noexcept nogil:
    cdef size_t length, least
    if s.slabs.memfd < 0:
        return 0
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    # In pinned memory the length is a multiple of an extent, because a device registers whole extents.
    least = ARENA_EXTENT if s.slabs.pinned else HUGE_PAGE
    length = max(s.slabs.arena_used, min(<size_t>s.config.maxbytes, s.slabs.arena_length), s.huge.ready)
    length = (length + least - 1) // least * least
    if s.config.direct_remote:
        # Devices keep the index registered, so the index is made only once, for the whole arena.
        length = s.slabs.arena_length
    if (length > s.slabs.file_length or not s.slabs.sealed) and _arena_set_length(s, length):
        s.slabs.file_length = length
    # A memory file takes no seals: its clients trust its owner not to cut it.
    if not s.slabs.sealed and s.slabs.file_length == length and (s.file.fd >= 0 or fcntl(
            s.slabs.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0):
        s.slabs.sealed = True
    length = min(length, s.slabs.file_length) if s.slabs.sealed else 0
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return length


cdef bint arena_open_to(store *s, size_t top) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef size_t length
    if top <= s.slabs.arena_open:
        return True
    length = (top - s.slabs.arena_open + ARENA_EXTENT - 1) // ARENA_EXTENT * ARENA_EXTENT
    if mprotect(s.slabs.arena + s.slabs.arena_open, length, PROT_READ | PROT_WRITE) != 0:
        return False
    # The memory gets small pages (huge.pxd has the reason), unless this process or a device touches all of it now.
    madvise(s.slabs.arena + s.slabs.arena_open, length,
            MADV_HUGEPAGE if s.config.preallocate or s.slabs.pinned else MADV_NOHUGEPAGE)
    s.slabs.arena_open += length
    return True


cdef bint arena_lengthen(store *s, size_t top) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef size_t length = (top + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
    if s.slabs.memfd >= 0 and top > s.slabs.file_length:
        if not _arena_set_length(s, length):
            return False
        s.slabs.file_length = length
    if s.file.fd >= 0 and top > s.file.reserved:
        if not memory_file_reserve(s, s.file.reserved, top):
            return False
        s.file.reserved = top
    return True
