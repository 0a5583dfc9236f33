"""`stats rdma`: the counters of all devices, their workers and their queue pairs, added up. Any thread."""

from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.rdma.device cimport rdma_device

# Appends the lines. devices: an entry for each transport, NULL without a device; at least one is not NULL. The
# caller keeps the devices open.
cdef void rdma_stats(rdma_device **devices, stat_buf *out) noexcept nogil
