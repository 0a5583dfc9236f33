"""The table of transports. A new transport of the daemon is a row, and a section of transport.pyx with its functions.

rdma/device explains the entries of a row (transport_ops). The number of a transport is the index of its row and of its
device. Shared code asks a row for a property, and knows no transport by name.
"""

from rmemcached.rdma.device cimport transport_ops
from rmemcached.rdma.wire cimport SHM_KEY_LENGTH, TRANSPORT_VERBS, rdma_transport
from rmemcached.verbs.iwarp cimport MPA_PRIVATE_MAX, MPA_START_SIZE

cdef enum:
    SYSTEM_TRANSPORT = TRANSPORT_VERBS   # of the system's device: it comes and goes, and takes connections of rdma_cm
    STREAM_KEY_LENGTH = SHM_KEY_LENGTH   # octets of each transport_ops.key; MPA's has as many
    STREAM_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX    # octets of the longest request for a stream

# The row of a transport. Constant.
cdef const transport_ops *transport_of(rdma_transport transport) noexcept nogil
