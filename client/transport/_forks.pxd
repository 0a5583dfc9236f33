"""How an object knows that this process is a fork of its creator; and Buffers' private memory in a fork.

Memory for a server is a shared mapping, and a child would share it with its parent. Such memory is copied before each
fork, and the copy takes its place in the child. So the memory acts like ordinary memory: the child has the contents of
the moment of the fork, and writes only to its own copy. Any thread may call the functions, with or without the GIL.
"""

cdef struct forked_memory:
    char *data               # NULL: the memory is not in the list of memory to copy
    size_t size
    void *copy               # made before a fork, and used or freed right after it
    bint lost                # in a forked child: there was no memory for the copy, so an access would crash
    forked_memory *next
    forked_memory *prev

# The number of forks between the process that imported this module and this process. An object keeps the number of its
# creator: if fork_count differs, this process is a fork.
cdef unsigned int fork_count() noexcept nogil
# From now on each forked child has this shared mapping (a Buffer's) for itself. `one` must not move until stop_copying.
cdef void copy_at_forks(forked_memory *one, char *data, size_t size) noexcept nogil
# Takes memory out of the list before it is freed. Does nothing for memory not in the list.
cdef void stop_copying(forked_memory *one) noexcept nogil
