"""See _forks.pxd."""

from rmemcached.sys.linux cimport pthread_atfork

cdef unsigned int count = 0


cdef void after_fork_in_child() noexcept nogil:
    global count
    count += 1


cdef unsigned int fork_count() noexcept nogil:
    return count


pthread_atfork(NULL, NULL, after_fork_in_child)
