# `stats rdma`: sums over devices, their threads and queue pairs.


cdef const char *separator(size_t used) noexcept nogil:
    return b"," if used else b""


cdef void rdma_stats(rdma_device **devices, stat_buf *out) noexcept nogil:
    cdef rdma_device *dev
    cdef rdma_device *sample = NULL
    cdef rdma_counters sum
    cdef soft_qp_counters wire[2]        # of soft_iw and soft_shm
    cdef soft_qp_counters one
    cdef soft_qp_counters *kind
    cdef uint64_t pairs[RDMA_DEVICES]
    cdef char name[64]
    cdef rdma_thread *t
    cdef rdma_conn *rc
    cdef char names[256]
    cdef char transports[64]
    cdef uint64_t extents = 0
    cdef uint64_t refused = 0
    cdef uint64_t events = 0
    cdef uint64_t losses = 0
    cdef uint64_t by_cm = 0
    cdef size_t names_used = 0
    cdef size_t transports_used = 0
    cdef size_t n_counters = sizeof(rdma_counters) // sizeof(uint64_t)
    cdef int bucket
    cdef unsigned int n
    memset(&sum, 0, sizeof(sum))
    memset(wire, 0, sizeof(wire))
    for n in range(<unsigned int>RDMA_DEVICES):
        dev = devices[n]
        if dev == NULL:
            continue
        pthread_mutex_lock(&dev.lock)
        kind = &wire[dev.transport == TRANSPORT_SOFT_SHM]
        add_counters(kind, &dev.gone)
        add_array(<uint64_t *>&sum, <const uint64_t *>&dev.retired, n_counters)
        t = dev.threads
        while t != NULL:
            add_array(<uint64_t *>&sum, <const uint64_t *>&t.counters, n_counters)
            t = t.next
        pairs[n] = relaxed_load(&dev.queue_pairs)
        if dev.transport != TRANSPORT_VERBS:
            for bucket in range(TOKEN_BUCKETS):
                rc = dev.tokens[bucket]
                while rc != NULL:
                    if soft_query_counters(rc.qp, &one) == 0:
                        add_counters(kind, &one)
                    rc = rc.token_next
        pthread_mutex_unlock(&dev.lock)
        extents += relaxed_load(&dev.extent_registrations)
        refused += relaxed_load(&dev.refused_streams)
        by_cm += relaxed_load(&dev.cm_queue_pairs)
        events += relaxed_load(&dev.async_events)
        losses += relaxed_load(&dev.losses)
        names_used += <size_t>snprintf(names + names_used, sizeof(names) - names_used, b"%s%.63s",
                                       separator(names_used), dev.provider.get_device_name(dev.port.context.device))
        transports_used += <size_t>snprintf(transports + transports_used, sizeof(transports) - transports_used,
                                            b"%s%s", separator(transports_used), transport_name(dev.transport))
        sample = dev
    # The limits are the same for all.
    dev = sample
    stat_append_text(out, b"rdma_device", names)
    stat_append_text(out, b"rdma_transport", transports)
    stat_append(out, b"rdma_credits", dev.limits.credits)
    stat_append(out, b"rdma_msgsize", dev.limits.msgsize)
    stat_append(out, b"rdma_eager", dev.limits.eager)
    stat_append(out, b"rdma_max_queue_pairs", dev.limits.max_qps)
    stat_append(out, b"rdma_queue_pairs", sum.queue_pairs)
    for n in range(<unsigned int>RDMA_DEVICES):
        if devices[n] != NULL:
            snprintf(name, sizeof(name), b"rdma_%s_queue_pairs", transport_name(devices[n].transport))
            stat_append(out, name, pairs[n])
    stat_append(out, b"rdma_cm_queue_pairs", by_cm)
    stat_append(out, b"rdma_total_queue_pairs", sum.total_queue_pairs)
    stat_append(out, b"rdma_registrations", sum.registrations)
    stat_append(out, b"rdma_arena_registrations", extents)
    stat_append(out, b"rdma_streams", sum.lanes)
    stat_append(out, b"rdma_exchanges", sum.exchanges)
    stat_append(out, b"rdma_exchange_errors", sum.exchange_errors)
    stat_append(out, b"rdma_refused_streams", refused)
    stat_append(out, b"rdma_sends", sum.sends)
    stat_append(out, b"rdma_send_bytes", sum.send_bytes)
    stat_append(out, b"rdma_recvs", sum.recvs)
    stat_append(out, b"rdma_recv_bytes", sum.recv_bytes)
    stat_append(out, b"rdma_reads", sum.reads)
    stat_append(out, b"rdma_read_bytes", sum.read_bytes)
    stat_append(out, b"rdma_read_errors", sum.read_errors)
    stat_append(out, b"rdma_writes", sum.writes)
    stat_append(out, b"rdma_write_bytes", sum.write_bytes)
    stat_append(out, b"rdma_write_errors", sum.write_errors)
    stat_append(out, b"rdma_qp_errors", sum.qp_errors)
    stat_append(out, b"rdma_credit_waits", sum.credit_waits)
    stat_append(out, b"rdma_wakeups", sum.wakeups)
    stat_append(out, b"rdma_async_events", events)
    stat_append(out, b"rdma_devices_lost", losses)
    stat_append(out, b"iw_rx_fpdus", wire[0].rx_fpdus)
    stat_append(out, b"iw_tx_fpdus", wire[0].tx_fpdus)
    stat_append(out, b"iw_rx_bytes", wire[0].rx_bytes)
    stat_append(out, b"iw_tx_bytes", wire[0].tx_bytes)
    stat_append(out, b"iw_rx_staged_bytes", wire[0].rx_staged_bytes)
    stat_append(out, b"iw_terminates_sent", wire[0].terminates_sent)
    stat_append(out, b"iw_terminates_received", wire[0].terminates_received)
    stat_append(out, b"shm_rx_bytes", wire[1].rx_bytes)
    stat_append(out, b"shm_tx_bytes", wire[1].tx_bytes)
    stat_append(out, b"shm_rx_staged_bytes", wire[1].rx_staged_bytes)
    stat_append(out, b"shm_one_sided", wire[1].one_sided)
    stat_append(out, b"shm_terminates_sent", wire[1].terminates_sent)
    stat_append(out, b"shm_terminates_received", wire[1].terminates_received)
