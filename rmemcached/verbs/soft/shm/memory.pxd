# soft_shm: memory that processes share, as memfds with seals.

# A memfd of this size, not yet sealed. -1 with errno.
cdef int shm_memfd(const char *name, size_t size) noexcept nogil
# Memory that only this mapping can change. *fd is what others map it with. NULL with errno.
cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil
# Maps what a peer sent. NULL unless no access to it can end in SIGBUS: memory that cannot shrink, of this size.
cdef void *shm_map(int fd, size_t size, int protection) noexcept nogil
