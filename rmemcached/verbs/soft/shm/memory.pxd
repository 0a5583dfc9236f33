"""soft_shm: memory that processes share, as memfds with seals.

Whoever makes a memfd seals it. Whoever receives one only asks, by calls that wait for no lock that the peer can hold:
fcntl(F_GET_SEALS), and for files with seals fstat, fstatfs, mmap, mincore, cachestat, mprotect, munmap. F_ADD_SEALS and
SEEK_HOLE are not among these: they take the inode's lock, which a write to the file holds for as long as its source is
missing.
"""

cdef enum:
    SHM_LOOK_PAGES = 4096            # of a mapping, and the page more: the kernel looks at so many at a time
    SHM_LOOK_MAX = (SHM_LOOK_PAGES - 1) * PAGE_SIZE
    SHM_SLICE = 4 << 20              # octets of a larger file that are looked at at a time

# A memfd of this size, not yet sealed. -1 with errno.
cdef int shm_memfd(const char *name, size_t size) noexcept nogil
# A memfd that only this mapping can change. *fd is its descriptor, for others to map. NULL with errno.
cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil
# Whether a descriptor that a peer has sent can be mapped at all: a memfd that cannot shrink below this size, so that no
# access to it ends in SIGBUS.
cdef bint shm_mappable(int fd, size_t size) noexcept nogil
# Whether the file has just the pages for this size, and cannot grow: what is done for all of it has that bound.
cdef bint shm_has_size(int fd, size_t size) noexcept nogil
# Whether no page can be taken out of the file, and nobody can map it for writing from now on.
cdef bint shm_is_sealed(int fd) noexcept nogil

# Maps such a memfd without any right, and one page more, which no file of this size has. Mapping neither touches nor
# locks a page, also with mlockall(MCL_FUTURE). NULL: not now; nobody is to blame.
cdef void *shm_map(int fd, size_t size) noexcept nogil
cdef void shm_unmap(void *memory, size_t size) noexcept nogil
# How many octets are there from `at` on, the beginning of a page, without a hole: whole pages, in memory now. The
# mapping has the same rights everywhere, and at most SHM_LOOK_MAX octets. 0 also if the system does not tell.
cdef size_t shm_present(const void *memory, size_t at, size_t size) noexcept nogil
# The same for a slice of a larger file: whether the next SHM_SLICE octets are all there. `trusted`: nobody has the file
# who would deceive this process. Of the files of others it is told only if the kernel has cachestat.
cdef bint shm_slice_present(int fd, const void *memory, size_t at, size_t size, bint trusted) noexcept nogil
# Gives the mapping its rights, and takes the page more away. False: these rights cannot be had.
cdef bint shm_allow(void *memory, size_t size, int protection) noexcept nogil
