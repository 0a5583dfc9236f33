"""soft_shm: memory that processes share, as memfds with seals."""

# A memfd of this size, not yet sealed. -1 with errno.
cdef int shm_memfd(const char *name, size_t size) noexcept nogil
# A memfd that only this mapping can change. *fd is its descriptor, for others to map. NULL with errno.
cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil
# Maps a memfd that a peer has sent. NULL, unless no access to it can end in SIGBUS: it cannot shrink below this size.
cdef void *shm_map(int fd, size_t size, int protection) noexcept nogil
