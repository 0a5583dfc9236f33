"""The software provider: an RNIC in this process. First what programs call, then the headers of its parts.

libibverbs has no call that gives an RC queue pair its stream; with rdma_cm the kernel does it. Here the program does:
it brings the queue pair to RTS as for any other device (INIT, RTR, RTS, with attributes from an exchange of its own),
and hands over a connected, non-blocking socket. The fabric decides on the kind of socket and the call: TCP for
soft_iw0, a UNIX stream socket for soft_shm0. Work requests wait in the send queue until the stream has started.

If nothing else is said, functions return 0, or -1 with errno. All are thread-safe. They take ownership of `fd` only
when they succeed.

The parts are one C unit, soft.pyx, so that calls between them are inlined where that matters. A part calls only those
functions of another that its header declares. docs/soft-rnic.md says how the provider works.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.sys.linux cimport epoll_event, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, pthread_t
from rmemcached.verbs.iwarp cimport (
    FPDU_TRAILER_MAX, HEADER_MAX, MPA_PRIVATE_MAX, MPA_START_SIZE, TAGGED_HEADER, ULPDU_MAX, UNTAGGED_HEADER,
    ddp_header,
)
from rmemcached.verbs.verbs cimport (
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_event_type, ibv_gid,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, ibv_wc_opcode, ibv_wc_status, verbs_provider,
)

cdef enum:
    # An access flag in libibverbs' optional range: a WRITE of the peer may change all octets of the region behind its
    # own. Then it is received with fewer system calls.
    SOFT_ACCESS_SCRATCH = 1 << 29

# Counters of one queue pair since it was made. uint64_t only, so that they can be added up as an array.
cdef struct soft_qp_counters:
    uint64_t tx_fpdus
    uint64_t rx_fpdus
    uint64_t tx_bytes                # on the stream
    uint64_t rx_bytes
    uint64_t sends
    uint64_t recvs
    uint64_t reads                   # READs of this side that have completed
    uint64_t read_bytes
    uint64_t writes
    uint64_t write_bytes
    uint64_t reads_served            # READs of the peer that were answered
    uint64_t writes_served           # WRITEs of the peer that were placed
    uint64_t rx_staged_bytes         # payload octets that passed through the receive buffer
    uint64_t terminates_sent
    uint64_t terminates_received
    uint64_t one_sided               # soft_shm: READs and WRITEs carried out by memcpy

cdef const verbs_provider *soft_provider() noexcept nogil

# A region over memory of zeros that the provider allocates, page-aligned, at mr.addr. dereg_mr frees it. NULL with
# errno as reg_mr has; EINVAL for a length of 0. On soft_shm0 a peer that has the right accesses such memory
# one-sidedly.
cdef ibv_mr *soft_alloc_mr(ibv_pd *pd, size_t length, int access) noexcept nogil

# A region over several pieces of memory, which a peer's READs see as one, beginning at mr.addr: they are gathered as
# they are read. Nothing else can be done with it; the addresses of its octets say nothing about where they are. The
# memory stays the program's, as that of reg_mr. EINVAL: there are no octets; or more than max_sge pieces lie within
# 64 KB.
cdef ibv_mr *soft_reg_list(ibv_pd *pd, const iovec *memory, uint32_t count) noexcept nogil

# For a program that has others to serve besides the channel, and an epoll set for all of them. One thread alone posts
# to the channel's queue pairs, makes progress for them and calls these.
#
# soft_channel_join puts the channel's descriptors into that set, before a queue pair of it gets its stream. Events
# whose data have the bit SOFT_EVENT are the channel's: the program hands each to soft_channel_event, before it destroys
# any queue pair and before it waits again. `coming`: how many of them it still has in its hands, this one included.
# False: the turn is over, and the event will come again; then let it be the first. soft_event_qp is the queue pair that
# an event is of. From then on the channel's own
# descriptor is never readable, poll_cq makes no progress, and the program does not arm the channel's queues: it asks
# soft_cq_pending whether poll_cq would find something. EBUSY: a queue pair is there already, or a progress thread,
# which cannot be started later either.
#
# soft_channel_poll makes progress without a system call, and returns whether there was something to do: polling a
# soft_shm queue pair costs its peer no system call, waiting does. The program waits for the set only after
# soft_channel_arm has returned false, and no queue has something: then there is an event when there is something to do.
# True: there is something already, and soft_channel_poll is to be called.
cdef enum:
    SOFT_EVENT = 8
cdef int soft_channel_join(ibv_comp_channel *channel, int epfd) noexcept nogil
cdef bint soft_channel_event(const epoll_event *event, uint32_t coming) noexcept nogil
cdef ibv_qp *soft_event_qp(const epoll_event *event) noexcept nogil
cdef bint soft_cq_pending(const ibv_cq *cq) noexcept nogil
cdef bint soft_channel_poll(ibv_comp_channel *channel) noexcept nogil
cdef bint soft_channel_arm(ibv_comp_channel *channel) noexcept nogil

# A program all of whose posts and progress for a channel are one thread's may begin the channel's turns itself. Until
# the next call all polls and posts together do about `work` (soft/domain.pxd says what counts), however many queue
# pairs there are; of what is left only short messages leave before the next turns. get_cq_event never waits then.
# Returns the work that the last turn has left: 0 or less, and there may be more to do; all of it, and there was
# nothing. Of a channel that has been joined, that thread takes no locks from then on, but those of the queue pairs.
# soft_channel_end_turns is its last call, before another thread may destroy what there is.
cdef int64_t soft_channel_begin_turn(ibv_comp_channel *channel, uint32_t work) noexcept nogil
cdef void soft_channel_end_turns(ibv_comp_channel *channel) noexcept nogil

# For a program that does nothing but wait for one queue of a channel: sleeps until there may be something to poll, with
# one system call, and makes progress for what has come. The queue need not be armed. One thread at a time, and none
# destroys a queue pair meanwhile. timeout: milliseconds; -1: for ever. 0 when that time is over, -1 with errno as
# epoll_wait, else some of soft_wakeup. soft_channel_watch adds a descriptor of the program to what is waited for.
cdef enum soft_wakeup:
    CHANNEL_WORK = 1
    CHANNEL_PROGRAM = 2              # the program's descriptor is readable
cdef int soft_cq_wait(ibv_cq *cq, int timeout) noexcept nogil
cdef int soft_channel_watch(ibv_comp_channel *channel, int fd) noexcept nogil

# Starts a thread that makes progress for all completion queues of the context, also for those that are made later. It
# is for programs whose memory peers READ and WRITE, or that wait for a channel's descriptor but must not delay their
# peers. The program polls completions and fetches events as usual, but must not call soft_channel_poll and
# soft_channel_arm.
#
# The thread polls for up to `spin` microseconds after work, as long as that pays, and then sleeps. soft_stop_progress
# or close_device ends it. 0 or an errno value: EALREADY, or what the system said.
cdef int soft_start_progress(ibv_context *context, unsigned int spin) noexcept nogil
cdef void soft_stop_progress(ibv_context *context) noexcept nogil

# Waits for no lock.
cdef int soft_query_counters(ibv_qp *qp, soft_qp_counters *out) noexcept nogil
# From now on the queue pair, which has had no stream yet, counts in *counters, which outlives it. Several queue pairs
# may count there if one thread alone posts to them, makes progress for them and gives them their streams. Any thread
# may read the counters with relaxed_load.
cdef void soft_share_counters(ibv_qp *qp, soft_qp_counters *counters) noexcept nogil

# Whether the peer has ended the stream with a Terminate because of a request of this side, perhaps one that completed
# long ago: a WRITE completes when it is sent. *opcode: IBV_WR_SEND, _RDMA_WRITE or _RDMA_READ.
cdef bint soft_qp_terminated(ibv_qp *qp, int *opcode, ibv_wc_status *status) noexcept nogil

# What the peer has done to the stream that no correct peer does, or what this process lacked for it: a constant. NULL:
# nothing is known; the peer may have ended it.
cdef const char *soft_qp_fault(ibv_qp *qp) noexcept nogil

# Octets that each frame of a long WRITE has now, but its last. A peer predicts frames of this size: of a value that
# several WRITEs move, each but the last should be a multiple. 0: the device copies values, and cuts nothing.
cdef uint32_t soft_qp_write_unit(ibv_qp *qp) noexcept nogil

# --- shared receive queues of programs with many peers ---
# From now on the receive that was posted last is taken first. So those in use are few, and their memory is hot.
cdef void soft_srq_newest_first(ibv_srq *srq) noexcept nogil
# For a queue pair with a shared receive queue that has had no stream yet: it takes no more than `allowed` receives, so
# that a peer which sends more ends its own stream, and leaves the others theirs. When the queue pair has come to ERR, a
# receive completion with IBV_WC_WR_FLUSH_ERR and this wr_id says so. soft_qp_allow lets it take more; one thread calls
# it, without a lock.
cdef void soft_qp_limit(ibv_qp *qp, uint32_t allowed, uint64_t wr_id) noexcept nogil
cdef void soft_qp_allow(ibv_qp *qp, uint32_t more) noexcept nogil

# How a queue pair gets its stream, by fabric.
include "soft/tcp/public.pxd"
include "soft/shm/public.pxd"

# The parts' headers. The rest of the project uses nothing of them.
include "soft/layout.pxd"
include "soft/fabric.pxd"
include "soft/async_events.pxd"
include "soft/mr.pxd"
include "soft/device.pxd"
include "soft/domain.pxd"
include "soft/channel.pxd"
include "soft/cq.pxd"
include "soft/srq.pxd"
include "soft/rdmap_tx.pxd"
include "soft/predict.pxd"
include "soft/rdmap_rx.pxd"
include "soft/stream.pxd"
include "soft/qp.pxd"
include "soft/thread.pxd"

include "soft/tcp/stream.pxd"
include "soft/tcp/mpa.pxd"

include "soft/shm/layout.pxd"
include "soft/shm/closer.pxd"
include "soft/shm/memory.pxd"
include "soft/shm/record.pxd"
include "soft/shm/bell.pxd"
include "soft/shm/ring.pxd"
include "soft/shm/wait.pxd"
include "soft/shm/region.pxd"
include "soft/shm/message.pxd"
include "soft/shm/stream.pxd"
