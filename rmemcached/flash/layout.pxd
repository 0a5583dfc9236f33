"""External storage as a whole. flash.pxd includes the parts from the lowest to the highest; a part calls only earlier
parts, except that requests have functions of their owners.

There are two locks: f.lock (pages.pxd), and io_queue.lock, which comes before f.lock. The store's locks come before
both.
"""

cdef struct flash:
    flash_config config          # constant
    store *store                 # constant from flash_start on, as is tuning
    const flash_settings *tuning  # the store's: atomic, since the command extstore changes them
    external_storage external    # constant
    external_values values       # constant
    int fds[PATHS]               # constant; -1: not open
    # f.lock, as the fields below up to the next comment
    pthread_mutex_t lock
    pthread_cond_t wbuf_cond     # there is a buffer to be written
    pthread_cond_t space_cond    # a buffer or a page has become free
    pthread_cond_t compact_cond  # compact_asked
    kept_map kept
    flash_page *pages            # the array is constant
    unsigned int page_count      # constant
    flash_file files[PATHS]
    flash_page *active[BUCKETS]  # the pages that give out space
    uint32_t version             # of the next page
    flash_wbuf wbufs[WBUFS]
    flash_wbuf *free_wbufs
    flash_wbuf *to_write
    flash_wbuf **to_write_tail
    flash_stats stats            # amounts and counters
    int64_t complained           # now_ns() of the last line on stderr
    bint compact_asked
    bint memory_scarce           # the writer is to look at memory soon
    # written under f.lock, read with relaxed loads
    uint64_t stop_writing        # the writer and the compactor are to end
    uint64_t stop_io             # the other threads, too
    # atomic
    uint64_t recache_counter
    uint64_t held                # external_values.held
    io_queue io
    flash_ring ring
    # the main thread's
    pthread_t *io_threads
    unsigned int io_started
    pthread_t write_thread
    bint write_started
    pthread_t writer
    bint writer_started
    pthread_t compactor
    bint compactor_started
    flash_restart restart        # the main thread's, until the store is there
    # the compactor's
    char *compact_buf
    bint compact_lent            # the present compaction has put values into the writer's page
