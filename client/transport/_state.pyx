"""See _state.pxd."""

from libc.string cimport memset

from rmemcached.sys.linux cimport pthread_atfork


cdef void after_fork_in_child() noexcept nogil:
    # The holder of the lock does not exist in the child.
    memset(&shared_state, 0, sizeof(shared_state))


pthread_atfork(NULL, NULL, after_fork_in_child)
