"""Choice of device, port and GID, and bringing up a queue pair over them: for daemon and client, with any provider.

A `verbs_port` belongs to its opener and does not change afterwards; any thread may read the struct. Any thread may call
any function, but only one thread at a time calls functions for the same queue pair.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.verbs.verbs cimport ibv_context, ibv_device, ibv_gid, ibv_mtu, ibv_qp, verbs_provider

cdef enum:
    PORT_ANY = 0
    GID_ANY = -1
    # For retransmission. A lost packet without a successor costs one timeout; a peer that is silent for seven timeouts
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
    int port                     # PORT_ANY: the first active port
    int gid_index                # GID_ANY: the choice of verbs_choose_gid
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
    uint8_t max_rd_atomic        # outstanding RDMA READs of a queue pair
    int max_qp_wr
    int max_sge
    int max_sge_rd               # of an RDMA READ; mostly 1 on iWARP devices
    int max_cqe

cdef struct qp_address:          # a queue pair's address, as in a line of the exchange
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
# Chooses a port's GID: with Ethernet a RoCE v2 GID before others, then IPv4 addresses, then addresses beyond the
# link; with InfiniBand the first GID. Returns its index and sets *kind and *gid, or returns -1 without a GID.
cdef int verbs_choose_gid(const verbs_provider *provider, ibv_context *context, uint8_t port_num, bint ethernet,
                          gid_type *kind, ibv_gid *gid) noexcept nogil
# The GID's type from the kernel; GID_UNKNOWN where the kernel gives none (a software device, an old kernel).
cdef gid_type verbs_gid_type(ibv_device *device, uint8_t port_num, int index) noexcept nogil
cdef unsigned int verbs_mtu_bytes(ibv_mtu mtu) noexcept nogil

# Takes and acknowledges all pending asynchronous events (context.async_fd has O_NONBLOCK), adds their number to
# *events, and checks that the device still exists. True, with one line in why: the port is lost, and the program can
# only destroy its objects.
cdef bint verbs_port_lost(const verbs_port *port, uint64_t *events, char *why, size_t size) noexcept nogil

# Brings a queue pair from RESET to INIT, with the peer's rights (IBV_ACCESS_*). 0 or an errno value. Receives can be
# posted afterwards.
cdef int verbs_qp_init(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil
# Gives the peer of a queue pair in RTS exactly these rights. 0 or an errno value.
cdef int verbs_qp_allow(const verbs_port *port, ibv_qp *qp, unsigned int rights) noexcept nogil
# Brings a queue pair from INIT to RTS, with this peer. ird, ord: READs answered, and outstanding, at a time; the port
# limits both. 0 or an errno value.
cdef int verbs_qp_connect(const verbs_port *port, ibv_qp *qp, uint32_t psn, const qp_address *peer, unsigned int ird,
                          unsigned int ord) noexcept nogil
