"""Which statistic is which metric: names, types, labels and help.

A name that begins with memcached_ is that of prometheus/memcached_exporter, which dashboards and alerts know;
rmemcached_ are ours. Three of its counters lack the ending _total, which a counter has: here they have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rmemcached.tools.targets import number

GROUPS = ("", "settings", "items", "slabs", "rdma")
"""The subcommands of `stats` that are asked; "" is `stats` itself."""
BY_CLASS = ("items", "slabs")
ALL_SLABS = "slabs, of all classes"
US = 1e-6
NS = 1e-9


class Metric(NamedTuple):
    """A metric, and the statistics of one group that it is made of.

    kind: counter or gauge. sources: {statistic: values of the labels}. labels: their names; those of BY_CLASS have
    "slab" before them. scale: what a statistic is multiplied by, to be in seconds or bytes.
    """

    group: str
    name: str
    kind: str
    help: str
    sources: Mapping[str, tuple[str, ...]]
    labels: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def all_labels(self) -> tuple[str, ...]:
        return ("slab", *self.labels) if self.group in BY_CLASS else self.labels


def _counter(group: str, statistic: str, name: str, text: str, scale: float = 1.0) -> Metric:
    return Metric(group, name, "counter", text, {statistic: ()}, (), scale)


def _gauge(group: str, statistic: str, name: str, text: str, scale: float = 1.0) -> Metric:
    return Metric(group, name, "gauge", text, {statistic: ()}, (), scale)


def _outcomes(*commands: str, misses: bool) -> dict[str, tuple[str, ...]]:
    found = {f"{command}_hits": (command, "hit") for command in commands}
    if misses:
        found |= {f"{command}_misses": (command, "miss") for command in commands}
    return {**found, "cas_badval": ("cas", "badval")}


KEYED = ("get", "delete", "incr", "decr", "cas", "touch")

GENERAL = [
    _gauge("", "uptime", "memcached_uptime_seconds", "Seconds since the server started."),
    _gauge("", "time", "memcached_time_seconds", "UNIX time of the server."),
    _counter("", "rusage_user", "memcached_process_user_cpu_seconds_total", "CPU time of the server in user mode."),
    _counter(
        "", "rusage_system", "memcached_process_system_cpu_seconds_total", "CPU time of the server in the kernel."
    ),
    _gauge("", "max_connections", "memcached_max_connections", "Connections that the server takes at most (-c)."),
    _gauge("", "curr_connections", "memcached_current_connections", "Open connections."),
    _counter("", "total_connections", "memcached_connections_total", "Connections that were opened."),
    _counter("", "rejected_connections", "memcached_connections_rejected_total", "Connections refused because of -c."),
    _gauge("", "connection_structures", "rmemcached_connections_highest", "Most connections at one time so far."),
    _counter(
        "", "response_obj_oom", "rmemcached_response_out_of_memory_total", "Replies for which no memory was left."
    ),
    _gauge("", "response_obj_count", "rmemcached_responses_waiting", "Replies that wait in connections."),
    _gauge(
        "", "response_obj_bytes", "rmemcached_responses_waiting_bytes", "Memory of replies that wait in connections."
    ),
    _gauge("", "read_buf_count", "rmemcached_read_buffers", "Buffers for commands that come in."),
    _gauge("", "read_buf_bytes", "rmemcached_read_buffers_bytes", "Memory of buffers for commands that come in."),
    _gauge(
        "", "read_buf_bytes_free", "rmemcached_read_buffers_free_bytes", "Of that memory, what no connection holds."
    ),
    _counter("", "read_buf_oom", "rmemcached_read_buffer_out_of_memory_total", "Buffers for which no memory was left."),
    _gauge("", "reserved_fds", "rmemcached_reserved_descriptors", "Descriptors that the server keeps for itself."),
    Metric(
        *("", "memcached_commands_total", "counter", "Commands by name and outcome; set is without cas."),
        {**_outcomes(*KEYED, misses=True), "cmd_flush": ("flush", "hit")},
        ("command", "status"),
    ),
    Metric(
        *("", "rmemcached_commands_received_total", "counter", "Commands as the server counts them; set with cas."),
        {f"cmd_{command}": (command,) for command in ("get", "set", "touch", "meta")},
        ("command",),
    ),
    _counter("", "get_expired", "rmemcached_get_expired_total", "Misses because the item had expired."),
    _counter("", "get_flushed", "rmemcached_get_flushed_total", "Misses because the item had been flushed."),
    _counter("", "store_too_large", "memcached_item_too_large_total", "Items that were larger than -I allows."),
    _counter("", "store_no_memory", "memcached_item_no_memory_total", "Items for which no memory was left."),
    _counter("", "auth_cmds", "rmemcached_authentications_total", "Authentications that were tried."),
    _counter("", "auth_errors", "rmemcached_authentication_errors_total", "Authentications that failed."),
    _counter("", "idle_kicks", "rmemcached_idle_kicks_total", "Connections closed because of -o idle_timeout."),
    _counter("", "idle_kicks_stalled", "rmemcached_idle_kicks_stalled_total", "Of these, those within a transfer."),
    _counter("", "bytes_read", "memcached_read_bytes_total", "Bytes that were read from sockets."),
    _counter("", "bytes_written", "memcached_written_bytes_total", "Bytes that were written to sockets."),
    _gauge("", "limit_maxbytes", "memcached_limit_bytes", "Memory for items at most (-m)."),
    _gauge("", "accepting_conns", "memcached_accepting_connections", "1 while new connections are accepted."),
    _counter(
        *("", "listen_disabled_num", "memcached_connections_listener_disabled_total"),
        "Times that -c stopped the server from accepting connections.",
    ),
    _counter(
        *("", "time_in_listen_disabled_us", "rmemcached_listener_disabled_seconds_total"),
        "Time in which it accepted none.",
        US,
    ),
    _gauge("", "threads", "rmemcached_threads", "Worker threads (-t)."),
    _counter(
        "", "conn_yields", "memcached_connections_yielded_total", "Times that -R made a connection wait its turn."
    ),
    _gauge("", "hash_power_level", "rmemcached_hash_power_level", "The hash table has 2 to the power of this buckets."),
    _gauge("", "hash_bytes", "rmemcached_hash_bytes", "Memory of the hash table."),
    _gauge("", "hash_is_expanding", "rmemcached_hash_is_expanding", "1 while the hash table grows."),
    _counter("", "slab_reassign_rescues", "rmemcached_slab_reassign_rescues_total", "Items that page moves kept."),
    _counter("", "slab_reassign_chunk_rescues", "rmemcached_slab_reassign_chunk_rescues_total", "Chunks they kept."),
    _counter(
        "", "slab_reassign_inline_reclaim", "rmemcached_slab_reassign_inline_reclaims_total", "Items they evicted."
    ),
    _counter("", "slab_reassign_busy_items", "rmemcached_slab_reassign_busy_items_total", "Items in use they met."),
    _counter(
        "", "slab_reassign_busy_deletes", "rmemcached_slab_reassign_busy_deletes_total", "Of these, deleted ones."
    ),
    _counter("", "slab_reassign_busy_nomem", "rmemcached_slab_reassign_busy_no_memory_total", "Waits for free memory."),
    _gauge("", "slab_reassign_running", "rmemcached_slab_reassign_running", "1 while a page moves."),
    _counter("", "slabs_moved", "rmemcached_slab_pages_moved_total", "Pages moved from a class to another."),
    _gauge("", "lru_crawler_running", "rmemcached_lru_crawler_running", "1 while the LRU crawler runs."),
    _counter("", "lru_crawler_starts", "memcached_lru_crawler_starts_total", "Times that the LRU crawler started."),
    _counter("", "lru_maintainer_juggles", "rmemcached_lru_maintainer_juggles_total", "Rounds of the LRU maintainer."),
    _counter("", "malloc_fails", "rmemcached_malloc_fails_total", "Allocations that failed."),
    _counter("", "log_worker_dropped", "rmemcached_log_worker_dropped_total", "Log entries dropped by full rings."),
    _counter("", "log_worker_written", "rmemcached_log_worker_written_total", "Log entries that were written."),
    _counter("", "log_watcher_skipped", "rmemcached_log_watcher_skipped_total", "Log entries a slow watcher missed."),
    _counter("", "log_watcher_sent", "rmemcached_log_watcher_sent_total", "Log entries sent to watchers."),
    _gauge("", "log_watchers", "rmemcached_log_watchers", "Watchers."),
    _counter("", "unexpected_napi_ids", "memcached_unexpected_napi_ids_total", "Unexpected NAPI IDs."),
    _counter("", "round_robin_fallback", "memcached_round_robin_fallback_total", "Connections given out in turn."),
    _gauge("", "bytes", "memcached_current_bytes", "Bytes of items, with their headers."),
    _gauge("", "curr_items", "memcached_current_items", "Items."),
    _counter("", "total_items", "memcached_items_total", "Items that were stored."),
    _gauge("", "slab_global_page_pool", "rmemcached_slab_global_page_pool", "Pages that no class has."),
    _counter("", "expired_unfetched", "rmemcached_items_expired_unfetched_total", "Items that expired and nobody got."),
    _counter("", "evicted_unfetched", "rmemcached_items_evicted_unfetched_total", "Items evicted that nobody got."),
    _counter("", "evicted_active", "rmemcached_items_evicted_active_total", "Items evicted soon after a get."),
    _counter("", "evictions", "memcached_items_evicted_total", "Valid items that were evicted for new ones."),
    _counter("", "reclaimed", "memcached_items_reclaimed_total", "Items stored in the memory of expired ones."),
    _counter("", "crawler_reclaimed", "memcached_lru_crawler_reclaimed_total", "Items that the LRU crawler freed."),
    _counter("", "crawler_items_checked", "memcached_lru_crawler_items_checked_total", "Items the crawler looked at."),
    _counter("", "lrutail_reflocked", "rmemcached_lru_tail_locked_total", "Items in use at the tail of an LRU."),
    _counter("", "moves_to_cold", "memcached_lru_crawler_moves_to_cold_total", "Moves from HOT or WARM to COLD."),
    _counter("", "moves_to_warm", "memcached_lru_crawler_moves_to_warm_total", "Moves from COLD to WARM."),
    _counter("", "moves_within_lru", "memcached_lru_crawler_moves_within_lru_total", "Moves within HOT or WARM."),
    _counter("", "direct_reclaims", "memcached_direct_reclaims_total", "Times that workers had to evict themselves."),
    _counter("", "lru_bumps_dropped", "rmemcached_lru_bumps_dropped_total", "Moves to a head that were left out."),
    _counter("", "ghost_hits", "rmemcached_ghost_hits_total", "Stores of keys that S3-FIFO had evicted lately."),
    _gauge("", "ghost_bytes", "rmemcached_ghost_bytes", "Memory of what S3-FIFO remembers of evicted keys."),
    _gauge("", "small_lru_pct", "rmemcached_small_lru_ratio", "Part of the memory for S3-FIFO's small queue.", 0.01),
    _gauge("", "direct_buckets", "rmemcached_direct_buckets", "Buckets of the index that clients read."),
    _gauge("", "direct_items", "rmemcached_direct_items", "Items in that index."),
    _gauge("", "direct_left_out", "rmemcached_direct_left_out", "Items that had no room in it."),
    _gauge("", "direct_pinned_pages", "rmemcached_direct_pinned_pages", "Pages with items that clients look at."),
    _counter("", "direct_hits", "rmemcached_direct_hits_total", "Values that clients read themselves, as they say."),
    _gauge(
        "", "direct_clients", "rmemcached_direct_clients", "Clients that have ever been able to read values themselves."
    ),
    _gauge("", "direct_readers", "rmemcached_direct_readers", "Clients that can do so now."),
    _gauge("", "direct_building", "rmemcached_direct_building", "1: their index is being made."),
    _gauge("", "direct_sealed", "rmemcached_direct_sealed", "1: no memory of items goes back to the system any more."),
    _counter("", "huge_pages_made", "rmemcached_huge_pages_made_total", "Memory pages of 2 MB that items got."),
]

CRAWLER = "memcached_lru_crawler_"
SETTING = "rmemcached_setting_"
SETTINGS = [
    _gauge("settings", "lru_crawler", CRAWLER + "enabled", "1: there is an LRU crawler."),
    _gauge("settings", "lru_crawler_sleep", CRAWLER + "sleep", "Microseconds between two items of the LRU crawler."),
    _gauge("settings", "lru_crawler_tocrawl", CRAWLER + "to_crawl", "Items of a class it looks at; 0: all."),
    _gauge("settings", "lru_maintainer_thread", CRAWLER + "maintainer_thread", "1: there is an LRU maintainer."),
    _gauge("settings", "hot_lru_pct", CRAWLER + "hot_percent", "Percent of a class for HOT."),
    _gauge("settings", "warm_lru_pct", CRAWLER + "warm_percent", "Percent of a class for WARM."),
    _gauge("settings", "hot_max_factor", CRAWLER + "hot_max_factor", "Age of HOT at most, as a part of COLD's."),
    _gauge("settings", "warm_max_factor", CRAWLER + "warm_max_factor", "Age of WARM at most, as a part of COLD's."),
    *(
        _gauge("settings", statistic, SETTING + name, text)
        for statistic, name, text in (
            ("verbosity", "verbosity", "How much is logged (-v)."),
            ("evictions", "evictions", "1: items are evicted; 0: stores fail when memory is full (-M)."),
            ("shutdown_command", "shutdown_command", "1: clients can end the server (-A)."),
            ("growth_factor", "growth_factor", "Ratio of the sizes of two classes (-f)."),
            ("chunk_size", "chunk_size_bytes", "Least memory of an item (-n)."),
            ("detail_enabled", "detail_enabled", "1: prefixes of keys are counted (stats detail on)."),
            ("reqs_per_event", "requests_per_turn", "Requests of a connection in a turn (-R)."),
            ("cas_enabled", "cas_enabled", "1: items have a CAS number; 0: -C."),
            ("tcp_backlog", "tcp_backlog", "Connections that may wait for being accepted (-b)."),
            ("item_size_max", "item_size_max_bytes", "Size of an item at most (-I)."),
            ("maxconns_fast", "maxconns_fast", "1: connections above -c are refused at once."),
            ("hashpower_init", "hash_power_level", "Hash power level at the start; 0: the default."),
            ("slab_reassign", "slab_reassign", "1: pages can move from a class to another."),
            ("slab_automove", "slab_automove", "1: pages are moved automatically."),
            ("slab_automove_ratio", "slab_automove_ratio", "Ratio of the ages of two classes that moves a page."),
            ("slab_automove_window", "slab_automove_window", "Rounds that the mover averages."),
            ("slab_chunk_max", "slab_chunk_max_bytes", "Largest chunk; larger items are chained."),
            (
                "tail_repair_time",
                "tail_repair_time_seconds",
                "Age of items in use that are taken from a tail; 0: never.",
            ),
            ("flush_enabled", "flush_enabled", "1: clients can flush all (not -F)."),
            ("dump_enabled", "dump_enabled", "1: clients can list all keys (not -X)."),
            ("lru_segmented", "lru_segmented", "1: the LRU has segments."),
            ("temp_lru", "temporary_lru", "1: items that expire soon have a queue of their own."),
            ("temporary_ttl", "temporary_ttl_seconds", "What expires sooner is in that queue."),
            ("idle_timeout", "idle_timeout_seconds", "Idle connections are closed after it; 0: never."),
            ("watcher_logbuf_size", "watcher_log_buffer_bytes", "Buffer of a watcher."),
            ("worker_logbuf_size", "worker_log_buffer_bytes", "Buffer of a worker's log."),
            ("read_buf_mem_limit", "read_buffer_limit_bytes", "Memory of read buffers at most; 0: without limit."),
            ("track_sizes", "track_sizes", "1: stats sizes counts items by size."),
            ("num_napi_ids", "napi_ids", "Number of NAPI IDs (-N)."),
            ("client_flags_size", "client_flags_bytes", "Size of an item's flags."),
        )
    ),
]

SLAB = "memcached_slab_"
OWN_SLAB = "rmemcached_slab_"
ITEMS = [
    _gauge("items", "number", SLAB + "current_items", "Items of a class."),
    _gauge("items", "number_hot", SLAB + "hot_items", "Items of a class in HOT."),
    _gauge("items", "number_warm", SLAB + "warm_items", "Items of a class in WARM."),
    _gauge("items", "number_cold", SLAB + "cold_items", "Items of a class in COLD."),
    _gauge("items", "number_temp", SLAB + "temporary_items", "Items of a class that expire soon."),
    _gauge("items", "age", SLAB + "items_age_seconds", "Seconds since the oldest item of a class was used."),
    _gauge("items", "age_hot", SLAB + "hot_age_seconds", "Likewise of HOT."),
    _gauge("items", "age_warm", SLAB + "warm_age_seconds", "Likewise of WARM."),
    _gauge("items", "mem_requested", SLAB + "mem_requested_bytes", "Bytes that the items of a class need."),
    _counter("items", "evicted", SLAB + "items_evicted_total", "Valid items of a class that were evicted."),
    _counter("items", "evicted_nonzero", SLAB + "items_evicted_nonzero_total", "Of these, with a time to expire."),
    _gauge("items", "evicted_time", SLAB + "items_evicted_time_seconds", "Seconds the last evicted was unused."),
    _counter("items", "outofmemory", SLAB + "items_outofmemory_total", "Items for which no memory was left."),
    _counter("items", "tailrepairs", SLAB + "items_tailrepairs_total", "Items in use that were taken from a tail."),
    _counter("items", "reclaimed", SLAB + "items_reclaimed_total", "Items stored in the memory of expired ones."),
    _counter("items", "expired_unfetched", SLAB + "items_expired_unfetched_total", "Expired, and nobody got them."),
    _counter("items", "evicted_unfetched", SLAB + "items_evicted_unfetched_total", "Evicted, and nobody got them."),
    _counter("items", "evicted_active", OWN_SLAB + "items_evicted_active_total", "Evicted soon after a get."),
    _counter("items", "crawler_reclaimed", SLAB + "items_crawler_reclaimed_total", "Items the LRU crawler freed."),
    _counter("items", "crawler_items_checked", OWN_SLAB + "items_crawler_checked_total", "Items it looked at."),
    _counter("items", "lrutail_reflocked", OWN_SLAB + "lru_tail_locked_total", "Items in use at a tail."),
    _counter("items", "moves_to_cold", SLAB + "items_moves_to_cold_total", "Moves from HOT or WARM to COLD."),
    _counter("items", "moves_to_warm", SLAB + "items_moves_to_warm_total", "Moves from COLD to WARM."),
    _counter("items", "moves_within_lru", SLAB + "items_moves_within_lru_total", "Moves within HOT or WARM."),
    _counter("items", "direct_reclaims", OWN_SLAB + "direct_reclaims_total", "Times that workers evicted themselves."),
    Metric(
        *("items", SLAB + "lru_hits_total", "counter", "Gets of items of a class, by the queue that they were in."),
        {f"hits_to_{short}": (name,) for short, name in (("hot", "hot"), ("warm", "warm"), ("cold", "cold"))}
        | {"hits_to_temp": ("temporary",)},
        ("lru",),
    ),
]

SLABS = [
    _gauge("slabs", "chunk_size", SLAB + "chunk_size_bytes", "Memory of an item of a class."),
    _gauge("slabs", "chunks_per_page", SLAB + "chunks_per_page", "Chunks in a page."),
    _gauge("slabs", "total_pages", SLAB + "current_pages", "Pages of a class."),
    _gauge("slabs", "total_chunks", SLAB + "current_chunks", "Chunks of a class."),
    _gauge("slabs", "used_chunks", SLAB + "chunks_used", "Chunks with an item."),
    _gauge("slabs", "free_chunks", SLAB + "chunks_free", "Chunks without one."),
    _gauge("slabs", "free_chunks_end", SLAB + "chunks_free_end", "Chunks at the end of the last page; always 0."),
    Metric(
        *("slabs", SLAB + "commands_total", "counter", "Commands on items of a class; set is without cas."),
        _outcomes(*KEYED, misses=False),
        ("command", "status"),
    ),
]
TOTAL_SLABS = [
    _gauge(ALL_SLABS, "active_slabs", "rmemcached_active_slabs", "Classes that have pages."),
    _gauge(ALL_SLABS, "total_malloced", "memcached_malloced_bytes", "Memory of the pages of all classes."),
]

R = "rmemcached_rdma_"
RDMA = [
    *(
        _gauge("rdma", statistic, R + name, text, scale)
        for statistic, name, text, scale in (
            ("rdma_credits", "credits", "Messages that a queue pair may have on the way.", 1),
            ("rdma_msgsize", "message_size_bytes", "Size of a message at most.", 1),
            ("rdma_eager", "eager_bytes", "Values up to this size travel in messages.", 1),
            ("rdma_max_queue_pairs", "max_queue_pairs", "Queue pairs at most (-o rdma_max_qps).", 1),
            ("rdma_lane_bytes", "lane_bytes", "What a lane may have unused.", 1),
            ("rdma_max_lanes", "max_lanes", "Lanes of a queue pair at most.", 1),
            ("rdma_ready_timeout", "ready_timeout_seconds", "Time for a client to say READY.", 1),
            ("rdma_peer_memory", "peer_memory_limit_bytes", "Memory of clients that is mapped at most.", 1),
            ("rdma_direct_linger", "direct_linger_seconds", "Time for which the index outlasts its last reader.", 1),
            ("rdma_direct_remote", "direct_remote", "1: clients of RDMA devices read values themselves.", 1),
            ("rdma_view_limit", "views_limit_bytes", "Items that clients may have views of at most.", 1),
            ("rdma_view_items", "views_limit", "Views at most.", 1),
            ("rdma_spin", "spin_seconds", "Gap between two requests that a worker polls through at most.", US),
            ("rdma_spin_share", "spin_share_ratio", "Part of its time that a worker polls at most.", 0.01),
            ("rdma_crc", "crc", "1: soft_iw has checksums.", 1),
            ("rdma_cm_port", "cm_port", "Port of rdma_cm; 0: none.", 1),
            ("rdma_queue_pairs", "queue_pairs", "Queue pairs.", 1),
            ("rdma_cm_queue_pairs", "cm_queue_pairs", "Of these, connected through rdma_cm.", 1),
            ("rdma_unready_queue_pairs", "unready_queue_pairs", "Of these, those that wait for READY.", 1),
            ("rdma_registrations", "registrations", "Memory regions with messages of queue pairs.", 1),
            ("rdma_arena_registrations", "arena_registrations", "Memory regions with items.", 1),
            ("rdma_streams", "lanes", "Lanes.", 1),
            ("rdma_input_bytes", "input_bytes", "Memory of commands that have come in part.", 1),
            ("rdma_views", "views", "Items that clients have views of.", 1),
            ("rdma_view_bytes", "views_bytes", "Bytes of these items.", 1),
        )
    ),
    Metric(
        *("rdma", R + "transport_queue_pairs", "gauge", "Queue pairs by transport."),
        {f"rdma_{name}_queue_pairs": (name,) for name in ("verbs", "soft_iw", "soft_shm")},
        ("transport",),
    ),
    *(
        _counter("rdma", statistic, R + name + "_total", text, scale)
        for statistic, name, text, scale in (
            ("rdma_total_queue_pairs", "queue_pairs_made", "Queue pairs that were made.", 1),
            ("rdma_refused_lanes", "refused_lanes", "Lanes that -c had no room for.", 1),
            ("rdma_exchanges", "exchanges", "Requests for a queue pair.", 1),
            ("rdma_exchange_errors", "exchange_errors", "Of these, refused ones.", 1),
            ("rdma_refused_queue_pairs", "refused_queue_pairs", "Of these, because of -o rdma_max_qps.", 1),
            ("rdma_refused_streams", "refused_streams", "Streams with a wrong token or number.", 1),
            ("rdma_ready_timeouts", "ready_timeouts", "Queue pairs given up because READY did not come.", 1),
            ("rdma_sends", "sends", "Messages to clients.", 1),
            ("rdma_send_bytes", "send_bytes", "Bytes of messages to clients.", 1),
            ("rdma_recvs", "receives", "Messages from clients.", 1),
            ("rdma_recv_bytes", "receive_bytes", "Bytes of messages from clients.", 1),
            ("rdma_reads", "reads", "Values fetched from memory of clients.", 1),
            ("rdma_read_bytes", "read_bytes", "Bytes of these values.", 1),
            ("rdma_read_errors", "read_errors", "Values that could not be fetched.", 1),
            ("rdma_writes", "writes", "Values delivered into memory of clients.", 1),
            ("rdma_write_bytes", "write_bytes", "Bytes of these values.", 1),
            ("rdma_write_errors", "write_errors", "Values that could not be delivered.", 1),
            ("rdma_qp_errors", "queue_pair_errors", "Queue pairs that ended with an error.", 1),
            ("rdma_credit_waits", "credit_waits", "Replies that waited because the client had no room.", 1),
            ("rdma_wakeups", "wakeups", "Events of completion queues.", 1),
            ("rdma_completions", "completions", "Completions that were taken.", 1),
            ("rdma_doorbells", "doorbells", "Lists of work requests that were posted.", 1),
            ("rdma_polled_ns", "polled_seconds", "Time that workers polled.", NS),
            ("rdma_total_views", "views_given", "Views that were given.", 1),
            ("rdma_refused_views", "views_refused", "Views refused because of -o rdma_view_limit.", 1),
            ("rdma_async_events", "async_events", "Asynchronous events of the system's device.", 1),
            ("rdma_devices_lost", "devices_lost", "Devices that failed or were removed.", 1),
        )
    ),
    *(
        Metric(
            *("rdma", R + f"soft_{name}_total", "counter", text),
            {f"{short}_{statistic}": (transport,) for short, transport in (("iw", "soft_iw"), ("shm", "soft_shm"))},
            ("transport",),
        )
        for statistic, name, text in (
            ("rx_bytes", "received_bytes", "Bytes received by a software device."),
            ("tx_bytes", "sent_bytes", "Bytes sent by a software device."),
            ("rx_staged_bytes", "received_staged_bytes", "Of those received, bytes that were copied once more."),
            ("terminates_sent", "terminates_sent", "Connections ended by an error that was found here."),
            ("terminates_received", "terminates_received", "Connections ended by an error that the client found."),
        )
    ),
    _counter("rdma", "iw_rx_fpdus", R + "soft_iw_received_frames_total", "Frames received by soft_iw."),
    _counter("rdma", "iw_tx_fpdus", R + "soft_iw_sent_frames_total", "Frames sent by soft_iw."),
    _counter("rdma", "shm_one_sided", R + "soft_shm_one_sided_total", "READs and WRITEs of soft_shm by one copy."),
    _gauge("rdma", "shm_mapped_regions", R + "soft_shm_mapped_regions", "Regions of clients' memory that are mapped."),
    _gauge("rdma", "shm_mapped_bytes", R + "soft_shm_mapped_bytes", "Memory of clients that is mapped."),
    _counter("rdma", "shm_declined_offers", R + "soft_shm_declined_offers_total", "Memory that was not mapped."),
]

METRICS = [*GENERAL, *SETTINGS, *ITEMS, *SLABS, *TOTAL_SLABS, *RDMA]

LEFT_OUT = {
    ("", "pid"): "the number of a process is no measure; memcached_uptime_seconds shows a restart",
    ("", "pointer_size"): "it is 64 always",
    ("", "version"): "the label of memcached_version",
    ("", "rmemcached_version"): "a label of rmemcached_build_info",
    ("settings", "maxbytes"): "memcached_limit_bytes",
    ("settings", "maxconns"): "memcached_max_connections",
    ("settings", "num_threads"): "rmemcached_threads",
    ("settings", "tcpport"): "a place, and no measure",
    ("settings", "udpport"): "a place, and no measure",
    ("settings", "umask"): "permissions, and no measure",
    ("settings", "oldest"): "the time of the last flush, on a clock of the daemon's own",
    ("settings", "num_threads_per_udp"): "it is rmemcached_threads always",
    ("settings", "auth_enabled_sasl"): "SASL is not built in",
    ("settings", "auth_enabled_ascii"): "the name of a file, where it is not off",
    ("settings", "inline_ascii_response"): "it is off always",
    ("slabs", "cmd_set"): "memcached_slab_commands_total: sets and cas together",
}
"""(group, statistic): why there is no metric of its name. Of words that are no numbers, only those with a place."""

PLACE = re.compile("[0-9]{0,2}")  # there are 63 classes at most


class Sample(NamedTuple):
    """What a metric has to say of a server."""

    metric: Metric
    rows: list[tuple[tuple[str, ...], float]]  # values of metric.all_labels, and the value


def by_class(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{class: {name: value}} of `stats items` and `stats slabs`; what is of no class is in "".

    What no memcached has for a class is left out: each would be a time series.
    """
    classes: dict[str, dict[str, Any]] = {}
    for full, value in found.items():
        place, _, name = full.removeprefix("items:").rpartition(":")
        if PLACE.fullmatch(place):
            classes.setdefault(place, {})[name] = value
    return classes


def sets_alone(found: Mapping[str, Any]) -> float | None:
    """Sets without cas, which cmd_set counts too. Other counters are read a moment later: never below 0."""
    if "cmd_set" not in found:
        return None
    cas = sum(number(found.get(name, 0)) or 0.0 for name in ("cas_hits", "cas_misses", "cas_badval"))
    return max((number(found["cmd_set"]) or 0.0) - cas, 0.0)


def _rows(metric: Metric, found: Mapping[str, Any], before: tuple[str, ...]) -> list[tuple[tuple[str, ...], float]]:
    rows = []
    for statistic, labels in metric.sources.items():
        value = number(found[statistic]) if statistic in found else None
        if value is not None:
            rows.append(((*before, *labels), value * metric.scale))
    if metric.labels == ("command", "status"):
        sets = sets_alone(found)
        if sets is not None:
            rows.append(((*before, "set", "hit"), sets))
    return rows


def samples(groups: Mapping[str, Mapping[str, Any]]) -> list[Sample]:
    """The metrics that a server has; groups: {group: its statistics}."""
    classes = {group: by_class(groups[group]) for group in BY_CLASS}
    flat = {**groups, ALL_SLABS: classes["slabs"].get("", {})}
    found = []
    for metric in METRICS:
        rows = []
        if metric.group not in BY_CLASS:
            rows = _rows(metric, flat[metric.group], ())
        else:
            for place, statistics in classes[metric.group].items():
                if place:
                    rows += _rows(metric, statistics, (place,))
        found.append(Sample(metric, rows))
    return [sample for sample in found if sample.rows]
