"""The table of pages, and the write buffers. Everything here is guarded by f.lock, the innermost of all locks, except
constants; a holder of the lock takes no lock and makes no system call.

Space of a page is given out through its write buffers. A value is readable from its buffer until the buffer is on the
device. `refs` keeps a page, and `reads` a buffer, for reads under way.
"""

cdef struct flash_wbuf:
    char *buf                    # constant
    kept_wbuf *kept              # constant: the same for the next daemon
    flash_page *page             # NULL: free
    uint32_t offset              # in the page, of the buffer's first byte
    uint32_t used                # bytes given out
    uint32_t copies              # values still being copied into the buffer
    uint32_t reads               # values being read from the buffer
    bint full                    # no more space is given out; written when `copies` is 0
    bint written                 # on the device: free when `reads` is 0
    flash_wbuf *next             # in the list of free buffers, or of buffers to be written

cdef struct flash_page:
    int fd                       # constant, as are the fields before version
    uint16_t id
    unsigned int path            # the file's number
    kept_page *kept              # the same for the next daemon
    uint64_t offset              # in the file
    unsigned int free_bucket
    uint32_t version             # of the present use; 0: free
    uint32_t refs                # reads and compactions under way
    uint32_t buffers             # write buffers of the page
    uint64_t allocated           # bytes given to write buffers
    uint64_t objects
    uint64_t bytes               # of these objects
    unsigned int bucket
    bint active                  # has write buffers, or will get some
    bint closed                  # its values are gone: free when nothing refers to it
    bint compacting              # kept by page_keep: not dropped
    bint reserved                # the file has space on the device for the page
    bint failed                  # after an I/O error: rests before its next use
    int64_t closed_at            # now_ns(), of a closed page
    int64_t rests_until          # now_ns(), of a resting page
    flash_wbuf *filling          # the buffer that gives out space
    flash_page *next             # in a list of its file

cdef struct flash_file:          # the pages of a file that have no use now
    flash_page *free             # with space on the device
    flash_page *fresh            # without
    uint64_t free_count
    uint64_t fresh_count
    flash_page *resting          # in the order of their errors
    flash_page **resting_tail
    int64_t full_until           # now_ns() when to ask the device for space again; 0: not refused
    int64_t bad_until            # ... when to open a page again, after an I/O error

cdef enum space_result:
    SPACE_OK
    SPACE_LATER                  # no free buffer or page at the moment

cdef struct flash_space:         # space for a record
    item_hdr where
    char *to                     # where to write the record
    flash_wbuf *wbuf
    uint32_t length

# Makes the pages; the files are open. False: no memory.
cdef bint pages_init(flash *f, const int *fds) noexcept nogil
# Gives free pages and buffers out from now on: kept.pxd has been mapped. The pages have their values, if any.
cdef void pages_begin(flash *f) noexcept nogil
cdef void pages_destroy(flash *f) noexcept nogil
# Takes space for a record in a page of the bucket, and a new page if need be: a system call, so no lock is held.
# may_drop: without a free page, drops the oldest page. The caller writes the record and then calls space_written.
cdef space_result space_take(flash *f, unsigned int bucket, uint32_t length, bint may_drop,
                             flash_space *out) noexcept nogil
# Takes space in the bucket's present page, as long as the page has room.
cdef space_result space_take_present(flash *f, unsigned int bucket, uint32_t length, flash_space *out) noexcept nogil
# Gives a bucket without a page a page. may_drop: as above. True: the bucket has got a page.
cdef bint bucket_open(flash *f, unsigned int bucket, bint may_drop) noexcept nogil
# The record is in its place: a header may refer to it.
cdef void space_written(flash *f, const flash_space *space) noexcept nogil
# Waits until a buffer or a page may be free, at most so many microseconds. Returns early when the threads are to stop.
cdef void space_wait(flash *f, unsigned int usec) noexcept nogil
# space_wait for a caller with the lock.
cdef void do_space_wait(flash *f, unsigned int usec) noexcept nogil
# The value at this place is no longer needed.
cdef void value_gone(flash *f, const item_hdr *where, uint32_t length) noexcept nogil
cdef bint value_exists(flash *f, const item_hdr *where) noexcept nogil

cdef struct flash_source:        # where to read a value
    flash_page *page
    const char *data             # in a buffer; NULL: on the device
    flash_wbuf *wbuf             # of data
# Finds a value and keeps it for a read, which source_release ends. False: the value is gone.
cdef bint source_find(flash *f, const item_hdr *where, uint32_t length, flash_source *out) noexcept nogil
cdef void source_release(flash *f, flash_source *source) noexcept nogil
# Gives back the buffer of a value to be read later, and keeps the page; looks for the buffer again.
cdef void source_close(flash *f, flash_source *source) noexcept nogil
cdef void source_open(flash *f, const item_hdr *where, flash_source *source) noexcept nogil

# The next buffer to be written, taken from the list; NULL: the threads are to stop; buffers may be left. Waits.
cdef flash_wbuf *wbuf_next(flash *f) noexcept nogil
# The buffer is on the device or, with an error, will never be: then the page's values are gone.
cdef void wbuf_done(flash *f, flash_wbuf *wbuf, int error) noexcept nogil

# Keeps a page for a compaction, ended by page_release. False: the page has another use.
cdef bint page_keep(flash *f, unsigned int number, uint32_t version) noexcept nogil
# dropped: its values are gone, and the page is free when no read refers to it.
cdef void page_release(flash *f, unsigned int number, bint dropped) noexcept nogil
# Drops a page with its values, as an eviction. failed: after an I/O error.
cdef void page_evict(flash *f, unsigned int number, uint32_t version, bint failed) noexcept nogil
# The name of the page's file.
cdef const char *page_file(flash *f, const flash_page *p) noexcept nogil
# Whether a closed page is about to be free. The caller holds the lock, as of walk_pause.
cdef bint page_is_coming(const flash_page *p, int64_t now) noexcept nogil
# Lets other threads have the lock at times, in a walk over all pages; called with each page's number.
cdef void walk_pause(flash *f, unsigned int i) noexcept nogil
