"""The software provider, and what its fabrics need beyond libibverbs: a connected socket for a queue pair.

libibverbs has no call that gives an RC queue pair its stream; with rdma_cm the kernel does it. Here the program does:
it brings a queue pair to RTS as for any other device (INIT, RTR, RTS; attributes from its own exchange), and hands
over a connected, non-blocking socket: TCP on soft_iw0, a UNIX stream socket on soft_shm0. Work requests posted before
the start-up is over wait in the send queue.

All functions return 0, or -1 with errno set, are thread-safe, and take ownership of `fd` only when they succeed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from rmemcached.verbs.verbs cimport (
    ibv_comp_channel, ibv_context, ibv_mr, ibv_pd, ibv_qp, ibv_wc_status, verbs_provider,
)

cdef enum:
    SOFT_IW_REQUEST_MAX = 20 + 512   # octets of the longest MPA request or reply frame
    # An access flag in libibverbs' optional range: a WRITE of the peer into the region may change any octets behind it,
    # up to the region's end. It is received with fewer system calls.
    SOFT_ACCESS_SCRATCH = 1 << 29

cdef struct soft_iw_request:         # a parsed MPA Request frame (RFC 5044 7.1, RFC 6581)
    uint8_t revision                 # 1 or 2
    bint enhanced                    # S: ird and ord are the peer's
    bint crc                         # C
    bint peer_to_peer
    uint16_t ird
    uint16_t ord
    const uint8_t *private_data      # of the ULP; points into the parsed buffer
    size_t private_length
    size_t consumed                  # octets of the frame

cdef struct soft_iw_options:
    bint crc                         # ask for (initiator), or insist on (responder), CRC32c
    uint16_t ird                     # limit max_dest_rd_atomic and max_rd_atomic of the queue pair; 0: as there.
    uint16_t ord                     # An initiator with both 0 sends a plain revision 1 request: no negotiation
    # Initiator: sends a ready-to-receive frame, so that the responder need not wait for a message to send first.
    bint peer_to_peer
    # Initiator: milliseconds between the reply and the first FPDU. Linux' siw does not see what comes within its first
    # moments before more comes (docs/soft-rnic.md section 2).
    uint16_t pause
    const void *private_data         # of the ULP; may be NULL
    size_t private_length

cdef enum soft_iw_state:
    SOFT_IW_NONE                     # no stream yet
    SOFT_IW_STARTING                 # MPA request sent
    SOFT_IW_OPEN
    SOFT_IW_REFUSED                  # the peer has answered with a reject
    SOFT_IW_CLOSED

cdef struct soft_iw_stream:          # what became of a start-up
    soft_iw_state state
    bint crc
    uint16_t ird                     # of this side, as negotiated
    uint16_t ord
    uint16_t peer_ird                # as the peer said; 0 when it did not
    uint16_t peer_ord
    size_t private_length
    uint8_t private_data[512]        # initiator: of the reply, or the reject

# Counters of one queue pair since it was made.
cdef struct soft_qp_counters:
    uint64_t tx_fpdus
    uint64_t rx_fpdus
    uint64_t tx_bytes                # on the TCP stream
    uint64_t rx_bytes
    uint64_t sends
    uint64_t recvs
    uint64_t reads                   # RDMA READs that this side asked for and that completed
    uint64_t read_bytes
    uint64_t writes
    uint64_t write_bytes
    uint64_t reads_served            # RDMA READs of the peer answered
    uint64_t writes_served           # RDMA WRITE messages of the peer placed
    uint64_t rx_staged_bytes         # payload octets that passed through the receive buffer (not straight to target)
    uint64_t terminates_sent
    uint64_t terminates_received
    uint64_t one_sided               # soft_shm: READs and WRITEs carried out by memcpy

cdef const verbs_provider *soft_provider() noexcept nogil

# A region over memory that the provider allocates, zeroed and page-aligned: mr.addr. It is freed by dereg_mr. NULL and
# errno as reg_mr; EINVAL for a length of 0. On soft_shm0 it lies in a memfd, which peers can access one-sidedly.
cdef ibv_mr *soft_alloc_mr(ibv_pd *pd, size_t length, int access) noexcept nogil

# The queue pair's side sends the MPA request (initiator). Asynchronous: progress does the rest. A refusal, a time-out
# of 10 s or a broken stream moves the queue pair to ERR and flushes it.
cdef int soft_iw_connect(ibv_qp *qp, int fd, const soft_iw_options *options) noexcept nogil

# The queue pair's side answers a request that was read from fd (responder): `received` octets, which start with the MPA
# request frame. Octets behind the frame are a protocol error (EPROTO), as for siw.
cdef int soft_iw_accept(ibv_qp *qp, int fd, const void *frame, size_t received,
                        const soft_iw_options *options) noexcept nogil

# Answers with R=1 (reject) on fd, best effort; fd stays the caller's.
cdef int soft_iw_reject(int fd, const void *frame, size_t received, const void *private_data,
                        size_t private_length) noexcept nogil

# Parses a request frame. 1: whole, out is filled; 0: more octets are needed; -1: not an acceptable MPA request
# (errno EPROTO).
cdef int soft_iw_parse_request(const void *buf, size_t received, soft_iw_request *out) noexcept nogil

cdef void soft_iw_query(ibv_qp *qp, soft_iw_stream *out) noexcept nogil

# soft_shm0: ties the UNIX socket to the queue pair; both sides do so, in any order. ird and ord as in soft_iw_options.
# A peer that does not do so within 10 s, or is none, moves the queue pair to ERR.
cdef int soft_shm_attach(ibv_qp *qp, int fd, uint16_t ird, uint16_t ord) noexcept nogil

# For a program that looks at a channel again and again before it waits for it: polling a soft_shm queue pair costs its
# peer no system call, waiting for it does. From the first soft_channel_poll on, the channel's descriptor says nothing
# but that sockets are readable, and get_cq_event makes no progress; until soft_channel_arm returns false: then the
# descriptor is readable when there is something to do. One thread at a time.
#
# poll makes progress; `sockets`: the descriptor was readable. Returns whether events are pending. arm returns true,
# and poll is to be called again, when there is something to do already.
cdef bint soft_channel_poll(ibv_comp_channel *channel, bint sockets) noexcept nogil
cdef bint soft_channel_arm(ibv_comp_channel *channel) noexcept nogil

# Progress without a program that polls: one thread for the context, which serves all its completion queues, also those
# made later. It looks for up to `spin` microseconds after work, as long as that pays, then sleeps; 0: it never looks in
# vain. For a target of READs and WRITEs, and for programs that wait for a channel's descriptor but must not delay their
# peers. Completions are polled, and events fetched, as ever; soft_channel_poll and soft_channel_arm are not for such a
# context. It ends with stop, or with close_device. start returns an errno value: EALREADY, or what the system said.
cdef int soft_start_progress(ibv_context *context, unsigned int spin) noexcept nogil
cdef void soft_stop_progress(ibv_context *context) noexcept nogil

cdef int soft_query_counters(ibv_qp *qp, soft_qp_counters *out) noexcept nogil

# Whether the peer has ended the stream with a Terminate because of a request of this side. It may complain of one that
# has completed long ago: a WRITE completes when it has been sent. *opcode: IBV_WR_SEND, _RDMA_WRITE or _RDMA_READ.
cdef bint soft_qp_terminated(ibv_qp *qp, int *opcode, ibv_wc_status *status) noexcept nogil
