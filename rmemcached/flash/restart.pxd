"""Values of the last daemon, with a memory file: the store calls these hooks (external_storage) while it takes over the
headers.

Each file begins with a label: a random number, which FILE.flash names as well. A file with another label, or without a
label, has no values for this daemon. Nothing in FILE.flash is trusted. A page counts if it lies within a file of the
last daemon, whatever the file's place in the options is now; and a header counts if its version names a page, and its
value lies in the part given out. A read then verifies the record, whose checksum covers version and offset.

restart_begin writes buffers that are not on the device yet. Else FILE.flash stays as it is until restart_end puts a new
one in its place: after a kill meanwhile the next daemon finds the same.
"""

cdef struct flash_restart:
    uint64_t labels[PATHS]       # of the files, as they are; 0: none
    bint kept[PATHS]             # the file has the values of the last daemon
    uint64_t *versions           # from restart_begin to restart_end: version << 16 | page id, sorted
    unsigned int count           # ... of them
    uint64_t memory_file         # the memory file's number
    uint64_t dropped             # headers without value
    char why[512]                # the first reason; empty: the last daemon had dropped their pages
    char problem[512]            # a text for the store

# Whether the daemon may use FILE.flash, before a start changes anything. False: the line in `why` says why not.
cdef bint restart_check(flash *f, char *why, size_t size) noexcept nogil
# Without a memory file: empties the files, and labels them, so that the next start knows them. False: as above.
cdef bint restart_without(flash *f, char *why, size_t size) noexcept nogil
# external_storage.begin, restore, end
cdef const char *restart_begin(void *arg, uint64_t memory_file, bint fresh) noexcept nogil
cdef bint restart_header(void *arg, item *it) noexcept nogil
cdef const char *restart_end(void *arg) noexcept nogil
