"""The lines of `stats` about external storage, and the text of `stats extstore`."""

from rmemcached.flash.flash cimport flash_get_page, flash_get_stats, flash_page_count, flash_stats, page_stats
from rmemcached.protocol.stats_text cimport stat_append
from rmemcached.server.stats_lines cimport append_class, append_decimal


cdef void flash_gets_text(server *s, const thread_stats *t, stat_buf *out) noexcept nogil:
    if s.flash == NULL:
        return
    stat_append(out, b"get_extstore", t.get_extstore)
    stat_append(out, b"get_aborted_extstore", t.get_aborted_extstore)
    stat_append(out, b"get_oom_extstore", t.get_oom_extstore)
    stat_append(out, b"recache_from_extstore", t.recache_from_extstore)
    stat_append(out, b"miss_from_extstore", t.miss_from_extstore)
    stat_append(out, b"badcrc_from_extstore", t.badcrc_from_extstore)


cdef void flash_text(server *s, stat_buf *out) noexcept nogil:
    cdef flash_stats st
    if s.flash == NULL:
        return
    flash_get_stats(s.flash, &st)
    append_decimal(out, b"extstore_memory_pressure", b"%.2f", <double>st.memory_pressure / 100)
    stat_append(out, b"extstore_compact_lost", st.compact_lost)
    stat_append(out, b"extstore_compact_rescues", st.compact_rescues)
    stat_append(out, b"extstore_compact_resc_cold", st.compact_resc_cold)
    stat_append(out, b"extstore_compact_resc_old", st.compact_resc_old)
    stat_append(out, b"extstore_compact_skipped", st.compact_skipped)
    stat_append(out, b"extstore_page_allocs", st.page_allocs)
    stat_append(out, b"extstore_page_evictions", st.page_evictions)
    stat_append(out, b"extstore_page_reclaims", st.page_reclaims)
    stat_append(out, b"extstore_pages_free", st.pages_free)
    stat_append(out, b"extstore_pages_used", st.pages_used)
    stat_append(out, b"extstore_objects_evicted", st.objects_evicted)
    stat_append(out, b"extstore_objects_read", st.objects_read)
    stat_append(out, b"extstore_objects_written", st.objects_written)
    stat_append(out, b"extstore_objects_used", st.objects_used)
    stat_append(out, b"extstore_bytes_evicted", st.bytes_evicted)
    stat_append(out, b"extstore_bytes_written", st.bytes_written)
    stat_append(out, b"extstore_bytes_read", st.bytes_read)
    stat_append(out, b"extstore_bytes_used", st.bytes_used)
    stat_append(out, b"extstore_bytes_fragmented", st.bytes_fragmented)
    stat_append(out, b"extstore_limit_maxbytes", st.limit_maxbytes)
    stat_append(out, b"extstore_io_queue", st.io_queue)
    stat_append(out, b"extstore_io_errors", st.io_errors)
    stat_append(out, b"extstore_pages_resting", st.pages_resting)


cdef void flash_pages_text(server *s, stat_buf *out) noexcept nogil:
    cdef page_stats page
    cdef unsigned int i
    if s.flash == NULL:
        return
    for i in range(flash_page_count(s.flash)):
        flash_get_page(s.flash, i, &page)
        append_class(out, b"", <int>i, b"version", page.version)
        append_class(out, b"", <int>i, b"bytes", page.bytes)
        append_class(out, b"", <int>i, b"bucket", page.bucket)
        append_class(out, b"", <int>i, b"free_bucket", page.free_bucket)
