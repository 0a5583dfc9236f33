"""Whether this process is the one that made something, or a fork of it."""

# How many forks separate this process from the one that imported the module.
cdef unsigned int fork_count() noexcept nogil
