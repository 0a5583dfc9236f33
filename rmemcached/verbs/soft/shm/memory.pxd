"""soft_shm: memory shared by processes, as memfds with seals.

The maker of a memfd seals it. The receiver only queries it, by calls that wait for no lock within the peer's reach:
fcntl(F_GET_SEALS), and for files with seals fstat, fstatfs, mmap, mincore, cachestat, mprotect, munmap. F_ADD_SEALS and
SEEK_HOLE are not among these: they take the inode's lock, and a write to the file holds the lock for as long as its
source is missing.
"""

cdef enum:
    SHM_LOOK_PAGES = 4096            # of a mapping with its extra page, at most: the kernel looks at so many at a time
    SHM_LOOK_MAX = (SHM_LOOK_PAGES - 1) * PAGE_SIZE
    SHM_SLICE = 4 << 20              # octets of a larger file examined at a time

# Makes a memfd of this size, without seals or a mapping. Returns the descriptor, or -1 with errno. The caller maps the
# memfd and adds the seals: a region with remote write gets its last seals after the peer has mapped it (region.pyx).
cdef int shm_memfd(const char *name, size_t size) noexcept nogil
# Makes a memfd of this size, maps the memfd, and adds all seals at once. So only the returned mapping can write to the
# memfd. *fd is the descriptor: others can map it for reading. Returns NULL with errno on failure.
cdef void *shm_make(const char *name, size_t size, int *fd) noexcept nogil
# Whether a descriptor sent by a peer can be mapped at all: a memfd that cannot shrink below this size, so no access to
# the memory ends in SIGBUS.
cdef bint shm_mappable(int fd, size_t size) noexcept nogil
# Whether the file has only pages for this size, and cannot grow: so the work on the whole file is bounded.
cdef bint shm_has_size(int fd, size_t size) noexcept nogil
# For a memfd that cannot shrink (made here, or checked by shm_mappable): whether no page can be taken out of the memfd,
# and no process can map the memfd for writing from now on.
cdef bint shm_is_sealed(int fd) noexcept nogil

# Maps a memfd checked by shm_mappable without any right, with one extra page, which no file of this size has. Mapping
# neither touches nor locks a page, also with mlockall(MCL_FUTURE). NULL: the system refuses, through no fault of the
# peer.
cdef void *shm_map(int fd, size_t size) noexcept nogil
# Unmaps a mapping of shm_map that still has its extra page.
cdef void shm_unmap(void *memory, size_t size) noexcept nogil
# The number of octets in memory now, from the page at `at` up to the first missing page.
# The mapping has the same rights everywhere, and at most SHM_LOOK_MAX octets. 0 also if the system gives no answer.
cdef size_t shm_present(const void *memory, size_t at, size_t size) noexcept nogil
# For a slice of a larger file: whether the SHM_SLICE octets from `at` on, or the rest of the file, are all in memory
# now.
# `trusted`: no process with the file would deceive this process. For untrusted files the kernel must have cachestat.
cdef bint shm_slice_present(int fd, const void *memory, size_t at, size_t size, bint trusted) noexcept nogil
# Gives the mapping its rights, and unmaps the extra page. False: the system refuses these rights.
cdef bint shm_allow(void *memory, size_t size, int protection) noexcept nogil
