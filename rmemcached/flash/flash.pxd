"""External storage: values on flash, with their keys and headers in memory. memcached: extstore.c, storage.c.

The files are cut into pages. A page belongs to a bucket while it has values, so values with the same fate lie together.
A writer thread takes the items that eviction would take next, puts their values into a write buffer, and puts headers
(ITEM_HDR) in their place. A thread writes full buffers to the device. A get of a header has its value read by a pool of
threads, into an item of the store that is not linked; the reply waits meanwhile (protocol/conn.pxd, resp_wait). When
pages become scarce, a compactor thread copies the remaining values of an old page elsewhere. Without a page to compact,
the oldest page is dropped with its values.

A value's place is a page, the page's version and an offset (item_hdr). A page gets a new version with each new use, so
a header of an earlier use is recognized: its get is a miss.

Any thread may call the functions here, except flash_create to flash_destroy: the main thread's. A `bint` is False for a
failure. The engine never waits for a device with an item lock or its own lock held.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.stat cimport struct_stat
from posix.uio cimport iovec

from rmemcached.logger cimport logger
from rmemcached.protocol.conn cimport conn, external_result, external_values, mc_resp, resp_wait
from rmemcached.store.store cimport external_storage, flash_settings, item, item_hdr, store, victim
from rmemcached.sys.io_uring cimport io_uring_params, io_uring_sqe
from rmemcached.sys.linux cimport pthread_cond_t, pthread_mutex_t, pthread_t

cdef enum:                       # memcached's buckets of pages
    BUCKET_DEFAULT
    BUCKET_COMPACT               # values that a compaction has kept
    BUCKET_CHUNKED               # values of chained items
    BUCKET_LOWTTL                # values with short lives
    BUCKET_COLDCOMPACT           # with pages of its own: kept values that nobody has fetched
    BUCKET_OLD                   # with pages of its own: values of the oldest pages
    BUCKETS

cdef enum:
    PATHS = 64                   # files, at most
    PAGES = 65534                # pages of all files together, at most, as in memcached (options.py, EXT_PAGES)

cdef struct flash_path:          # a file, constant
    const char *file
    uint64_t pages
    unsigned int bucket          # its pages are kept for this bucket. BUCKET_DEFAULT: for all buckets

cdef enum io_kind:               # who reads
    IO_AUTO                      # the ring, if the kernel has one
    IO_THREADS                   # the pool
    IO_URING

cdef struct flash_config:
    flash_path paths[PATHS]
    unsigned int npaths
    uint64_t page_size           # bytes of a page
    uint64_t wbuf_size           # bytes of a write buffer; page_size is a multiple
    io_kind io
    unsigned int io_threads      # of the pool
    unsigned int io_depth        # reads taken by a thread of the pool at once
    bint verbose                 # a line on stderr says which readers there are
    const char *memory_file      # -e: values and their headers outlive the daemon (kept.pxd). NULL: none
    logger *log

cdef struct flash_stats:         # of `stats`, without the counters in thread_stats
    uint64_t memory_pressure     # hundredths of a percent
    uint64_t compact_lost
    uint64_t compact_rescues
    uint64_t compact_resc_cold
    uint64_t compact_resc_old
    uint64_t compact_skipped
    uint64_t page_allocs
    uint64_t page_evictions
    uint64_t page_reclaims
    uint64_t pages_free
    uint64_t pages_used
    uint64_t objects_evicted
    uint64_t objects_read
    uint64_t objects_written
    uint64_t objects_used
    uint64_t bytes_evicted
    uint64_t bytes_written
    uint64_t bytes_read
    uint64_t bytes_used
    uint64_t bytes_fragmented
    uint64_t limit_maxbytes
    uint64_t io_queue
    uint64_t io_errors           # failed writes, and pages that a compaction could not read
    uint64_t pages_resting       # after such an error, without a use for a while

cdef struct page_stats:          # of `stats extstore`
    uint64_t version             # 0: free
    uint64_t bytes
    unsigned int bucket
    unsigned int free_bucket
    bint active                  # values are being written to it

cdef struct flash                # layout.pxd

# --- the main thread ---
# Opens and locks the files, and makes the tables. With a memory file the tables come with the store (restart.pxd).
# NULL: the line in `why` says why.
cdef flash *flash_create(const flash_config *config, char *why, size_t size) noexcept nogil
# For store_config.external.
cdef const external_storage *flash_external(flash *f) noexcept nogil
# For conn_thread.external.
cdef const external_values *flash_values(flash *f) noexcept nogil
# Starts the threads, when the store is there. False: the system refuses.
cdef bint flash_start(flash *f, store *s) noexcept nogil
# Ends the writer and the compactor, while workers still run: nothing is written any more, and reads go on.
cdef void flash_stop_writing(flash *f) noexcept nogil
# Ends the other threads, after the workers. Reads under way end first, and queued reads are given up; the results are
# posted. A second call is harmless.
cdef void flash_stop(flash *f) noexcept nogil
# Frees everything, after the store. The files stay, without meaning unless there is a memory file.
cdef void flash_destroy(flash *f) noexcept nogil

# --- any thread ---
cdef void flash_get_stats(flash *f, flash_stats *out) noexcept nogil
cdef unsigned int flash_page_count(flash *f) noexcept nogil
cdef void flash_get_page(flash *f, unsigned int number, page_stats *out) noexcept nogil

include "record.pxd"
include "kept.pxd"
include "pages.pxd"
include "queue.pxd"
include "ring.pxd"
include "io.pxd"
include "fetch.pxd"
include "compactor.pxd"
include "files.pxd"
include "restart.pxd"
include "writer.pxd"
include "life.pxd"
include "layout.pxd"
