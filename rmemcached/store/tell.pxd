"""What clients that read without asking are told of the whole store: the header of direct_index, if there is one."""

# The clock, and that it is looked after; flush_all; when the daemon wants to hear of a hit; how much of the arena is in
# use. The caller holds no lock.
cdef void direct_tell(store *s) noexcept nogil
# The same with the index's lock held: of two that tell, the later one has the last word.
cdef void do_direct_tell(store *s) noexcept nogil
# With the slabs lock held: more of the arena is in use.
cdef void direct_arena_grows(store *s) noexcept nogil
