"""Whether this process is the one that made something, or a fork of it; and memory that a fork has for itself.

Memory that a server maps is a shared mapping, which a child would share with its parent. It is copied before each fork,
and the copy takes its place in the child. In between it is as ordinary memory: the child has what was there, and writes
only to its own. Any thread, with or without the GIL.
"""

cdef struct forked_memory:
    char *data               # NULL: it is not, or not any more, among those that are copied
    size_t size
    void *copy               # while the process forks
    bint lost                # a forked child: there was no memory for the copy, and there is none here
    forked_memory *next
    forked_memory *prev

# How many forks separate this process from the one that imported the module.
cdef unsigned int fork_count() noexcept nogil
# From now on each forked child has this shared mapping for itself. The structure stays where it is.
cdef void copy_at_forks(forked_memory *one, char *data, size_t size) noexcept nogil
# No more: its memory is about to go. Does nothing for what is not copied.
cdef void stop_copying(forked_memory *one) noexcept nogil
