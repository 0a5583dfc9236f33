"""Whether this process is an object's creator, or a fork of the creator; and memory that a fork has for itself.

Memory for a server is a shared mapping, and a child would share it with its parent. Such memory is copied before each
fork, and the copy takes its place in the child. So the memory acts like ordinary memory: the child has the contents of
the moment of the fork, and writes only to its own copy. Any thread, with or without the GIL.
"""

cdef struct forked_memory:
    char *data               # NULL: not, or not any more, in the list of memory to copy
    size_t size
    void *copy               # while the process forks
    bint lost                # in a forked child: there was no memory for the copy, so an access would crash
    forked_memory *next
    forked_memory *prev

# The number of forks between this process and the importer of the module.
cdef unsigned int fork_count() noexcept nogil
# From now on each forked child has this shared mapping for itself. The structure must not move.
cdef void copy_at_forks(forked_memory *one, char *data, size_t size) noexcept nogil
# No more copies: the memory is about to go. Does nothing for memory not in the list.
cdef void stop_copying(forked_memory *one) noexcept nogil
