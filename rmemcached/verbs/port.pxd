"""Choice of device, port and GID, and bringing a queue pair up over them. For every provider, and both ends.

A `verbs_port` belongs to its opener and does not change afterwards; any thread may read it. Any thread may call any
function, but functions with a queue pair only one thread at a time.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.verbs.verbs cimport ibv_context, ibv_device, ibv_gid, ibv_mtu, ibv_qp, verbs_provider

cdef enum:
    PORT_ANY = 0
    GID_ANY = -1
    # Retransmission. A lost packet without a successor costs one timeout; a peer that is silent for seven timeouts
    # is taken for dead.
    ACK_TIMEOUT = 16             # 4.096 us * 2^16 = 268 ms; hardware may wait up to 4 times as long
    RETRY_CNT = 6                # not 7: seven means seven to hardware and "for ever" to rxe
    RNR_RETRY = 7                # for ever; credits keep receives posted

cdef enum gid_type:
    GID_UNKNOWN = 0
    GID_IB_ROCE_V1
    GID_ROCE_V2

cdef struct port_spec:           # the user's choice
    const char *device           # NULL: any
    int port                     # PORT_ANY: the first active one
    int gid_index                # GID_ANY: the best
    uint64_t node_guid           # of the device, big-endian; 0: any
    bint iwarp                   # the caller connects by rdma_cm, so an iWARP device of the system will do

cdef struct verbs_port:
    const verbs_provider *provider
    ibv_context *context
    uint8_t port_num
    bint ethernet                # RoCE, iWARP: addressed by GID alone. Else InfiniBand: by LID, across subnets by GID
    bint cm_only                 # an iWARP device of the system: only rdma_cm connects its queue pairs
    uint64_t node_guid           # big-endian
    int gid_index
    gid_type gid_type
    ibv_gid gid
    uint16_t lid
    ibv_mtu mtu                  # active
    uint8_t max_dest_rd_atomic   # RDMA READs of the peer answered by a queue pair at a time
    uint8_t max_rd_atomic        # its own outstanding RDMA READs
    int max_qp_wr
    int max_sge
    int max_sge_rd               # of an RDMA READ; mostly 1 on iWARP devices
    int max_cqe

cdef struct qp_address:          # of one queue pair, as in an exchange line
    uint32_t qpn
    uint32_t psn
    uint16_t lid
    uint32_t mtu                 # bytes; 0: unknown
    ibv_gid gid

# Opens the device and port of `spec`: of several devices the first with an active port with a GID. 0, or -1 with one
# line in why.
cdef int verbs_open_port(const verbs_provider *provider, const port_spec *spec, verbs_port *out, char *why,
                         size_t size) noexcept nogil
# Fills *out for an open device: the caller has set out.provider and out.context. 0, or -1 with a line in why.
cdef int verbs_take_port(const port_spec *spec, verbs_port *out, char *why, size_t size) noexcept nogil
# The best GID of a port: its index, or -1 without a GID. *kind and *gid describe the GID.
cdef int verbs_choose_gid(const verbs_provider *provider, ibv_context *context, uint8_t port_num, bint ethernet,
                          gid_type *kind, ibv_gid *gid) noexcept nogil
# The GID's type from the kernel; GID_UNKNOWN where the kernel gives none (a software device, an old kernel).
cdef gid_type verbs_gid_type(ibv_device *device, uint8_t port_num, int index) noexcept nogil
cdef unsigned int verbs_mtu_bytes(ibv_mtu mtu) noexcept nogil

# Takes and acknowledges all pending asynchronous events (context.async_fd has O_NONBLOCK), adds their number to
# *events, and checks that the device still exists. True, with one line in why: the port is lost, and the program can
# only destroy its objects.
cdef bint verbs_port_lost(const verbs_port *port, uint64_t *events, char *why, size_t size) noexcept nogil

# RESET to INIT; INIT to RTS. 0 or an errno value. Receives are posted between the two.
cdef int verbs_qp_init(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil
# Allows the peer of a queue pair in RTS these one-sided operations. 0 or an errno value.
cdef int verbs_qp_allow(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil
cdef int verbs_qp_connect(const verbs_port *port, ibv_qp *qp, uint32_t psn, const qp_address *peer, unsigned int ird,
                          unsigned int ord) noexcept nogil
