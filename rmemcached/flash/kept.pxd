"""What a daemon leaves to the next one, with a memory file (-e): the table of pages and the write buffers, in the file
FILE.flash beside the memory file. Without a memory file the same lies in plain memory, and ends with the daemon.

As in the memory file, no log is needed: a store that has been executed is in the file, whatever ends the process. So
the order of stores counts, here and in pages.pyx:

- A page has its new version before any of its bytes is written, and no version as soon as its values are gone. A
  version is given out once, so a version names its page: a header of an earlier use names no page.
- A buffer is entered with its page's version before a byte is given out, and leaves when it is on the device.
- A record has its length when its space is given out, so the next daemon finds the records behind a half-written
  record.

f.lock guards everything here. restart.pxd takes it over.
"""

cdef enum:
    WBUFS = BUCKETS + 2          # a buffer for each bucket, and buffers being written
    KEPT_VERSION = 1             # changes with this layout, or with the records
    KEPT_BLOCK = 4096
    KEPT_PATH = 4096             # bytes of a path
    LABEL = 4096                 # bytes for the label at a file's beginning (restart.pxd)

cdef struct flash_page           # pages.pxd

cdef struct kept_page:
    uint32_t version             # of the present use; 0: the page has no values
    uint32_t allocated           # bytes given to write buffers
    uint32_t number              # of the page in its file, constant
    uint8_t path                 # of the page, constant
    uint8_t bucket
    uint16_t pad

cdef struct kept_wbuf:
    uint32_t version             # of the buffer's page; 0: nothing is to be written
    uint32_t offset              # in the page
    uint32_t used                # bytes given out

cdef struct kept_head:
    # constant in a file
    char magic[8]
    uint32_t version
    uint32_t page_count
    uint64_t memory_file         # the memory file's number (memory_file_id): the headers are there
    uint64_t page_size
    uint64_t wbuf_size
    uint64_t labels[PATHS]       # of the files; 0: none
    uint64_t check               # of the fields before
    # changing
    uint32_t next_version        # of the next page
    kept_wbuf wbufs[WBUFS]

cdef struct kept_map:            # constant, once mapped
    kept_head *head
    kept_page *pages
    char *buffers                # WBUFS of them, each wbuf_size bytes long
    size_t length                # of all

# Bytes from the head to the buffers.
cdef size_t kept_buffers_at(unsigned int page_count) noexcept nogil
# Maps table and buffers from a file; fd -1: from fresh memory. False: the system refuses.
cdef bint kept_open(flash *f, int fd) noexcept nogil
cdef void kept_close(flash *f) noexcept nogil
cdef uint64_t kept_check(const kept_head *head) noexcept nogil
# Bytes at the beginning of a page's part that belong to the label of the page's file.
cdef uint32_t label_room(flash *f, const flash_page *p, uint32_t offset) noexcept nogil
# The path of FILE.flash, and an ending. out: KEPT_PATH bytes. False: the path is too long, and the problem is noted.
cdef bint kept_file(flash *f, const char *ending, char *out) noexcept nogil
