"""Writes `stats rdma` (see stats.pxd)."""

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset

from rmemcached.protocol.stats_text cimport stat_append, stat_append_text
from rmemcached.rdma.device cimport (
    DIRECT_NOBODY, RDMA_DEVICES, RDMA_LANE_BYTES, add_counts, counter_entry, rdma_counters, rdma_device,
    rdma_device_memory, rdma_limits, transport_ops,
)
from rmemcached.rdma.transport cimport transport_of
from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.linux cimport pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.verbs.soft cimport soft_qp_counters

cdef struct rdma_totals:         # over all devices
    rdma_counters counts
    uint64_t cm_queue_pairs
    uint64_t pins
    uint64_t pinned_bytes
    uint64_t extent_registrations
    uint64_t async_events
    uint64_t losses
    soft_qp_counters soft[RDMA_DEVICES]  # the software provider's counts, by device

cdef struct stat_line:
    const char *name
    const uint64_t *value


cdef void do_sum_workers(rdma_device *dev, rdma_counters *total, soft_qp_counters *soft) noexcept nogil:
    """Adds the counts of all workers, present and gone. Present workers count on meanwhile."""
    cdef counter_entry *entry = dev.counting
    assert_held(&dev.counting_lock)
    add_counts(total, &dev.retired, sizeof(rdma_counters))
    add_counts(soft, &dev.retired_soft, sizeof(soft_qp_counters))
    while entry != NULL:
        add_counts(total, entry.counters, sizeof(rdma_counters))
        add_counts(soft, entry.soft, sizeof(soft_qp_counters))
        entry = entry.next


cdef void sum_device(rdma_device *dev, rdma_totals *total, soft_qp_counters *soft) noexcept nogil:
    pthread_mutex_lock(&dev.counting_lock)
    do_sum_workers(dev, &total.counts, soft)
    pthread_mutex_unlock(&dev.counting_lock)
    total.cm_queue_pairs += relaxed_load(&dev.cm_queue_pairs)
    total.pins += relaxed_load(&dev.pins)
    total.pinned_bytes += relaxed_load(&dev.pinned_bytes)
    total.extent_registrations += relaxed_load(&dev.extent_registrations)
    total.async_events += relaxed_load(&dev.async_events)
    total.losses += relaxed_load(&dev.losses)


cdef void append_device_names(rdma_device **devices, stat_buf *out) noexcept nogil:
    """Appends the names of the devices, and of their transports, separated by commas."""
    cdef rdma_device *dev
    cdef char names[256]
    cdef char transports[64]
    cdef const char *comma = b""
    cdef size_t used = 0
    cdef size_t transports_used = 0
    cdef unsigned int n
    for n in range(<unsigned int>RDMA_DEVICES):
        dev = devices[n]
        if dev == NULL:
            continue
        used += <size_t>snprintf(names + used, sizeof(names) - used, b"%s%.63s", comma,
                                 dev.provider.get_device_name(dev.port.context.device))
        transports_used += <size_t>snprintf(transports + transports_used, sizeof(transports) - transports_used,
                                            b"%s%s", comma, dev.transport.name)
        comma = b","
    stat_append_text(out, b"rdma_device", names)
    stat_append_text(out, b"rdma_transport", transports)


cdef void append_limits(const rdma_device *dev, stat_buf *out) noexcept nogil:
    stat_append(out, b"rdma_credits", dev.limits.credits)
    stat_append(out, b"rdma_msgsize", dev.limits.msgsize)
    stat_append(out, b"rdma_eager", dev.limits.eager)
    stat_append(out, b"rdma_max_queue_pairs", dev.limits.max_qps)
    stat_append(out, b"rdma_lane_bytes", <uint64_t>RDMA_LANE_BYTES)
    stat_append(out, b"rdma_max_lanes", dev.limits.lanes)
    stat_append(out, b"rdma_ready_timeout", dev.limits.ready_timeout)
    stat_append(out, b"rdma_peer_memory", <uint64_t>dev.limits.peer_memory << 20)
    stat_append(out, b"rdma_direct_linger", dev.limits.direct_linger)
    stat_append(out, b"rdma_direct_remote", dev.limits.remote)
    stat_append(out, b"rdma_view_limit", dev.limits.view_bytes)
    stat_append(out, b"rdma_view_items", dev.limits.views)
    stat_append(out, b"rdma_spin", dev.limits.spin)
    stat_append(out, b"rdma_spin_share", dev.limits.spin_share)
    stat_append(out, b"rdma_crc", dev.limits.crc)


cdef void append_place(rdma_device *near, const rdma_limits *limits, stat_buf *out) noexcept nogil:
    """Appends the socket for near clients (a file, an abstract name after an @, or the socket of -s), the clients
    that get the items' memory, and why no client does. near: the device with this endpoint; NULL: there is none."""
    cdef const char *place = b"none"
    cdef const char *reason = b"none"
    cdef const char *who = b"off"
    if limits.direct_off != NULL:
        reason = limits.direct_off
    if near != NULL and limits.direct != DIRECT_NOBODY:
        who = rdma_device_memory(near)
    if near != NULL:
        place = b"-s"
        if near.endpoint.path[0]:
            place = near.endpoint.path
    stat_append_text(out, b"rdma_shm", place)
    stat_append_text(out, b"rdma_direct", who)
    stat_append_text(out, b"rdma_direct_off", reason)


cdef void append_queue_pairs(rdma_device **devices, stat_buf *out) noexcept nogil:
    cdef char name[64]
    cdef unsigned int n
    for n in range(<unsigned int>RDMA_DEVICES):
        if devices[n] != NULL:
            snprintf(name, sizeof(name), b"rdma_%s_queue_pairs", devices[n].transport.name)
            stat_append(out, name, relaxed_load(&devices[n].queue_pairs))


cdef void append_totals(const rdma_totals *total, stat_buf *out) noexcept nogil:
    cdef const rdma_counters *counts = &total.counts
    cdef int i
    cdef stat_line[35] lines = [
        stat_line(b"rdma_cm_queue_pairs", &total.cm_queue_pairs),
        stat_line(b"rdma_total_queue_pairs", &counts.total_queue_pairs),
        stat_line(b"rdma_registrations", &counts.registrations),
        stat_line(b"rdma_arena_registrations", &total.extent_registrations),
        stat_line(b"rdma_streams", &counts.lanes),
        stat_line(b"rdma_refused_lanes", &counts.refused_lanes),
        stat_line(b"rdma_exchanges", &counts.exchanges),
        stat_line(b"rdma_exchange_errors", &counts.exchange_errors),
        stat_line(b"rdma_refused_queue_pairs", &counts.refused_queue_pairs),
        stat_line(b"rdma_refused_streams", &counts.refused_streams),
        stat_line(b"rdma_unready_queue_pairs", &counts.unready),
        stat_line(b"rdma_ready_timeouts", &counts.ready_timeouts),
        stat_line(b"rdma_sends", &counts.sends),
        stat_line(b"rdma_send_bytes", &counts.send_bytes),
        stat_line(b"rdma_recvs", &counts.recvs),
        stat_line(b"rdma_recv_bytes", &counts.recv_bytes),
        stat_line(b"rdma_reads", &counts.reads),
        stat_line(b"rdma_read_bytes", &counts.read_bytes),
        stat_line(b"rdma_read_errors", &counts.read_errors),
        stat_line(b"rdma_writes", &counts.writes),
        stat_line(b"rdma_write_bytes", &counts.write_bytes),
        stat_line(b"rdma_write_errors", &counts.write_errors),
        stat_line(b"rdma_qp_errors", &counts.qp_errors),
        stat_line(b"rdma_credit_waits", &counts.credit_waits),
        stat_line(b"rdma_input_bytes", &counts.input_bytes),
        stat_line(b"rdma_wakeups", &counts.wakeups),
        stat_line(b"rdma_completions", &counts.completions),
        stat_line(b"rdma_doorbells", &counts.doorbells),
        stat_line(b"rdma_polled_ns", &counts.polled_ns),
        stat_line(b"rdma_views", &total.pins),
        stat_line(b"rdma_view_bytes", &total.pinned_bytes),
        stat_line(b"rdma_total_views", &counts.total_views),
        stat_line(b"rdma_refused_views", &counts.refused_views),
        stat_line(b"rdma_async_events", &total.async_events),
        stat_line(b"rdma_devices_lost", &total.losses),
    ]
    for i in range(<int>(sizeof(lines) // sizeof(stat_line))):
        stat_append(out, lines[i].name, lines[i].value[0])


cdef void append_transports(rdma_device **devices, const rdma_totals *total, stat_buf *out) noexcept nogil:
    """Appends the lines of each transport, with or without a device."""
    cdef const transport_ops *transport
    cdef unsigned int n
    for n in range(<unsigned int>RDMA_DEVICES):
        transport = transport_of(n)
        if transport.append_stats != NULL:
            transport.append_stats(&total.soft[n], devices[n].port.context if devices[n] != NULL else NULL, out)


cdef void rdma_stats(rdma_device **devices, stat_buf *out) noexcept nogil:
    cdef rdma_totals total
    cdef rdma_device *some = NULL
    cdef rdma_device *near = NULL
    cdef unsigned int n
    memset(&total, 0, sizeof(total))
    for n in range(<unsigned int>RDMA_DEVICES):
        if devices[n] != NULL:
            sum_device(devices[n], &total, &total.soft[n])
            some = devices[n]
            if some.transport.near:
                near = some
    append_device_names(devices, out)
    # The limits of any device will do: they differ only on a device with short queues.
    append_limits(some, out)
    append_place(near, &some.limits, out)
    stat_append(out, b"rdma_queue_pairs", total.counts.queue_pairs)
    append_queue_pairs(devices, out)
    append_totals(&total, out)
    append_transports(devices, &total, out)
