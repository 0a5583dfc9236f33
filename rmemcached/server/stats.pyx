"""The text of `stats` and its subcommands: memcached's names, in memcached's order."""

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memset, strlen
from posix.unistd cimport getpid

from rmemcached.atomics cimport relaxed_load, relaxed_store
from rmemcached.protocol.conn cimport (
    MEMCACHED_VERSION, conn, mc_resp, slab_counters, stat_append, stat_append_text, stat_buf, thread_stats,
)
from rmemcached.rdma_conn cimport rdma_stats
from rmemcached.server.server cimport server
from rmemcached.server.watchers cimport watcher_stats, watchers_get_stats, watchers_reset_stats
from rmemcached.store.store cimport (
    ITEM_UPDATE_INTERVAL, MAX_NUMBER_OF_SLAB_CLASSES, NUMBER_OF_QUEUES, class_stats, store_get_class_stats,
    store_get_stats, store_reset_stats, store_stats, store_time,
)

cdef extern from "<sys/resource.h>" nogil:
    enum:
        RUSAGE_SELF
    struct timeval:
        long tv_sec
        long tv_usec
    struct rusage:
        timeval ru_utime
        timeval ru_stime
    int getrusage(int who, rusage *usage)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    time_t time(time_t *out)


cdef void append_seconds(stat_buf *out, const char *name, long seconds, long micros) noexcept nogil:
    cdef char text[48]
    snprintf(text, sizeof(text), b"%ld.%06ld", seconds, micros)
    stat_append_text(out, name, text)


cdef void append_decimal(stat_buf *out, const char *name, const char *fmt, double value) noexcept nogil:
    cdef char text[48]
    snprintf(text, sizeof(text), fmt, value)
    stat_append_text(out, name, text)


cdef void append_class(stat_buf *out, const char *prefix, int clsid, const char *name, uint64_t value) noexcept nogil:
    cdef char full[80]
    snprintf(full, sizeof(full), b"%s%d:%s", prefix, clsid, name)
    stat_append(out, full, value)


cdef void sum_threads(server *s, thread_stats *total) noexcept nogil:
    """Adds the workers' counters up. Each is read whole; together they are a snapshot only when all is quiet."""
    cdef unsigned int i
    cdef size_t j
    memset(total, 0, sizeof(thread_stats))
    for i in range(s.settings.num_threads):
        for j in range(sizeof(thread_stats) // sizeof(uint64_t)):
            (<uint64_t *>total)[j] += relaxed_load(&(<uint64_t *>&s.workers[i].thread.stats)[j])


cdef uint64_t get_hits(const thread_stats *t, unsigned int clsid) noexcept nogil:
    """Gets that found an item of the class; 0: of any."""
    cdef uint64_t hits = 0
    cdef unsigned int i
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        if clsid == 0 or i & (MAX_NUMBER_OF_SLAB_CLASSES - 1) == clsid:
            hits += t.lru_hits[i]
    return hits


cdef void general(server *s, stat_buf *out) noexcept nogil:
    cdef thread_stats t
    cdef slab_counters c
    cdef store_stats st
    cdef watcher_stats ws
    cdef rusage usage
    cdef int k
    cdef unsigned int i
    cdef size_t j
    cdef uint64_t connections = 0
    sum_threads(s, &t)
    memset(&c, 0, sizeof(c))
    for k in range(MAX_NUMBER_OF_SLAB_CLASSES):
        for j in range(sizeof(slab_counters) // sizeof(uint64_t)):
            (<uint64_t *>&c)[j] += (<uint64_t *>&t.slab[k])[j]
    for i in range(s.settings.num_threads):
        connections += relaxed_load(&s.workers[i].nconnections)
    store_get_stats(s.store, &st)
    getrusage(RUSAGE_SELF, &usage)
    stat_append(out, b"pid", <uint64_t>getpid())
    stat_append(out, b"uptime", store_time(s.store) - ITEM_UPDATE_INTERVAL)
    stat_append(out, b"time", <uint64_t>time(NULL))
    stat_append_text(out, b"version", MEMCACHED_VERSION)
    stat_append(out, b"pointer_size", 8 * sizeof(void *))
    append_seconds(out, b"rusage_user", usage.ru_utime.tv_sec, usage.ru_utime.tv_usec)
    append_seconds(out, b"rusage_system", usage.ru_stime.tv_sec, usage.ru_stime.tv_usec)
    stat_append(out, b"max_connections", s.settings.maxconns)
    stat_append(out, b"curr_connections", relaxed_load(&s.curr_connections))
    stat_append(out, b"total_connections", relaxed_load(&s.total_connections))
    stat_append(out, b"rejected_connections", relaxed_load(&s.rejected_connections))
    stat_append(out, b"connection_structures", connections)
    stat_append(out, b"response_obj_oom", t.response_obj_oom)
    stat_append(out, b"response_obj_count", t.response_obj_count)
    stat_append(out, b"response_obj_bytes", t.response_obj_count * sizeof(mc_resp))
    stat_append(out, b"cmd_get", t.get_cmds)
    stat_append(out, b"cmd_set", c.set_cmds)
    stat_append(out, b"cmd_flush", t.flush_cmds)
    stat_append(out, b"cmd_touch", t.touch_cmds)
    stat_append(out, b"cmd_meta", t.meta_cmds)
    stat_append(out, b"get_hits", get_hits(&t, 0))
    stat_append(out, b"get_misses", t.get_misses)
    stat_append(out, b"get_expired", st.get_expired)
    stat_append(out, b"get_flushed", st.get_flushed)
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
    stat_append(out, b"bytes_read", t.bytes_read)
    stat_append(out, b"bytes_written", t.bytes_written)
    stat_append(out, b"limit_maxbytes", s.settings.maxbytes)
    stat_append(out, b"threads", s.settings.num_threads)
    stat_append(out, b"conn_yields", t.conn_yields)
    stat_append(out, b"hash_power_level", st.hash_power_level)
    stat_append(out, b"hash_bytes", st.hash_bytes)
    stat_append(out, b"hash_is_expanding", st.hash_is_expanding)
    stat_append(out, b"malloc_fails", st.malloc_fails)
    watchers_get_stats(s.watchers, &ws)
    stat_append(out, b"log_worker_dropped", ws.dropped)
    stat_append(out, b"log_worker_written", ws.written)
    stat_append(out, b"log_watcher_skipped", ws.skipped)
    stat_append(out, b"log_watcher_sent", ws.sent)
    stat_append(out, b"log_watchers", ws.count)
    stat_append(out, b"bytes", st.curr_bytes)
    stat_append(out, b"curr_items", st.curr_items)
    stat_append(out, b"total_items", st.total_items)
    stat_append(out, b"expired_unfetched", st.expired_unfetched)
    stat_append(out, b"evicted_unfetched", st.evicted_unfetched)
    stat_append(out, b"evicted_active", st.evicted_active)
    stat_append(out, b"evictions", st.evictions)
    stat_append(out, b"reclaimed", st.reclaimed)
    stat_append(out, b"lrutail_reflocked", st.lrutail_reflocked)


cdef const char *or_null(const char *text) noexcept nogil:
    if text == NULL:
        return b"NULL"
    return text


cdef void settings_text(server *s, stat_buf *out) noexcept nogil:
    cdef char text[16]
    stat_append(out, b"maxbytes", s.settings.maxbytes)
    stat_append(out, b"maxconns", s.settings.maxconns)
    snprintf(text, sizeof(text), b"%d", s.settings.port)
    stat_append_text(out, b"tcpport", text)
    snprintf(text, sizeof(text), b"%d", s.settings.udpport)
    stat_append_text(out, b"udpport", text)
    stat_append_text(out, b"inter", or_null(s.settings.inter))
    stat_append(out, b"verbosity", relaxed_load(&s.hooks.verbose))
    stat_append_text(out, b"evictions", b"on" if s.settings.evict_to_free else b"off")
    stat_append_text(out, b"domain_socket", or_null(s.settings.socketpath))
    snprintf(text, sizeof(text), b"%o", s.settings.access)
    stat_append_text(out, b"umask", text)
    append_decimal(out, b"growth_factor", b"%.2f", s.settings.factor)
    stat_append(out, b"chunk_size", s.settings.chunk_size)
    stat_append(out, b"num_threads", s.settings.num_threads)
    stat_append(out, b"num_threads_per_udp", s.settings.num_threads_per_udp)
    stat_append(out, b"reqs_per_event", s.settings.reqs_per_event)
    stat_append_text(out, b"cas_enabled", b"yes" if s.settings.use_cas else b"no")
    stat_append(out, b"tcp_backlog", s.settings.backlog)
    stat_append(out, b"item_size_max", s.settings.item_size_max)
    stat_append(out, b"hashpower_init", s.settings.hash_power)
    stat_append(out, b"slab_chunk_max", s.settings.slab_chunk_max)
    stat_append_text(out, b"flush_enabled", b"yes" if s.settings.flush_enabled else b"no")
    stat_append_text(out, b"rdma", b"yes" if s.settings.rdma else b"no")


cdef void items_text(server *s, stat_buf *out) noexcept nogil:
    cdef class_stats k
    cdef int i
    for i in range(1, MAX_NUMBER_OF_SLAB_CLASSES):
        if not store_get_class_stats(s.store, i, &k) or k.number == 0:
            continue
        append_class(out, b"items:", i, b"number", k.number)
        append_class(out, b"items:", i, b"age", k.age)
        append_class(out, b"items:", i, b"mem_requested", k.mem_requested)
        append_class(out, b"items:", i, b"evicted", k.evicted)
        append_class(out, b"items:", i, b"evicted_nonzero", k.evicted_nonzero)
        append_class(out, b"items:", i, b"evicted_time", k.evicted_time)
        append_class(out, b"items:", i, b"outofmemory", k.outofmemory)
        append_class(out, b"items:", i, b"reclaimed", k.reclaimed)
        append_class(out, b"items:", i, b"expired_unfetched", k.expired_unfetched)
        append_class(out, b"items:", i, b"evicted_unfetched", k.evicted_unfetched)
        append_class(out, b"items:", i, b"evicted_active", k.evicted_active)
        append_class(out, b"items:", i, b"lrutail_reflocked", k.lrutail_reflocked)


cdef void slabs_text(server *s, stat_buf *out) noexcept nogil:
    cdef class_stats k
    cdef thread_stats t
    cdef int i
    cdef unsigned int active = 0
    cdef uint64_t pages = 0
    sum_threads(s, &t)
    for i in range(1, MAX_NUMBER_OF_SLAB_CLASSES):
        if not store_get_class_stats(s.store, i, &k) or k.total_pages == 0:
            continue
        active += 1
        pages += k.total_pages
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
    stat_append(out, b"total_malloced", pages * 1024 * 1024)


cdef void reset(server *s) noexcept nogil:
    """stats reset. A worker that counts at the same moment may keep one count of before."""
    cdef unsigned int i
    cdef size_t j
    for i in range(s.settings.num_threads):
        for j in range(sizeof(thread_stats) // sizeof(uint64_t)):
            if &(<uint64_t *>&s.workers[i].thread.stats)[j] != &s.workers[i].thread.stats.response_obj_count:
                relaxed_store(&(<uint64_t *>&s.workers[i].thread.stats)[j], 0)
    relaxed_store(&s.total_connections, 0)
    relaxed_store(&s.rejected_connections, 0)
    store_reset_stats(s.store)
    watchers_reset_stats(s.watchers)


cdef inline bint named(const char *sub, size_t nsub, const char *name) noexcept nogil:
    return nsub == strlen(name) and memcmp(sub, name, nsub) == 0


cdef int server_stats(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil:
    cdef server *s = <server *>arg
    if nsub == 0:
        general(s, out)
    elif named(sub, nsub, b"settings"):
        settings_text(s, out)
    elif named(sub, nsub, b"items"):
        items_text(s, out)
    elif named(sub, nsub, b"slabs"):
        slabs_text(s, out)
    elif named(sub, nsub, b"reset"):
        reset(s)
        return 1
    elif named(sub, nsub, b"rdma") and s.ndevices:
        rdma_stats(s.devices, s.ndevices, out)
    else:
        return -1
    return 0
