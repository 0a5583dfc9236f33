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


cdef void *shm_map(int fd, size_t size, int protection) noexcept nogil:
    cdef int seals = fcntl(fd, F_GET_SEALS)
    cdef struct_stat status
    cdef struct_statfs system
    cdef void *memory
    if seals < 0 or not seals & F_SEAL_SHRINK or fstat(fd, &status) < 0 or fstatfs(fd, &system) < 0:
        return NULL
    # Huge pages are another file system. They may be missing when they are touched.
    if system.f_type != TMPFS_MAGIC or status.st_size < 0 or <uint64_t> status.st_size < size:
        return NULL
    memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0)
    return NULL if memory == MAP_FAILED else memory
