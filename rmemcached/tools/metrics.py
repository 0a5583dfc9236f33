"""The metrics of statistics: names, types, labels and help.

Names in memcached_ are prometheus/memcached_exporter's, known to dashboards and alerts; names in rmemcached_ are ours.
Three of memcached_exporter's counters lack a counter's ending _total; here they have this ending.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rmemcached.client.transport.transports import ROWS
from rmemcached.tools.targets import number

GROUPS = ("", "settings", "items", "slabs", "rdma")
"""The subcommands of `stats` that are asked; "" is `stats` itself."""
BY_CLASS = ("items", "slabs")
ALL_SLABS = "slabs, of all classes"


class Metric(NamedTuple):
    """A metric, and its statistics from one group.

    sources: {statistic: values of the labels}. labels: the labels' names; in a group of BY_CLASS the label "slab" comes
    first. scale: the factor from the statistic to seconds or bytes.
    """

    group: str
    name: str
    help: str
    sources: Mapping[str, tuple[str, ...]]
    labels: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def all_labels(self) -> tuple[str, ...]:
        return ("slab", *self.labels) if self.group in BY_CLASS else self.labels


# A line below a group has a statistic with its scale, the metric's name, and the metric's help.
TABLE = """
[general]
uptime memcached_uptime_seconds Seconds since the server started.
time memcached_time_seconds UNIX time of the server.
rusage_user memcached_process_user_cpu_seconds_total CPU time of the server in user mode.
rusage_system memcached_process_system_cpu_seconds_total CPU time of the server in the kernel.
max_connections memcached_max_connections Connections that the server takes at most (-c).
curr_connections memcached_current_connections Open connections.
total_connections memcached_connections_total Connections that were opened.
rejected_connections memcached_connections_rejected_total Connections refused because of -c.
connection_structures rmemcached_connections_highest Most connections at one time so far.
response_obj_oom rmemcached_response_out_of_memory_total Replies for which no memory was left.
response_obj_count rmemcached_responses_waiting Replies that wait in connections.
response_obj_bytes rmemcached_responses_waiting_bytes Memory of replies that wait in connections.
read_buf_count rmemcached_read_buffers Buffers for commands that come in.
read_buf_bytes rmemcached_read_buffers_bytes Memory of buffers for commands that come in.
read_buf_bytes_free rmemcached_read_buffers_free_bytes Of that memory, what no connection holds.
read_buf_oom rmemcached_read_buffer_out_of_memory_total Buffers for which no memory was left.
reserved_fds rmemcached_reserved_descriptors Descriptors that the server keeps for itself.
get_expired rmemcached_get_expired_total Misses because the item had expired.
get_flushed rmemcached_get_flushed_total Misses because the item had been flushed.
store_too_large memcached_item_too_large_total Items that were larger than -I allows.
store_no_memory memcached_item_no_memory_total Items for which no memory was left.
auth_cmds rmemcached_authentications_total Authentications that were tried.
auth_errors rmemcached_authentication_errors_total Authentications that failed.
idle_kicks rmemcached_idle_kicks_total Connections closed because of -o idle_timeout.
idle_kicks_stalled rmemcached_idle_kicks_stalled_total Of these, those within a transfer.
bytes_read memcached_read_bytes_total Bytes that were read from sockets.
bytes_written memcached_written_bytes_total Bytes that were written to sockets.
limit_maxbytes memcached_limit_bytes Memory for items at most (-m).
accepting_conns memcached_accepting_connections 1 while new connections are accepted.
listen_disabled_num memcached_connections_listener_disabled_total
    Times that -c stopped the server from accepting connections.
time_in_listen_disabled_us*1e-06 rmemcached_listener_disabled_seconds_total Time in which it accepted none.
threads rmemcached_threads Worker threads (-t).
conn_yields memcached_connections_yielded_total Times that -R made a connection wait its turn.
hash_power_level rmemcached_hash_power_level The hash table has 2 to the power of this buckets.
hash_bytes rmemcached_hash_bytes Memory of the hash table.
hash_is_expanding rmemcached_hash_is_expanding 1 while the hash table grows.
slab_reassign_rescues rmemcached_slab_reassign_rescues_total Items that page moves kept.
slab_reassign_chunk_rescues rmemcached_slab_reassign_chunk_rescues_total Chunks they kept.
slab_reassign_inline_reclaim rmemcached_slab_reassign_inline_reclaims_total Items they evicted.
slab_reassign_busy_items rmemcached_slab_reassign_busy_items_total Items in use they met.
slab_reassign_busy_deletes rmemcached_slab_reassign_busy_deletes_total Of these, deleted ones.
slab_reassign_busy_nomem rmemcached_slab_reassign_busy_no_memory_total Waits for free memory.
slab_reassign_running rmemcached_slab_reassign_running 1 while a page moves.
slabs_moved rmemcached_slab_pages_moved_total Pages moved from a class to another.
lru_crawler_running rmemcached_lru_crawler_running 1 while the LRU crawler runs.
lru_crawler_starts memcached_lru_crawler_starts_total Times that the LRU crawler started.
lru_maintainer_juggles rmemcached_lru_maintainer_juggles_total Rounds of the LRU maintainer.
malloc_fails rmemcached_malloc_fails_total Allocations that failed.
log_worker_dropped rmemcached_log_worker_dropped_total Log entries dropped by full rings.
log_worker_written rmemcached_log_worker_written_total Log entries that were written.
log_watcher_skipped rmemcached_log_watcher_skipped_total Log entries a slow watcher missed.
log_watcher_sent rmemcached_log_watcher_sent_total Log entries sent to watchers.
log_watchers rmemcached_log_watchers Watchers.
unexpected_napi_ids memcached_unexpected_napi_ids_total Unexpected NAPI IDs.
round_robin_fallback memcached_round_robin_fallback_total Connections given out in turn.
ssl_new_sessions rmemcached_tls_new_sessions_total TLS sessions that were not resumed.
ssl_handshake_errors rmemcached_tls_handshake_errors_total TLS handshakes that failed.
ssl_proto_errors rmemcached_tls_protocol_errors_total TLS connections with a wrong record.
time_since_server_cert_refresh rmemcached_tls_certificate_age_seconds Time since the certificates were read.
bytes memcached_current_bytes Bytes of items, with their headers.
curr_items memcached_current_items Items.
total_items memcached_items_total Items that were stored.
slab_global_page_pool rmemcached_slab_global_page_pool Pages that no class has.
expired_unfetched rmemcached_items_expired_unfetched_total Items that expired and nobody got.
evicted_unfetched rmemcached_items_evicted_unfetched_total Items evicted that nobody got.
evicted_active rmemcached_items_evicted_active_total Items evicted soon after a get.
evictions memcached_items_evicted_total Valid items that were evicted for new ones.
reclaimed memcached_items_reclaimed_total Items stored in the memory of expired ones.
crawler_reclaimed memcached_lru_crawler_reclaimed_total Items that the LRU crawler freed.
crawler_items_checked memcached_lru_crawler_items_checked_total Items the crawler looked at.
lrutail_reflocked rmemcached_lru_tail_locked_total Items in use at the tail of an LRU.
moves_to_cold memcached_lru_crawler_moves_to_cold_total Moves from HOT or WARM to COLD.
moves_to_warm memcached_lru_crawler_moves_to_warm_total Moves from COLD to WARM.
moves_within_lru memcached_lru_crawler_moves_within_lru_total Moves within HOT or WARM.
direct_reclaims memcached_direct_reclaims_total Times that workers had to evict themselves.
lru_bumps_dropped rmemcached_lru_bumps_dropped_total Moves to a head that were left out.
get_extstore memcached_extstore_gets_total Gets of values on flash.
get_aborted_extstore memcached_extstore_gets_aborted_total Gets given up before the value came.
get_oom_extstore memcached_extstore_gets_out_of_memory_total Gets without memory for the value.
recache_from_extstore memcached_extstore_recached_total Values put back into memory.
miss_from_extstore memcached_extstore_misses_total Values that were gone, or that could not be read.
badcrc_from_extstore memcached_extstore_bad_checksums_total Of these, values with a wrong checksum.
extstore_memory_pressure memcached_extstore_memory_pressure Percent of memory with items that never go to flash.
extstore_compact_lost memcached_extstore_compact_lost_total Values that compaction lost.
extstore_compact_rescues memcached_extstore_compact_rescues_total Values that compaction kept.
extstore_compact_resc_cold memcached_extstore_compact_rescues_cold_total Of these, values in pages of their own.
extstore_compact_resc_old memcached_extstore_compact_rescues_old_total Of these, values of the oldest pages.
extstore_compact_skipped memcached_extstore_compact_skipped_total Unread values that compaction dropped.
extstore_page_allocs memcached_extstore_page_allocs_total Uses of pages that began.
extstore_page_evictions memcached_extstore_page_evictions_total Pages dropped with their values.
extstore_page_reclaims memcached_extstore_page_reclaims_total Pages that became free.
extstore_pages_free memcached_extstore_pages_free Free pages.
extstore_pages_used memcached_extstore_pages_used Pages in use.
extstore_objects_evicted memcached_extstore_objects_evicted_total Values dropped with their page.
extstore_objects_read memcached_extstore_objects_read_total Values read.
extstore_objects_written memcached_extstore_objects_written_total Values written.
extstore_objects_used memcached_extstore_objects_used Values on flash.
extstore_bytes_evicted memcached_extstore_bytes_evicted_total Bytes dropped with their page.
extstore_bytes_written memcached_extstore_bytes_written_total Bytes written.
extstore_bytes_read memcached_extstore_bytes_read_total Bytes read.
extstore_bytes_used memcached_extstore_bytes_used Bytes of values on flash.
extstore_bytes_fragmented memcached_extstore_bytes_fragmented Bytes of used pages without a value.
extstore_limit_maxbytes memcached_extstore_limit_bytes Bytes of all pages (ext_path).
extstore_io_queue memcached_extstore_io_queue Reads that wait for a thread.
extstore_io_errors rmemcached_extstore_io_errors_total Failed writes, and pages that a compaction could not read.
extstore_pages_resting rmemcached_extstore_pages_resting Pages without a use for a while, after such an error.
ghost_hits rmemcached_ghost_hits_total Stores of keys that S3-FIFO had evicted lately.
ghost_bytes rmemcached_ghost_bytes Memory of what S3-FIFO remembers of evicted keys.
small_lru_pct*0.01 rmemcached_small_lru_ratio Part of the memory for S3-FIFO's small queue.
direct_buckets rmemcached_direct_buckets Buckets of the index that clients read.
direct_items rmemcached_direct_items Items in that index.
direct_left_out rmemcached_direct_left_out Items that had no room in it.
direct_pinned_pages rmemcached_direct_pinned_pages Pages with items that clients look at.
direct_hits rmemcached_direct_hits_total Values that clients read themselves, as they say.
direct_clients rmemcached_direct_clients Clients that have ever been able to read values themselves.
direct_readers rmemcached_direct_readers Clients that can do so now.
direct_building rmemcached_direct_building 1: their index is being made.
direct_sealed rmemcached_direct_sealed 1: no memory of items goes back to the system any more.
huge_pages_made rmemcached_huge_pages_made_total Memory pages of 2 MB that items got.
[settings]
lru_crawler memcached_lru_crawler_enabled 1: there is an LRU crawler.
lru_crawler_sleep memcached_lru_crawler_sleep Pause of the LRU crawler after each 1000 items, in microseconds.
lru_crawler_tocrawl memcached_lru_crawler_to_crawl Items of an LRU queue that the LRU crawler looks at; 0: all.
lru_maintainer_thread memcached_lru_crawler_maintainer_thread 1: there is an LRU maintainer.
hot_lru_pct memcached_lru_crawler_hot_percent Percent of a class for HOT.
warm_lru_pct memcached_lru_crawler_warm_percent Percent of a class for WARM.
hot_max_factor memcached_lru_crawler_hot_max_factor Age of HOT at most, as a part of COLD's.
warm_max_factor memcached_lru_crawler_warm_max_factor Age of WARM at most, as a part of COLD's.
verbosity rmemcached_setting_verbosity How much is logged (-v).
evictions rmemcached_setting_evictions 1: items are evicted; 0: stores fail when memory is full (-M).
shutdown_command rmemcached_setting_shutdown_command 1: clients can end the server (-A).
growth_factor rmemcached_setting_growth_factor Ratio of the sizes of two classes (-f).
chunk_size rmemcached_setting_chunk_size_bytes Least memory of an item (-n).
detail_enabled rmemcached_setting_detail_enabled 1: prefixes of keys are counted (stats detail on).
reqs_per_event rmemcached_setting_requests_per_turn Requests of a connection in a turn (-R).
cas_enabled rmemcached_setting_cas_enabled 1: items have a CAS number; 0: -C.
tcp_backlog rmemcached_setting_tcp_backlog Connections that may wait for being accepted (-b).
item_size_max rmemcached_setting_item_size_max_bytes Size of an item at most (-I).
maxconns_fast rmemcached_setting_maxconns_fast 1: connections above -c are refused at once.
hashpower_init rmemcached_setting_hash_power_level Hash power level at the start; 0: the default.
slab_reassign rmemcached_setting_slab_reassign 1: pages can move from a class to another.
slab_automove rmemcached_setting_slab_automove 1: pages are moved automatically.
slab_automove_ratio rmemcached_setting_slab_automove_ratio Ratio of the ages of two classes that moves a page.
slab_automove_window rmemcached_setting_slab_automove_window Rounds that the mover averages.
slab_chunk_max rmemcached_setting_slab_chunk_max_bytes Largest chunk; larger items are chained.
tail_repair_time rmemcached_setting_tail_repair_time_seconds Age of items in use that are taken from a tail; 0: never.
flush_enabled rmemcached_setting_flush_enabled 1: clients can flush all (not -F).
dump_enabled rmemcached_setting_dump_enabled 1: clients can list all keys (not -X).
lru_segmented rmemcached_setting_lru_segmented 1: the LRU has segments.
temp_lru rmemcached_setting_temporary_lru 1: items that expire soon have a queue of their own.
temporary_ttl rmemcached_setting_temporary_ttl_seconds What expires sooner is in that queue.
idle_timeout rmemcached_setting_idle_timeout_seconds Idle connections are closed after it; 0: never.
watcher_logbuf_size rmemcached_setting_watcher_log_buffer_bytes Buffer of a watcher.
worker_logbuf_size rmemcached_setting_worker_log_buffer_bytes Buffer of a worker's log.
read_buf_mem_limit rmemcached_setting_read_buffer_limit_bytes Memory of read buffers at most; 0: without limit.
track_sizes rmemcached_setting_track_sizes 1: stats sizes counts items by size.
auth_enabled_sasl rmemcached_setting_sasl 1: clients authenticate themselves by SASL (-S).
ssl_enabled rmemcached_setting_tls 1: connections have TLS (-Z).
ssl_verify_mode rmemcached_setting_tls_verify_mode Client certificates, in OpenSSL's bits; 0: none.
ssl_wbuf_size rmemcached_setting_tls_write_buffer_bytes Replies gathered before they are encrypted.
ssl_session_cache rmemcached_setting_tls_session_cache 1: sessions may be resumed by their number.
ssl_kernel_tls rmemcached_setting_tls_kernel 1: the kernel encrypts, if it can.
num_napi_ids rmemcached_setting_napi_ids Number of NAPI IDs (-N).
client_flags_size rmemcached_setting_client_flags_bytes Size of an item's flags.
[items]
number memcached_slab_current_items Items of a class.
number_hot memcached_slab_hot_items Items of a class in HOT.
number_warm memcached_slab_warm_items Items of a class in WARM.
number_cold memcached_slab_cold_items Items of a class in COLD.
number_temp memcached_slab_temporary_items Items of a class that expire soon.
age memcached_slab_items_age_seconds Seconds since the oldest item of a class was used.
age_hot memcached_slab_hot_age_seconds Likewise of HOT.
age_warm memcached_slab_warm_age_seconds Likewise of WARM.
mem_requested memcached_slab_mem_requested_bytes Bytes that the items of a class need.
evicted memcached_slab_items_evicted_total Valid items of a class that were evicted.
evicted_nonzero memcached_slab_items_evicted_nonzero_total Of these, with a time to expire.
evicted_time memcached_slab_items_evicted_time_seconds Seconds the last evicted was unused.
outofmemory memcached_slab_items_outofmemory_total Items for which no memory was left.
tailrepairs memcached_slab_items_tailrepairs_total Items in use that were taken from a tail.
reclaimed memcached_slab_items_reclaimed_total Items stored in the memory of expired ones.
expired_unfetched memcached_slab_items_expired_unfetched_total Expired, and nobody got them.
evicted_unfetched memcached_slab_items_evicted_unfetched_total Evicted, and nobody got them.
evicted_active rmemcached_slab_items_evicted_active_total Evicted soon after a get.
crawler_reclaimed memcached_slab_items_crawler_reclaimed_total Items the LRU crawler freed.
crawler_items_checked rmemcached_slab_items_crawler_checked_total Items it looked at.
lrutail_reflocked rmemcached_slab_lru_tail_locked_total Items in use at a tail.
moves_to_cold memcached_slab_items_moves_to_cold_total Moves from HOT or WARM to COLD.
moves_to_warm memcached_slab_items_moves_to_warm_total Moves from COLD to WARM.
moves_within_lru memcached_slab_items_moves_within_lru_total Moves within HOT or WARM.
direct_reclaims rmemcached_slab_direct_reclaims_total Times that workers evicted themselves.
[slabs]
chunk_size memcached_slab_chunk_size_bytes Memory of an item of a class.
chunks_per_page memcached_slab_chunks_per_page Chunks in a page.
total_pages memcached_slab_current_pages Pages of a class.
total_chunks memcached_slab_current_chunks Chunks of a class.
used_chunks memcached_slab_chunks_used Chunks with an item.
free_chunks memcached_slab_chunks_free Chunks without one.
free_chunks_end memcached_slab_chunks_free_end Chunks at the end of the last page; always 0.
[all slabs]
active_slabs rmemcached_active_slabs Classes that have pages.
total_malloced memcached_malloced_bytes Memory of the pages of all classes.
[rdma]
rdma_credits rmemcached_rdma_credits Messages that a queue pair may have on the way.
rdma_msgsize rmemcached_rdma_message_size_bytes Size of a message at most.
rdma_eager rmemcached_rdma_eager_bytes Values up to this size travel in messages.
rdma_max_queue_pairs rmemcached_rdma_max_queue_pairs Queue pairs at most (-o rdma_max_qps).
rdma_lane_bytes rmemcached_rdma_lane_bytes What a lane may have unused.
rdma_max_lanes rmemcached_rdma_max_lanes Lanes of a queue pair at most.
rdma_ready_timeout rmemcached_rdma_ready_timeout_seconds Time for a client to say READY.
rdma_peer_memory rmemcached_rdma_peer_memory_limit_bytes Memory of clients that is mapped at most.
rdma_direct_linger rmemcached_rdma_direct_linger_seconds Time for which the index outlasts its last reader.
rdma_direct_remote rmemcached_rdma_direct_remote 1: clients of RDMA devices read values themselves.
rdma_view_limit rmemcached_rdma_views_limit_bytes Items that clients may have views of at most.
rdma_view_items rmemcached_rdma_views_limit Views at most.
rdma_spin*1e-06 rmemcached_rdma_spin_seconds Gap between two requests that a worker polls through at most.
rdma_spin_share*0.01 rmemcached_rdma_spin_share_ratio Part of its time that a worker polls at most.
rdma_crc rmemcached_rdma_crc 1: soft_iw has checksums.
rdma_cm_port rmemcached_rdma_cm_port Port of rdma_cm; 0: none.
rdma_queue_pairs rmemcached_rdma_queue_pairs Queue pairs.
rdma_cm_queue_pairs rmemcached_rdma_cm_queue_pairs Of these, connected through rdma_cm.
rdma_unready_queue_pairs rmemcached_rdma_unready_queue_pairs Of these, those that wait for READY.
rdma_registrations rmemcached_rdma_registrations Memory regions with messages of queue pairs.
rdma_arena_registrations rmemcached_rdma_arena_registrations Memory regions with items.
rdma_streams rmemcached_rdma_lanes Lanes.
rdma_input_bytes rmemcached_rdma_input_bytes Memory of commands that have come in part.
rdma_views rmemcached_rdma_views Items that clients have views of.
rdma_view_bytes rmemcached_rdma_views_bytes Bytes of these items.
rdma_total_queue_pairs rmemcached_rdma_queue_pairs_made_total Queue pairs that were made.
rdma_refused_lanes rmemcached_rdma_refused_lanes_total Lanes that -c had no room for.
rdma_exchanges rmemcached_rdma_exchanges_total Requests for a queue pair.
rdma_exchange_errors rmemcached_rdma_exchange_errors_total Of these, refused ones.
rdma_refused_queue_pairs rmemcached_rdma_refused_queue_pairs_total Of these, because of -o rdma_max_qps.
rdma_refused_streams rmemcached_rdma_refused_streams_total Streams with a wrong token or number.
rdma_ready_timeouts rmemcached_rdma_ready_timeouts_total Queue pairs given up because READY did not come.
rdma_sends rmemcached_rdma_sends_total Messages to clients.
rdma_send_bytes rmemcached_rdma_send_bytes_total Bytes of messages to clients.
rdma_recvs rmemcached_rdma_receives_total Messages from clients.
rdma_recv_bytes rmemcached_rdma_receive_bytes_total Bytes of messages from clients.
rdma_reads rmemcached_rdma_reads_total Values fetched from memory of clients.
rdma_read_bytes rmemcached_rdma_read_bytes_total Bytes of these values.
rdma_read_errors rmemcached_rdma_read_errors_total Values that could not be fetched.
rdma_writes rmemcached_rdma_writes_total Values delivered into memory of clients.
rdma_write_bytes rmemcached_rdma_write_bytes_total Bytes of these values.
rdma_write_errors rmemcached_rdma_write_errors_total Values that could not be delivered.
rdma_qp_errors rmemcached_rdma_queue_pair_errors_total Queue pairs that ended with an error.
rdma_credit_waits rmemcached_rdma_credit_waits_total Replies that waited for a credit of the client.
rdma_wakeups rmemcached_rdma_wakeups_total Events of completion queues.
rdma_completions rmemcached_rdma_completions_total Completions that were taken.
rdma_doorbells rmemcached_rdma_doorbells_total Lists of work requests that were posted.
rdma_polled_ns*1e-09 rmemcached_rdma_polled_seconds_total Time that workers polled.
rdma_total_views rmemcached_rdma_views_given_total Views that were given.
rdma_refused_views rmemcached_rdma_views_refused_total Views refused because of -o rdma_view_limit.
rdma_async_events rmemcached_rdma_async_events_total Asynchronous events of the system's device.
rdma_devices_lost rmemcached_rdma_devices_lost_total Devices that failed or were removed.
iw_rx_fpdus rmemcached_rdma_soft_iw_received_frames_total Frames received by soft_iw.
iw_tx_fpdus rmemcached_rdma_soft_iw_sent_frames_total Frames sent by soft_iw.
shm_one_sided rmemcached_rdma_soft_shm_one_sided_total READs and WRITEs of soft_shm by one copy.
shm_mapped_regions rmemcached_rdma_soft_shm_mapped_regions Regions of clients' memory that are mapped.
shm_mapped_bytes rmemcached_rdma_soft_shm_mapped_bytes Memory of clients that is mapped.
shm_declined_offers rmemcached_rdma_soft_shm_declined_offers_total Memory that was not mapped.
"""


def _read(table: str) -> Iterator[Metric]:
    """Yields the metrics of a table like TABLE."""
    group = ""
    for line in table.strip().replace("\n    ", " ").splitlines():
        if line.startswith("["):
            group = {"general": "", "all slabs": ALL_SLABS}.get(line[1:-1], line[1:-1])
            continue
        statistic, name, text = line.split(" ", 2)
        statistic, _, scale = statistic.partition("*")
        yield Metric(group, name, text, {statistic: ()}, (), float(scale or 1))


def _outcomes(*outcomes: str) -> dict[str, tuple[str, ...]]:
    """Returns {statistic: (command, outcome)} of the commands with a key."""
    commands = ("get", "delete", "incr", "decr", "cas", "touch")
    plural = {"hit": "hits", "miss": "misses"}
    found = {f"{command}_{plural[outcome]}": (command, outcome) for outcome in outcomes for command in commands}
    return {**found, "cas_badval": ("cas", "badval")}


def _soft(statistic: str, name: str, text: str) -> Metric:
    """Returns a metric of a statistic that each software transport has."""
    sources = {f"{name.removeprefix('soft_')}_{statistic}": (name,) for name, row in ROWS.items() if row.soft}
    return Metric("rdma", f"rmemcached_rdma_soft_{name}_total", text, sources, ("transport",))


METRICS = [
    *_read(TABLE),
    Metric(
        *("", "memcached_commands_total", "Commands by name and outcome; set is without cas."),
        {**_outcomes("hit", "miss"), "cmd_flush": ("flush", "hit")},
        ("command", "status"),
    ),
    Metric(
        *("", "rmemcached_commands_received_total", "Commands as the server counts them; set with cas."),
        {f"cmd_{command}": (command,) for command in ("get", "set", "touch", "meta")},
        ("command",),
    ),
    Metric(
        *("items", "memcached_slab_lru_hits_total", "Gets of items of a class, by the queue that they were in."),
        {f"hits_to_{name[:4]}": (name,) for name in ("hot", "warm", "cold", "temporary")},
        ("lru",),
    ),
    Metric(
        *("slabs", "memcached_slab_commands_total", "Commands on items of a class; set is without cas."),
        _outcomes("hit"),
        ("command", "status"),
    ),
    Metric(
        *("rdma", "rmemcached_rdma_transport_queue_pairs", "Queue pairs by transport."),
        {f"rdma_{name}_queue_pairs": (name,) for name, row in ROWS.items() if not row.plain and not row.by_cm},
        ("transport",),
    ),
    _soft("rx_bytes", "received_bytes", "Bytes received by a software device."),
    _soft("tx_bytes", "sent_bytes", "Bytes sent by a software device."),
    _soft("rx_staged_bytes", "received_staged_bytes", "Of those received, bytes that were copied once more."),
    _soft("terminates_sent", "terminates_sent", "Connections ended by an error that was found here."),
    _soft("terminates_received", "terminates_received", "Connections ended by an error that the client found."),
]

_OF_FLASH = (
    *("item_size", "item_age", "low_ttl", "recache_rate", "wbuf_size"),
    *("compact_under", "drop_under", "max_sleep", "max_frag", "drop_unread"),
)
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
    ("settings", "ssl_keyformat"): "the format of a file, and no measure",
    ("settings", "auth_enabled_ascii"): "the name of a file, where it is not off",
    ("settings", "inline_ascii_response"): "it is off always",
    ("settings", "slab_automove_freeratio"): "a threshold of storage on flash, and no measure",
    **{("settings", f"ext_{name}"): "a size or threshold of storage on flash, and no measure" for name in _OF_FLASH},
    ("settings", "proxy_enabled"): "the proxy is not built in",
    ("settings", "proxy_uring_enabled"): "the proxy is not built in",
    ("slabs", "cmd_set"): "memcached_slab_commands_total: sets and cas together",
}
"""(group, statistic): why the statistic has no metric of its own. Of statistics with a text as value, only the texts
used as labels are listed."""

PLACE = re.compile("[0-9]{0,2}")  # there are 63 classes at most


class Sample(NamedTuple):
    """A metric's values for a server."""

    metric: Metric
    rows: list[tuple[tuple[str, ...], float]]  # values of metric.all_labels, and the value


def by_class(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns {class: {name: value}} of `stats items` and `stats slabs`; statistics without a class are in "".

    Impossible class numbers are left out, because each would be a time series.
    """
    classes: dict[str, dict[str, Any]] = {}
    for full, value in found.items():
        place, _, name = full.removeprefix("items:").rpartition(":")
        if PLACE.fullmatch(place):
            classes.setdefault(place, {})[name] = value
    return classes


def sets_alone(found: Mapping[str, Any]) -> float | None:
    """Returns the sets without cas; cmd_set counts both. The server reads cas's counters a moment later,
    so the difference may be negative: then 0."""
    if "cmd_set" not in found:
        return None
    cas = sum(number(found.get(name, 0)) or 0.0 for name in ("cas_hits", "cas_misses", "cas_badval"))
    return max((number(found["cmd_set"]) or 0.0) - cas, 0.0)


def _rows(metric: Metric, found: Mapping[str, Any], before: tuple[str, ...]) -> list[tuple[tuple[str, ...], float]]:
    """Returns the rows of a Sample. before: values of the labels before metric.labels."""
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
    """Returns the metrics of a server; groups: {group: its statistics}."""
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
