# soft_shm: memory shared by processes; see memory.pxd.

cdef int shm_memfd(const char *name, size_t size) noexcept nogil:
    cdef int error
    cdef int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    if fd >= 0 and ftruncate(fd, <long> size) < 0:
        error = errno.errno
        close(fd)
        errno.errno = error
        return -1
    return fd


cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil:
    cdef int error
    cdef void *memory
    fd[0] = shm_memfd(name, size)
    if fd[0] < 0:
        return NULL
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd[0], 0)
    if memory == MAP_FAILED or fcntl(
            fd[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0:
        error = errno.errno
        if memory != MAP_FAILED:
            munmap(memory, size)
        close(fd[0])
        fd[0] = -1
        errno.errno = error
        return NULL
    return memory


cdef bint shm_mappable(int fd, size_t size) noexcept nogil:
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef struct_stat status
    cdef struct_statfs system
    if seals < 0 or not seals & F_SEAL_SHRINK or fstat(fd, &status) < 0 or fstatfs(fd, &system) < 0:
        return False
    # Only files in memory (tmpfs, hugetlbfs) have seals, so this kernel alone answers fstat and fstatfs. hugetlbfs is
    # refused: its pages may be missing when they are touched, and then the access ends in SIGBUS.
    return system.f_type == TMPFS_MAGIC and status.st_size >= 0 and <uint64_t> status.st_size >= size


cdef inline size_t shm_pages(size_t size) noexcept nogil:
    return (size + PAGE_SIZE - 1) & ~<size_t> (PAGE_SIZE - 1)


cdef bint shm_has_size(int fd, size_t size) noexcept nogil:
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef struct_stat status
    if seals < 0 or not seals & F_SEAL_GROW or fstat(fd, &status) < 0 or status.st_size < 0:
        return False
    # A file keeps pages behind its end that were made before the seal: so count its pages. A huge page may reach beyond
    # the end.
    return (shm_pages(<size_t> status.st_size) == shm_pages(size)
            and <uint64_t> status.st_blocks * 512 <= <uint64_t> size + HUGE_PAGE)


cdef bint shm_is_sealed(int fd) noexcept nogil:
    cdef int seals = fcntl(fd, F_GET_SEALS)
    return seals >= 0 and seals & F_SEAL_FUTURE_WRITE != 0


cdef void *shm_map(int fd, size_t size) noexcept nogil:
    cdef size_t whole = shm_pages(size) + PAGE_SIZE
    # With mlockall(MCL_FUTURE) the kernel would fill and lock a readable mapping here. So the rights come later.
    cdef void *memory = mmap(NULL, whole, PROT_NONE, MAP_SHARED, fd, 0)
    if memory == MAP_FAILED:
        return NULL
    if munlock(memory, whole) < 0:
        munmap(memory, whole)
        return NULL
    return memory


cdef void shm_unmap(void *memory, size_t size) noexcept nogil:
    munmap(memory, shm_pages(size) + PAGE_SIZE)


cdef size_t shm_present(const void *memory, size_t at, size_t size) noexcept nogil:
    cdef uint8_t found[SHM_LOOK_PAGES]
    cdef size_t pages = (shm_pages(size) - at) // PAGE_SIZE
    cdef size_t n = 0
    assert_that(at % PAGE_SIZE == 0 and size <= SHM_LOOK_MAX)
    if mincore(<uint8_t *> memory + at, (pages + 1) * PAGE_SIZE, found) < 0:
        return 0
    # If this process could not open the file for writing, the kernel reports every page as present, even the extra
    # page, which never is. The kernel decides once for all pages of a look, so the extra page shows a useless answer,
    # also if the file's owner changes the mode.
    if found[pages] & 1:
        return 0
    while n < pages and found[n] & 1:
        n += 1
    return n * PAGE_SIZE


cdef bint shm_slice_present(int fd, const void *memory, size_t at, size_t size, bint trusted) noexcept nogil:
    cdef uint8_t found[SHM_LOOK_PAGES]
    cdef size_t length = min(shm_pages(size) - at, <size_t> SHM_SLICE)
    cdef int64_t pages = cached_pages(fd, at, length)
    cdef size_t i
    assert_that(at % PAGE_SIZE == 0 and length > 0)
    # cachestat fails where mincore would report every page as present: so its answer is true.
    if pages >= 0:
        return <size_t> pages * PAGE_SIZE >= length
    if not trusted or mincore(<uint8_t *> memory + at, length, found) < 0:
        return False
    for i in range(length // PAGE_SIZE):
        if not found[i] & 1:
            return False
    return True


cdef bint shm_allow(void *memory, size_t size, int protection) noexcept nogil:
    if mprotect(memory, shm_pages(size), protection) < 0:
        return False
    munmap(<uint8_t *> memory + shm_pages(size), PAGE_SIZE)
    return True
