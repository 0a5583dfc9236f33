"""Takes over the items of a memory file, before the store's threads start (docs/warm-restart.md).

Nothing in the file is trusted. Every field used is checked first: an item that does not hold together is dropped and
counted, and its memory is free. Free lists, LRU queues, references and the hash table are made anew. If the process is
killed during recovery, the next recovery finds the same items.

Of two items with the same key the higher CAS value wins: a killed thread had not yet unlinked the item superseded, so
no client has an answer to the store, and either item is right. A chained item is taken over whole or not at all.

Pages with old chunk sizes become foreign (foreign.pxd).
"""

cdef enum:
    RECOVER_RECENT = 4096       # queues are in the order of last use: to the second for this many seconds,
    RECOVER_STEPS = 256         # ... and to this part of an age that is twice as long, and so on
    RECOVER_BUCKETS = RECOVER_RECENT + 20 * RECOVER_STEPS

cdef struct recovered:          # constant after store_create
    uint64_t items              # taken over
    uint64_t dropped            # damaged, too large now, or superseded by a killed thread
    uint64_t expired            # expired or flushed meanwhile
    int64_t ns                  # how long the recovery took

# For store_create, after all parts are made. False: no memory, or the file system has no space for a part of the file
# that was missing.
cdef bint recover(store *s) noexcept nogil
# Marks the pages of classes whose chunk size has changed as foreign, before memory_file_begin writes the new sizes.
cdef void recover_mark_foreign(store *s) noexcept nogil
