"""soft_shm: memory that processes share, as memfds with seals."""

# A memfd of this size, not yet sealed. -1 with errno.
cdef int shm_memfd(const char *name, size_t size) noexcept nogil
# A memfd that only this mapping can change. *fd is its descriptor, for others to map. NULL with errno.
cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil
# Whether a descriptor that a peer has sent can be mapped at all: a memfd that cannot shrink below this size, so that no
# access to it ends in SIGBUS.
cdef bint shm_mappable(int fd, size_t size) noexcept nogil
# Whether the file has just the pages for this size, and cannot grow: what is done for all of it has that bound.
cdef bint shm_has_size(int fd, size_t size) noexcept nogil
# Maps such a memfd. Mapping neither touches nor locks a page, also with mlockall(MCL_FUTURE). `paid`: only if it has
# just these pages, all are there, and stay. NULL: not now, or not with this protection; nobody is to blame.
cdef void *shm_map(int fd, size_t size, int protection, bint paid) noexcept nogil
