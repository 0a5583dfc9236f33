"""The port that an end uses, and the way of a queue pair to RTS over it. For every provider.

A `verbs_port` belongs to whoever opened it and does not change afterwards; any thread may read it.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.verbs.verbs cimport ibv_context, ibv_device, ibv_gid, ibv_mtu, ibv_qp, verbs_provider

cdef enum:
    PORT_ANY = 0
    GID_ANY = -1
    # How every queue pair to another host asks again. A packet that is lost costs the first line's time when nothing
    # follows it; a host that stands still may do so for seven times that, and is gone after it.
    ACK_TIMEOUT = 16             # 4.096 us * 2^16 = 268 ms until a packet is sent; hardware may take 4 times that
    RETRY_CNT = 6                # hardware takes 7 for one more, rxe for without end
    RNR_RETRY = 7                # without end: credits keep receives posted

cdef enum gid_type:
    GID_UNKNOWN = 0
    GID_IB_ROCE_V1
    GID_ROCE_V2

cdef struct verbs_wish:          # what the user asked for
    const char *device           # NULL: any
    int port                     # PORT_ANY: the first active one
    int gid_index                # GID_ANY: the best
    uint64_t node_guid           # of the device, big-endian; 0: any
    bint iwarp                   # an iWARP device of the system will do: its queue pairs get their streams by rdma_cm

cdef struct verbs_port:
    const verbs_provider *provider
    ibv_context *context
    uint8_t port_num
    bint ethernet                # addressed by GID alone (RoCE, iWARP); else InfiniBand: by LID, and GID across subnets
    bint cm_only                 # an iWARP device of the system: verbs_qp_connect is not for it
    uint64_t node_guid           # big-endian
    int gid_index
    gid_type gid_type
    ibv_gid gid
    uint16_t lid
    ibv_mtu mtu                  # active
    uint8_t max_dest_rd_atomic   # RDMA READs that a queue pair answers at a time
    uint8_t max_rd_atomic        # ... and has outstanding
    int max_qp_wr
    int max_sge
    int max_sge_rd               # of an RDMA READ; iWARP devices mostly have one
    int max_cqe

cdef struct qp_address:          # what an exchange carries
    uint32_t qpn
    uint32_t psn
    uint16_t lid
    uint32_t mtu                 # bytes; 0: unknown
    ibv_gid gid

# Opens the device and port that `wish` names, or the first device with an active port over which queue pairs can be
# brought up. 0, or -1 with one line in why.
cdef int verbs_open_port(const verbs_provider *provider, const verbs_wish *wish, verbs_port *out, char *why,
                         size_t size) noexcept nogil
# The same on a device that is open: provider and context of *out are set, and stay whatever comes.
cdef int verbs_take_port(const verbs_wish *wish, verbs_port *out, char *why, size_t size) noexcept nogil
# The GID that would be chosen on a port: the index, or -1 when there is none. *type and *gid describe it.
cdef int verbs_choose_gid(const verbs_provider *provider, ibv_context *context, uint8_t port_num, bint ethernet,
                          gid_type *kind, ibv_gid *gid) noexcept nogil
cdef gid_type verbs_gid_type(ibv_device *device, uint8_t port_num, int index) noexcept nogil
cdef unsigned int verbs_mtu_bytes(ibv_mtu mtu) noexcept nogil

# Takes and acknowledges the asynchronous events there are (context.async_fd has O_NONBLOCK), adds their number to
# *events, and looks whether the device is still there. True, with one line in why: nothing can go over this port any
# more, its objects are only good for being destroyed. Any thread.
cdef bint verbs_port_lost(const verbs_port *port, uint64_t *events, char *why, size_t size) noexcept nogil

# RESET to INIT; INIT to RTS. 0 or an errno value. Receives are posted between the two.
cdef int verbs_qp_init(const verbs_port *port, ibv_qp *qp, unsigned int access) noexcept nogil
cdef int verbs_qp_connect(const verbs_port *port, ibv_qp *qp, uint32_t psn, const qp_address *peer, unsigned int ird,
                          unsigned int ord) noexcept nogil
