"""See _forks.pxd."""

from libc.stdlib cimport abort
from libc.string cimport memcpy

from rmemcached.sys.linux cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_FIXED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    mremap,
    munmap,
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef unsigned int count = 0
cdef pthread_mutex_t lock            # guards the list, and is held while the process forks
cdef forked_memory *copied = NULL


cdef void copy_at_forks(forked_memory *one, char *data, size_t size) noexcept nogil:
    global copied
    one.data = data
    one.size = size
    one.prev = NULL
    pthread_mutex_lock(&lock)
    one.next = copied
    if copied != NULL:
        copied.prev = one
    copied = one
    pthread_mutex_unlock(&lock)


cdef void stop_copying(forked_memory *one) noexcept nogil:
    global copied
    if one.data == NULL:
        return
    pthread_mutex_lock(&lock)
    if one.prev != NULL:
        one.prev.next = one.next
    else:
        copied = one.next
    if one.next != NULL:
        one.next.prev = one.prev
    one.data = NULL
    pthread_mutex_unlock(&lock)


cdef void before_fork() noexcept nogil:
    # Copy here, not in the child: the parent or a server may write to the memory right after the fork.
    cdef forked_memory *one
    pthread_mutex_lock(&lock)
    one = copied
    while one != NULL:
        one.copy = mmap(NULL, one.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if one.copy != MAP_FAILED:
            memcpy(one.copy, one.data, one.size)
        one = one.next


cdef void after_fork_in_parent() noexcept nogil:
    cdef forked_memory *one = copied
    while one != NULL:
        if one.copy != MAP_FAILED:
            munmap(one.copy, one.size)
        one = one.next
    pthread_mutex_unlock(&lock)


cdef bint replace(forked_memory *one) noexcept nogil:
    # Moves the copy to the place of the shared memory. False: there is no copy, or the system refuses.
    if one.copy == MAP_FAILED:
        return False
    return mremap(one.copy, one.size, one.size, MREMAP_MAYMOVE | MREMAP_FIXED, one.data) != MAP_FAILED


cdef void after_fork_in_child() noexcept nogil:
    global count, copied
    cdef forked_memory *one = copied
    count += 1
    while one != NULL:
        if not replace(one):
            # A crash at the first access is better than sharing unknown to the program.
            one.lost = True
            if mmap(one.data, one.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                    0) == MAP_FAILED:
                abort()
        one = one.next
    copied = NULL
    pthread_mutex_init(&lock, NULL)


cdef unsigned int fork_count() noexcept nogil:
    return count


pthread_mutex_init(&lock, NULL)
pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child)
