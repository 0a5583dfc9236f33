"""The text of `stats` and its subcommands: memcached's names, in memcached's order."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memset, strlen
from posix.unistd cimport getpid

from rmemcached import __version__

from rmemcached.sys.atomics cimport relaxed_load, relaxed_store
from rmemcached.sys.linux cimport RUSAGE_SELF, getrusage, rusage
from rmemcached.protocol.conn cimport (
    STATS_ANSWERED, STATS_RESET, STATS_UNKNOWN, conn, slab_counters, stats_result, thread_stats,
)
from rmemcached.protocol.stats_text cimport stat_append, stat_append_text, stat_buf
from rmemcached.protocol.stats_prefix cimport stats_prefix_clear, stats_prefix_on
from rmemcached.server.devices cimport devices_stats
from rmemcached.server.layout cimport WORKER_FDS, server, settings
from rmemcached.server.stats_conns cimport conns_text
from rmemcached.server.stats_flash cimport flash_gets_text, flash_pages_text, flash_text
from rmemcached.server.stats_lines cimport append_class, append_decimal, append_int, append_seconds, or_word, yes_no
from rmemcached.streams.tls cimport tls_certificate_age, tls_context, tls_options, tls_version_name
from rmemcached.server.watchers cimport watcher_stats, watchers_get_stats, watchers_reset_stats
from rmemcached.server.worker cimport READ_BUFFERS_SIZE
from rmemcached.store.store cimport (
    ITEM_UPDATE_INTERVAL, MAX_NUMBER_OF_SLAB_CLASSES, NUMBER_OF_QUEUES, class_stats, direct_stats, flash_settings,
    rel_time_t, store_config, store_copy_config, store_direct_stats, store_get_class_stats, store_get_stats,
    store_process_started, store_reset_stats, store_sizes, store_sizes_buckets, store_stats, store_time,
)

cdef enum:
    SUBCOMMANDS = 10

cdef struct statistics:
    const char *name
    void (*text)(server *s, stat_buf *out) noexcept nogil

cdef bytes _own_version = __version__.encode()
cdef const char *own_version = _own_version   # kept by the module


cdef void sum_threads(server *s, thread_stats *total) noexcept nogil:
    """Adds the workers' counters up. Each counter is read whole; together they are a snapshot only while no worker
    changes a counter."""
    cdef unsigned int i
    cdef size_t j
    memset(total, 0, sizeof(thread_stats))
    for i in range(s.settings.num_threads):
        for j in range(sizeof(thread_stats) // sizeof(uint64_t)):
            (<uint64_t *>total)[j] += relaxed_load(&(<uint64_t *>&s.workers[i].thread.stats)[j])


cdef uint64_t get_hits(const thread_stats *t, unsigned int clsid) noexcept nogil:
    """The number of gets with a hit in the class. clsid 0: in any class."""
    cdef uint64_t hits = 0
    cdef unsigned int i
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        if clsid == 0 or i & (MAX_NUMBER_OF_SLAB_CLASSES - 1) == clsid:
            hits += t.lru_hits[i]
    return hits


cdef void general_connections(server *s, const thread_stats *t, stat_buf *out) noexcept nogil:
    stat_append(out, b"max_connections", s.settings.maxconns)
    stat_append(out, b"curr_connections", relaxed_load(&s.curr_connections) - 1)
    stat_append(out, b"total_connections", relaxed_load(&s.total_connections))
    if s.settings.maxconns_fast:
        stat_append(out, b"rejected_connections", relaxed_load(&s.rejected_connections))
    stat_append(out, b"connection_structures", relaxed_load(&s.most_connections))
    stat_append(out, b"response_obj_oom", t.response_obj_oom)
    stat_append(out, b"response_obj_count", t.response_obj_count)
    stat_append(out, b"response_obj_bytes", t.response_obj_bytes)
    stat_append(out, b"read_buf_count", t.read_buf_count + s.settings.num_threads)
    stat_append(out, b"read_buf_bytes", t.read_buf_bytes + <uint64_t>s.settings.num_threads * READ_BUFFERS_SIZE)
    stat_append(out, b"read_buf_bytes_free", <uint64_t>s.settings.num_threads * READ_BUFFERS_SIZE)
    stat_append(out, b"read_buf_oom", t.read_buf_oom)
    stat_append(out, b"reserved_fds", WORKER_FDS * s.settings.num_threads)


cdef void tls_text(server *s, stat_buf *out) noexcept nogil:
    cdef tls_context *t = s.tls
    if t == NULL:
        return
    if s.settings.tls.session_cache:
        stat_append(out, b"ssl_new_sessions", relaxed_load(&t.new_sessions))
    stat_append(out, b"ssl_handshake_errors", relaxed_load(&t.handshake_errors))
    stat_append(out, b"ssl_proto_errors", relaxed_load(&t.proto_errors))
    stat_append(out, b"time_since_server_cert_refresh", tls_certificate_age(t))


cdef void general_commands(server *s, const thread_stats *t, const store_stats *st, stat_buf *out) noexcept nogil:
    cdef slab_counters c
    cdef int k
    cdef size_t j
    memset(&c, 0, sizeof(c))
    for k in range(MAX_NUMBER_OF_SLAB_CLASSES):
        for j in range(sizeof(slab_counters) // sizeof(uint64_t)):
            (<uint64_t *>&c)[j] += (<const uint64_t *>&t.slab[k])[j]
    stat_append(out, b"cmd_get", t.get_cmds)
    stat_append(out, b"cmd_set", c.set_cmds)
    stat_append(out, b"cmd_flush", t.flush_cmds)
    stat_append(out, b"cmd_touch", t.touch_cmds)
    stat_append(out, b"cmd_meta", t.meta_cmds)
    stat_append(out, b"get_hits", get_hits(t, 0))
    stat_append(out, b"get_misses", t.get_misses)
    stat_append(out, b"get_expired", st.get_expired)
    stat_append(out, b"get_flushed", st.get_flushed)
    flash_gets_text(s, t, out)
    stat_append(out, b"delete_misses", t.delete_misses)
    stat_append(out, b"delete_hits", c.delete_hits)
    stat_append(out, b"incr_misses", t.incr_misses)
    stat_append(out, b"incr_hits", c.incr_hits)
    stat_append(out, b"decr_misses", t.decr_misses)
    stat_append(out, b"decr_hits", c.decr_hits)
    stat_append(out, b"cas_misses", t.cas_misses)
    stat_append(out, b"cas_hits", c.cas_hits)
    stat_append(out, b"cas_badval", c.cas_badval)
    stat_append(out, b"touch_hits", c.touch_hits)
    stat_append(out, b"touch_misses", t.touch_misses)
    stat_append(out, b"store_too_large", t.store_too_large)
    stat_append(out, b"store_no_memory", t.store_no_memory)
    stat_append(out, b"auth_cmds", t.auth_cmds)
    stat_append(out, b"auth_errors", t.auth_errors)
    if s.settings.idle_timeout:
        stat_append(out, b"idle_kicks", t.idle_kicks)
        stat_append(out, b"idle_kicks_stalled", t.idle_kicks_stalled)
    stat_append(out, b"bytes_read", t.bytes_read)
    stat_append(out, b"bytes_written", t.bytes_written)


cdef void general_threads(server *s, const store_stats *st, const store_config *config, stat_buf *out) noexcept nogil:
    """Appends the work of the background threads."""
    if config.slab_reassign:
        stat_append(out, b"slab_reassign_rescues", st.slab_reassign_rescues)
        stat_append(out, b"slab_reassign_chunk_rescues", st.slab_reassign_chunk_rescues)
        stat_append(out, b"slab_reassign_inline_reclaim", st.slab_reassign_inline_reclaim)
        stat_append(out, b"slab_reassign_busy_items", st.slab_reassign_busy_items)
        stat_append(out, b"slab_reassign_busy_deletes", st.slab_reassign_busy_deletes)
        stat_append(out, b"slab_reassign_busy_nomem", st.slab_reassign_busy_nomem)
        stat_append_text(out, b"slab_reassign_last_busy_status", or_word(st.slab_reassign_last_busy_status, b"none"))
        stat_append(out, b"slab_reassign_running", st.slab_reassign_running)
        stat_append(out, b"slabs_moved", st.slabs_moved)
    if config.lru_crawler:
        stat_append(out, b"lru_crawler_running", st.lru_crawler_running)
        stat_append(out, b"lru_crawler_starts", st.lru_crawler_starts)
    if config.lru_maintainer:
        stat_append(out, b"lru_maintainer_juggles", st.lru_maintainer_juggles)
    stat_append(out, b"malloc_fails", st.malloc_fails)
    if config.memory_file != NULL:
        stat_append(out, b"restored_items", st.restored_items)
        stat_append(out, b"restored_expired", st.restored_expired)
        stat_append(out, b"restored_dropped", st.restored_dropped)
        stat_append(out, b"restored_us", st.restored_us)
        stat_append(out, b"foreign_pages", st.foreign_pages)


cdef void general_items(const store_stats *st, const store_config *config, stat_buf *out) noexcept nogil:
    stat_append(out, b"bytes", st.curr_bytes)
    stat_append(out, b"curr_items", st.curr_items)
    stat_append(out, b"total_items", st.total_items)
    stat_append(out, b"slab_global_page_pool", st.slab_global_page_pool)
    stat_append(out, b"expired_unfetched", st.expired_unfetched)
    stat_append(out, b"evicted_unfetched", st.evicted_unfetched)
    if config.lru_maintainer:
        stat_append(out, b"evicted_active", st.evicted_active)
    stat_append(out, b"evictions", st.evictions)
    stat_append(out, b"reclaimed", st.reclaimed)
    stat_append(out, b"crawler_reclaimed", st.crawler_reclaimed)
    stat_append(out, b"crawler_items_checked", st.crawler_items_checked)
    stat_append(out, b"lrutail_reflocked", st.lrutail_reflocked)
    if config.lru_maintainer:
        stat_append(out, b"moves_to_cold", st.moves_to_cold)
        stat_append(out, b"moves_to_warm", st.moves_to_warm)
        stat_append(out, b"moves_within_lru", st.moves_within_lru)
        stat_append(out, b"direct_reclaims", st.direct_reclaims)
        stat_append(out, b"lru_bumps_dropped", st.lru_bumps_dropped)
    if config.s3fifo:
        stat_append(out, b"ghost_hits", st.ghost_hits)
        stat_append(out, b"ghost_bytes", st.ghost_bytes)
        append_decimal(out, b"small_lru_pct", b"%.2f", st.small_lru_pct)


cdef void direct_text(server *s, const thread_stats *t, stat_buf *out) noexcept nogil:
    cdef direct_stats direct
    store_direct_stats(s.store, &direct)
    # memcached has no such lines: they come with the first huge page, or the first client with direct reads.
    if direct.huge_pages != 0:
        stat_append(out, b"huge_pages_made", direct.huge_pages)
    if direct.clients == 0:
        return
    stat_append(out, b"direct_buckets", direct.buckets)
    stat_append(out, b"direct_items", direct.items)
    stat_append(out, b"direct_left_out", direct.left_out)
    stat_append(out, b"direct_pinned_pages", direct.pinned_pages)
    stat_append(out, b"direct_hits", t.direct_hits)
    stat_append(out, b"direct_clients", direct.clients)
    stat_append(out, b"direct_readers", direct.readers)
    stat_append(out, b"direct_building", direct.building)
    stat_append(out, b"direct_sealed", direct.sealed)


cdef void general(server *s, stat_buf *out) noexcept nogil:
    """Appends the lines of `stats` without a subcommand."""
    cdef store_config config
    cdef thread_stats t
    cdef store_stats st
    cdef watcher_stats ws
    cdef rusage usage
    cdef rel_time_t now = store_time(s.store)
    store_copy_config(s.store, &config)
    sum_threads(s, &t)
    store_get_stats(s.store, &st)
    getrusage(RUSAGE_SELF, &usage)
    stat_append(out, b"pid", <uint64_t>getpid())
    stat_append(out, b"uptime", now - ITEM_UPDATE_INTERVAL)
    stat_append(out, b"time", <uint64_t>(store_process_started(s.store) + now))
    stat_append_text(out, b"version", s.hooks.version)
    stat_append_text(out, b"rmemcached_version", own_version)
    # There is no libevent here: the event engine is epoll.
    stat_append_text(out, b"libevent", b"none")
    stat_append(out, b"pointer_size", 8 * sizeof(void *))
    append_seconds(out, b"rusage_user", usage.ru_utime.tv_sec, usage.ru_utime.tv_usec)
    append_seconds(out, b"rusage_system", usage.ru_stime.tv_sec, usage.ru_stime.tv_usec)
    general_connections(s, &t, out)
    general_commands(s, &t, &st, out)
    stat_append(out, b"limit_maxbytes", config.maxbytes)
    stat_append(out, b"accepting_conns", not relaxed_load(&s.listen_disabled))
    stat_append(out, b"listen_disabled_num", relaxed_load(&s.listen_disabled_num))
    stat_append(out, b"time_in_listen_disabled_us", relaxed_load(&s.time_in_listen_disabled_us))
    stat_append(out, b"threads", s.settings.num_threads)
    stat_append(out, b"conn_yields", t.conn_yields)
    stat_append(out, b"hash_power_level", st.hash_power_level)
    stat_append(out, b"hash_bytes", st.hash_bytes)
    stat_append(out, b"hash_is_expanding", st.hash_is_expanding)
    general_threads(s, &st, &config, out)
    watchers_get_stats(s.watchers, &ws)
    stat_append(out, b"log_worker_dropped", ws.dropped)
    stat_append(out, b"log_worker_written", ws.written)
    stat_append(out, b"log_watcher_skipped", ws.skipped)
    stat_append(out, b"log_watcher_sent", ws.sent)
    stat_append(out, b"log_watchers", ws.count)
    flash_text(s, out)
    stat_append(out, b"unexpected_napi_ids", relaxed_load(&s.unexpected_napi_ids))
    stat_append(out, b"round_robin_fallback", relaxed_load(&s.round_robin_fallback))
    tls_text(s, out)
    general_items(&st, &config, out)
    direct_text(s, &t, out)


cdef void settings_basic(server *s, const store_config *config, stat_buf *out) noexcept nogil:
    """Appends the settings of options that mostly have a letter."""
    cdef const settings *set = &s.settings
    cdef store_stats st
    cdef char text[16]
    store_get_stats(s.store, &st)
    stat_append(out, b"maxbytes", config.maxbytes)
    stat_append(out, b"maxconns", set.maxconns)
    append_int(out, b"tcpport", set.port)
    append_int(out, b"udpport", set.udpport)
    stat_append_text(out, b"inter", or_word(set.inter, b"NULL"))
    stat_append(out, b"verbosity", relaxed_load(&s.hooks.verbose))
    stat_append(out, b"oldest", st.oldest_live)
    stat_append_text(out, b"evictions", b"on" if config.evict_to_free else b"off")
    stat_append_text(out, b"domain_socket", or_word(set.socketpath, b"NULL"))
    snprintf(text, sizeof(text), b"%o", set.access)
    stat_append_text(out, b"umask", text)
    stat_append_text(out, b"shutdown_command", yes_no(s.hooks.shutdown != NULL))
    append_decimal(out, b"growth_factor", b"%.2f", config.factor)
    stat_append(out, b"chunk_size", config.chunk_size)
    stat_append(out, b"num_threads", set.num_threads)
    stat_append(out, b"num_threads_per_udp", set.num_threads_per_udp)
    snprintf(text, sizeof(text), b"%c", <int>s.prefixes.delimiter)
    stat_append_text(out, b"stat_key_prefix", text)
    stat_append_text(out, b"detail_enabled", yes_no(stats_prefix_on(s.prefixes)))
    stat_append(out, b"reqs_per_event", set.reqs_per_event)
    stat_append_text(out, b"cas_enabled", yes_no(config.use_cas))
    append_int(out, b"tcp_backlog", set.backlog)
    stat_append_text(out, b"binding_protocol", set.binding_protocol)
    stat_append_text(out, b"auth_enabled_sasl", b"yes" if set.sasl else b"no")
    stat_append_text(out, b"auth_enabled_ascii", or_word(set.auth_file, b"no"))


cdef void settings_store(server *s, const store_config *config, stat_buf *out) noexcept nogil:
    """Appends the settings of memory and the LRU."""
    cdef const settings *set = &s.settings
    stat_append(out, b"item_size_max", config.item_size_max)
    stat_append_text(out, b"maxconns_fast", yes_no(set.maxconns_fast))
    stat_append(out, b"hashpower_init", set.hash_power)
    stat_append_text(out, b"slab_reassign", yes_no(config.slab_reassign))
    stat_append(out, b"slab_automove", config.slab_automove)
    append_decimal(out, b"slab_automove_ratio", b"%.2f", config.slab_automove_ratio)
    stat_append(out, b"slab_automove_window", config.slab_automove_window)
    stat_append(out, b"slab_chunk_max", config.slab_chunk_size_max)
    stat_append_text(out, b"lru_crawler", yes_no(config.lru_crawler))
    stat_append(out, b"lru_crawler_sleep", config.lru_crawler_sleep)
    stat_append(out, b"lru_crawler_tocrawl", config.lru_crawler_tocrawl)
    stat_append(out, b"tail_repair_time", config.tail_repair_time)
    stat_append_text(out, b"flush_enabled", yes_no(set.flush_enabled))
    stat_append_text(out, b"dump_enabled", yes_no(set.dump_enabled))
    stat_append_text(out, b"hash_algorithm", set.hash_algorithm)
    stat_append_text(out, b"lru_maintainer_thread", yes_no(config.lru_maintainer))
    stat_append_text(out, b"lru_segmented", yes_no(config.lru_segmented))
    if config.s3fifo:
        stat_append_text(out, b"lru_algorithm", b"s3fifo")
    stat_append(out, b"hot_lru_pct", config.hot_lru_pct)
    stat_append(out, b"warm_lru_pct", config.warm_lru_pct)
    append_decimal(out, b"hot_max_factor", b"%.2f", config.hot_max_factor)
    append_decimal(out, b"warm_max_factor", b"%.2f", config.warm_max_factor)
    stat_append_text(out, b"temp_lru", yes_no(config.temp_lru))
    stat_append(out, b"temporary_ttl", config.temporary_ttl)


cdef void settings_flash(const store_config *config, stat_buf *out) noexcept nogil:
    cdef const flash_settings *flash = &config.flash
    stat_append(out, b"ext_item_size", flash.item_size)
    stat_append(out, b"ext_item_age", flash.item_age)
    stat_append(out, b"ext_low_ttl", flash.low_ttl)
    stat_append(out, b"ext_recache_rate", flash.recache_rate)
    stat_append(out, b"ext_wbuf_size", flash.wbuf_size)
    stat_append(out, b"ext_compact_under", flash.compact_under)
    stat_append(out, b"ext_drop_under", flash.drop_under)
    stat_append(out, b"ext_max_sleep", flash.max_sleep)
    append_decimal(out, b"ext_max_frag", b"%.2f", flash.max_frag)
    append_decimal(out, b"slab_automove_freeratio", b"%.3f", config.slab_automove_freeratio)
    stat_append_text(out, b"ext_drop_unread", yes_no(flash.drop_unread != 0))


cdef void settings_tls(const tls_options *o, stat_buf *out) noexcept nogil:
    """Appends the settings of TLS."""
    stat_append_text(out, b"ssl_enabled", yes_no(o.enabled))
    stat_append_text(out, b"ssl_chain_cert", or_word(o.chain_cert, b"(null)"))
    stat_append_text(out, b"ssl_key", or_word(o.key, b"(null)"))
    append_int(out, b"ssl_verify_mode", o.verify_mode)
    append_int(out, b"ssl_keyformat", o.key_format)
    stat_append_text(out, b"ssl_ciphers", or_word(o.ciphers, b"NULL"))
    stat_append_text(out, b"ssl_ca_cert", or_word(o.ca_cert, b"NULL"))
    stat_append(out, b"ssl_wbuf_size", o.wbuf_size)
    stat_append_text(out, b"ssl_session_cache", yes_no(o.session_cache))
    stat_append_text(out, b"ssl_kernel_tls", yes_no(o.kernel))
    stat_append_text(out, b"ssl_min_version", tls_version_name(o.min_version))


cdef void settings_text(server *s, stat_buf *out) noexcept nogil:
    cdef store_config config
    cdef const settings *set = &s.settings
    store_copy_config(s.store, &config)
    settings_basic(s, &config, out)
    settings_store(s, &config, out)
    stat_append(out, b"idle_timeout", set.idle_timeout)
    stat_append(out, b"watcher_logbuf_size", set.logger_watcher_buf_size)
    stat_append(out, b"worker_logbuf_size", set.logger_buf_size)
    stat_append(out, b"read_buf_mem_limit", set.read_buf_mem_limit)
    stat_append_text(out, b"track_sizes", yes_no(config.track_sizes))
    stat_append_text(out, b"inline_ascii_response", b"no")
    settings_flash(&config, out)
    settings_tls(&set.tls, out)
    stat_append_text(out, b"proxy_enabled", b"no")
    stat_append_text(out, b"proxy_uring_enabled", b"no")
    stat_append(out, b"num_napi_ids", set.num_napi_ids)
    stat_append_text(out, b"memory_file", or_word(set.memory_file, b"(null)"))
    stat_append(out, b"client_flags_size", 4)


cdef void items_text(server *s, stat_buf *out) noexcept nogil:
    cdef store_config config
    cdef class_stats k
    cdef thread_stats t
    cdef int i
    store_copy_config(s.store, &config)
    sum_threads(s, &t)
    for i in range(1, MAX_NUMBER_OF_SLAB_CLASSES):
        if not store_get_class_stats(s.store, i, &k) or k.number == 0:
            continue
        append_class(out, b"items:", i, b"number", k.number)
        if config.lru_maintainer:
            append_class(out, b"items:", i, b"number_hot", k.number_hot)
            append_class(out, b"items:", i, b"number_warm", k.number_warm)
            append_class(out, b"items:", i, b"number_cold", k.number_cold)
            if config.temp_lru:
                append_class(out, b"items:", i, b"number_temp", k.number_temp)
            append_class(out, b"items:", i, b"age_hot", k.age_hot)
            append_class(out, b"items:", i, b"age_warm", k.age_warm)
        append_class(out, b"items:", i, b"age", k.age)
        append_class(out, b"items:", i, b"mem_requested", k.mem_requested)
        append_class(out, b"items:", i, b"evicted", k.evicted)
        append_class(out, b"items:", i, b"evicted_nonzero", k.evicted_nonzero)
        append_class(out, b"items:", i, b"evicted_time", k.evicted_time)
        append_class(out, b"items:", i, b"outofmemory", k.outofmemory)
        append_class(out, b"items:", i, b"tailrepairs", k.tailrepairs)
        append_class(out, b"items:", i, b"reclaimed", k.reclaimed)
        append_class(out, b"items:", i, b"expired_unfetched", k.expired_unfetched)
        append_class(out, b"items:", i, b"evicted_unfetched", k.evicted_unfetched)
        if config.lru_maintainer:
            append_class(out, b"items:", i, b"evicted_active", k.evicted_active)
        append_class(out, b"items:", i, b"crawler_reclaimed", k.crawler_reclaimed)
        append_class(out, b"items:", i, b"crawler_items_checked", k.crawler_items_checked)
        append_class(out, b"items:", i, b"lrutail_reflocked", k.lrutail_reflocked)
        if config.lru_maintainer:
            append_class(out, b"items:", i, b"moves_to_cold", k.moves_to_cold)
            append_class(out, b"items:", i, b"moves_to_warm", k.moves_to_warm)
            append_class(out, b"items:", i, b"moves_within_lru", k.moves_within_lru)
            append_class(out, b"items:", i, b"direct_reclaims", k.direct_reclaims)
            append_class(out, b"items:", i, b"hits_to_hot", t.lru_hits[i])
            append_class(out, b"items:", i, b"hits_to_warm", t.lru_hits[i | 64])
            append_class(out, b"items:", i, b"hits_to_cold", t.lru_hits[i | 128])
            append_class(out, b"items:", i, b"hits_to_temp", t.lru_hits[i | 192])


cdef void slabs_text(server *s, stat_buf *out) noexcept nogil:
    cdef class_stats k
    cdef store_stats st
    cdef thread_stats t
    cdef int i
    cdef unsigned int active = 0
    sum_threads(s, &t)
    for i in range(1, MAX_NUMBER_OF_SLAB_CLASSES):
        if not store_get_class_stats(s.store, i, &k) or k.total_pages == 0:
            continue
        active += 1
        append_class(out, b"", i, b"chunk_size", k.chunk_size)
        append_class(out, b"", i, b"chunks_per_page", k.chunks_per_page)
        append_class(out, b"", i, b"total_pages", k.total_pages)
        append_class(out, b"", i, b"total_chunks", k.total_chunks)
        append_class(out, b"", i, b"used_chunks", k.used_chunks)
        append_class(out, b"", i, b"free_chunks", k.free_chunks)
        append_class(out, b"", i, b"free_chunks_end", 0)
        append_class(out, b"", i, b"get_hits", get_hits(&t, i))
        append_class(out, b"", i, b"cmd_set", t.slab[i].set_cmds)
        append_class(out, b"", i, b"delete_hits", t.slab[i].delete_hits)
        append_class(out, b"", i, b"incr_hits", t.slab[i].incr_hits)
        append_class(out, b"", i, b"decr_hits", t.slab[i].decr_hits)
        append_class(out, b"", i, b"cas_hits", t.slab[i].cas_hits)
        append_class(out, b"", i, b"cas_badval", t.slab[i].cas_badval)
        append_class(out, b"", i, b"touch_hits", t.slab[i].touch_hits)
    stat_append(out, b"active_slabs", active)
    store_get_stats(s.store, &st)
    stat_append(out, b"total_malloced", st.total_malloced)


cdef void sizes_text(server *s, stat_buf *out) noexcept nogil:
    """Appends the linked items by size, in steps of 32 bytes."""
    cdef uint32_t buckets = store_sizes_buckets(s.store)
    cdef uint32_t bucket = 0, count
    cdef char name[16]
    if buckets == 0:
        stat_append_text(out, b"sizes_status", b"disabled")
    while bucket < buckets:
        count = store_sizes(s.store, bucket)
        if count:
            snprintf(name, sizeof(name), b"%u", bucket * 32)
            stat_append(out, name, count)
        bucket += 1


cdef void reset(server *s) noexcept nogil:
    """stats reset. A counter changed by a worker at the same moment may keep its old value."""
    cdef unsigned int i
    cdef uint64_t *counter
    for i in range(s.settings.num_threads):
        counter = <uint64_t *>&s.workers[i].thread.stats
        # response_obj_count and the fields behind it are amounts in use, and stay.
        while counter < &s.workers[i].thread.stats.response_obj_count:
            relaxed_store(counter, 0)
            counter += 1
    relaxed_store(&s.total_connections, 0)
    relaxed_store(&s.rejected_connections, 0)
    relaxed_store(&s.listen_disabled_num, 0)
    relaxed_store(&s.time_in_listen_disabled_us, 0)
    relaxed_store(&s.unexpected_napi_ids, 0)
    relaxed_store(&s.round_robin_fallback, 0)
    stats_prefix_clear(s.prefixes)
    store_reset_stats(s.store)
    watchers_reset_stats(s.watchers)


cdef void nothing_text(server *s, stat_buf *out) noexcept nogil:
    """Appends nothing: the feature is not in use."""


cdef statistics[SUBCOMMANDS] STATISTICS = [
    statistics(b"", general),
    statistics(b"settings", settings_text),
    statistics(b"items", items_text),
    statistics(b"slabs", slabs_text),
    statistics(b"sizes", sizes_text),
    statistics(b"conns", conns_text),
    statistics(b"extstore", flash_pages_text),
    statistics(b"proxy", nothing_text),
    statistics(b"proxyfuncs", nothing_text),
    statistics(b"proxybe", nothing_text),
]


cdef inline bint named(const char *sub, size_t nsub, const char *name) noexcept nogil:
    return nsub == strlen(name) and memcmp(sub, name, nsub) == 0


cdef stats_result server_stats(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil:
    cdef server *s = <server *>arg
    cdef int i
    for i in range(SUBCOMMANDS):
        if named(sub, nsub, STATISTICS[i].name):
            STATISTICS[i].text(s, out)
            return STATS_ANSWERED
    if named(sub, nsub, b"reset"):
        reset(s)
        return STATS_RESET
    if named(sub, nsub, b"rdma") and s.has_devices:
        devices_stats(&s.devices, out)
        return STATS_ANSWERED
    return STATS_UNKNOWN
