# `stats rdma`: sums over devices, their threads and queue pairs.


cdef const char *separator(unsigned int n) noexcept nogil:
    return b"," if n else b""


cdef void rdma_stats(rdma_device **devices, unsigned int count, stat_buf *out) noexcept nogil:
    cdef rdma_device *dev
    cdef rdma_counters sum
    cdef soft_qp_counters wire, one
    cdef rdma_thread *t
    cdef rdma_conn *rc
    cdef char names[256]
    cdef char transports[64]
    cdef uint64_t extents = 0
    cdef uint64_t refused = 0
    cdef size_t names_used = 0
    cdef size_t transports_used = 0
    cdef size_t i
    cdef int bucket
    cdef unsigned int n
    memset(&sum, 0, sizeof(sum))
    memset(&wire, 0, sizeof(wire))
    for n in range(count):
        dev = devices[n]
        pthread_mutex_lock(&dev.lock)
        add_counters(&wire, &dev.gone)
        t = dev.threads
        while t != NULL:
            for i in range(sizeof(rdma_counters) // sizeof(uint64_t)):
                (<uint64_t *>&sum)[i] += relaxed_load(&(<uint64_t *>&t.counters)[i])
            t = t.next
        if dev.transport == TRANSPORT_SOFT_IW:
            for bucket in range(TOKEN_BUCKETS):
                rc = dev.tokens[bucket]
                while rc != NULL:
                    if soft_query_counters(rc.qp, &one) == 0:
                        add_counters(&wire, &one)
                    rc = rc.token_next
        pthread_mutex_unlock(&dev.lock)
        extents += relaxed_load(&dev.extent_registrations)
        refused += relaxed_load(&dev.refused_streams)
        names_used += <size_t>snprintf(names + names_used, sizeof(names) - names_used, b"%s%.63s", separator(n),
                                       dev.provider.get_device_name(dev.port.context.device))
        transports_used += <size_t>snprintf(transports + transports_used, sizeof(transports) - transports_used, b"%s%s",
                                            separator(n), transport_name(dev.transport))
    dev = devices[0]
    stat_append_text(out, b"rdma_device", names)
    stat_append_text(out, b"rdma_transport", transports)
    stat_append(out, b"rdma_credits", dev.limits.credits)
    stat_append(out, b"rdma_msgsize", dev.limits.msgsize)
    stat_append(out, b"rdma_eager", dev.limits.eager)
    stat_append(out, b"rdma_max_queue_pairs", dev.limits.max_qps)
    stat_append(out, b"rdma_queue_pairs", sum.queue_pairs)
    stat_append(out, b"rdma_total_queue_pairs", sum.total_queue_pairs)
    stat_append(out, b"rdma_registrations", sum.registrations)
    stat_append(out, b"rdma_arena_registrations", extents)
    stat_append(out, b"rdma_streams", sum.streams)
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
    stat_append(out, b"iw_rx_fpdus", wire.rx_fpdus)
    stat_append(out, b"iw_tx_fpdus", wire.tx_fpdus)
    stat_append(out, b"iw_rx_bytes", wire.rx_bytes)
    stat_append(out, b"iw_tx_bytes", wire.tx_bytes)
    stat_append(out, b"iw_rx_staged_bytes", wire.rx_staged_bytes)
    stat_append(out, b"iw_terminates_sent", wire.terminates_sent)
    stat_append(out, b"iw_terminates_received", wire.terminates_received)
