"""Writes facts about the whole store into the index's header, for clients with direct reads, if there is an index."""

# Writes the clock and its beat, the time of flush_all, the algorithm (when the daemon wants to hear of a hit), and how
# much of the arena is in use. Called by store_tick, and after a change of these facts. The caller holds no lock.
cdef void direct_tell(store *s) noexcept nogil
# direct_tell for a caller with the index's lock (a new index). The lock keeps older facts from being written last.
cdef void do_direct_tell(store *s) noexcept nogil
# Writes how much of the arena is in use. The caller holds the slabs lock, and has just taken a page of the arena.
cdef void direct_arena_grows(store *s) noexcept nogil
