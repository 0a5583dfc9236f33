# soft_shm: memory that processes share; see memory.pxd.


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
    # Huge pages are another file system. They may be missing when they are touched.
    return system.f_type == TMPFS_MAGIC and status.st_size >= 0 and <uint64_t> status.st_size >= size


cdef bint shm_has_size(int fd, size_t size) noexcept nogil:
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef struct_stat status
    if seals < 0 or not seals & F_SEAL_GROW or fstat(fd, &status) < 0 or status.st_size < 0:
        return False
    return (<uint64_t> status.st_size + PAGE_SIZE - 1) // PAGE_SIZE == (<uint64_t> size + PAGE_SIZE - 1) // PAGE_SIZE


cdef bint shm_is_paid(int fd, size_t size) noexcept nogil:
    """Whether touching these pages allocates none, now and later: they are there, and nobody can take them out.

    A page that a process allocates by touching it is charged to that process, and stays for as long as anybody has the
    file. This seal forbids to punch holes, and mappings that exist keep their rights.
    """
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef long whole
    # Adding one takes the file's lock, which its owner may hold.
    if seals < 0 or (not seals & F_SEAL_FUTURE_WRITE and fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0):
        return False
    # The search for a hole goes through the whole file.
    if not shm_has_size(fd, size):
        return False
    whole = lseek(fd, 0, SEEK_HOLE)
    return whole >= 0 and <uint64_t> whole >= size


cdef void *shm_map(int fd, size_t size, int protection, bint paid) noexcept nogil:
    # With mlockall(MCL_FUTURE) a mapping that can be read would be filled and locked here.
    cdef void *memory = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0)
    if memory == MAP_FAILED:
        return NULL
    # The seal comes after the mapping, which otherwise could not be made writable.
    if (munlock(memory, size) < 0 or (paid and not shm_is_paid(fd, size))
            or mprotect(memory, size, protection) < 0):
        munmap(memory, size)
        return NULL
    return memory
