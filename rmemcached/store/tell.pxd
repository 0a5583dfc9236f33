"""Facts about the whole store for clients with direct reads, in the header of direct_index, if there is an index."""

# Writes the clock and its beat, the time of flush_all, the algorithm (when the daemon wants to hear of a hit), and how
# much of the arena is in use. The caller holds no lock.
cdef void direct_tell(store *s) noexcept nogil
# Writes them with the index's lock held: of two threads, the later has the last word.
cdef void do_direct_tell(store *s) noexcept nogil
# Writes how much of the arena is in use, when this has grown. The caller holds the slabs lock.
cdef void direct_arena_grows(store *s) noexcept nogil
