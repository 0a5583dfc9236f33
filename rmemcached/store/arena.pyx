cdef bint _arena_share(store *s) noexcept nogil:
    """Maps a memfd over the arena's address space and the DIRECT_LIFE bytes before the arena. False: the system
    refuses."""
    cdef size_t length = s.slabs.arena_length
    s.slabs.memfd = memfd_create(b"rmemcached items", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    if s.slabs.memfd < 0:
        return False
    s.slabs.file_length = length
    length += DIRECT_LIFE
    # Get the descriptor now: after a change of user, /proc would refuse it.
    s.slabs.shared_fd = read_only(dup(s.slabs.memfd))
    return (ftruncate(s.slabs.memfd, <long>length) == 0 and s.slabs.shared_fd >= 0
            and mmap(s.slabs.arena - DIRECT_LIFE, length, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                     s.slabs.memfd, 0) != MAP_FAILED)


cdef void arena_release(store *s) noexcept nogil:
    if s.slabs.mapping != NULL:
        munmap(s.slabs.mapping, s.slabs.mapping_length)
        s.slabs.mapping = NULL
    if s.slabs.shared_fd >= 0:
        close(s.slabs.shared_fd)
    if s.slabs.memfd >= 0:
        close(s.slabs.memfd)
    s.slabs.memfd = s.slabs.shared_fd = -1


cdef bint arena_reserve(store *s, size_t length) noexcept nogil:
    cdef size_t before = direct_bytes(length) + DIRECT_LIFE if s.config.direct else 0
    cdef size_t total = before + length + HUGE_PAGE
    cdef void *mapping = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapping == MAP_FAILED:
        return False
    s.slabs.mapping = <char *>mapping
    s.slabs.mapping_length = total
    s.slabs.arena = <char *>((<size_t>mapping + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE) + before
    s.slabs.arena_length = length
    if s.config.direct and not _arena_share(s):
        arena_release(s)
        return False
    return True


cdef bint _arena_set_length(store *s, size_t length) noexcept nogil:
    """Sets memfd's length; a shorter length is possible until the file is sealed. Another process of the same user may
    open the file and lengthen it: a longer file is no reason to refuse.
    """
    cdef struct_stat status
    return ftruncate(s.slabs.memfd, <long>(DIRECT_LIFE + length)) == 0 \
        or (fstat(s.slabs.memfd, &status) == 0 and <size_t>status.st_size >= DIRECT_LIFE + length)


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
    if not s.slabs.sealed and s.slabs.file_length == length \
            and fcntl(s.slabs.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0:
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
    if s.slabs.memfd < 0 or top <= s.slabs.file_length:
        return True
    if not _arena_set_length(s, length):
        return False
    s.slabs.file_length = length
    return True
