"""The software provider: an RNIC in this process. First the calls for programs, then the headers of the parts.

libibverbs has no call to give an RC queue pair its stream; with rdma_cm the kernel does so. Here the program does: it
brings the queue pair to RTS as on any device (INIT, RTR, RTS, with attributes from an exchange of its own), and hands
over a connected, non-blocking socket. The fabric decides on the kind of socket and the call: TCP for soft_iw0, a UNIX
stream socket for soft_shm0. Work requests wait in the send queue until the stream has started.

Errors are libibverbs': 0 or an errno value; a pointer is NULL, and errno says why. Calls for a stream or for an epoll
set (soft_iw_*, soft_shm_attach, soft_channel_join, soft_channel_watch) return 0, or -1 with errno, as system calls on
descriptors do. They take ownership of `fd` only when they succeed. All functions are thread-safe.

The parts are one C unit, soft.pyx, so the compiler inlines calls between them. A part calls only the functions declared
in another part's header. docs/soft-rnic.md explains how the provider works.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.streams.stream cimport stream
from rmemcached.sys.linux cimport epoll_event, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, pthread_t
from rmemcached.verbs.iwarp cimport (
    FPDU_TRAILER_MAX, HEADER_MAX, MPA_PRIVATE_MAX, MPA_START_SIZE, TAGGED_HEADER, ULPDU_MAX, UNTAGGED_HEADER,
    ddp_header,
)
from rmemcached.verbs.verbs cimport (
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_event_type, ibv_gid,
    ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_node_type, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
    ibv_wc_opcode, ibv_wc_status,
    verbs_provider,
)

cdef enum:
    # An access flag in libibverbs' optional range: a peer's WRITE may also change octets behind its range, up to the
    # region's end. The provider then receives the WRITE with fewer system calls.
    SOFT_ACCESS_SCRATCH = 1 << 29

# Counters of a queue pair since its creation, or of all queue pairs that share them (soft_share_counters). All are
# uint64_t, so a caller can add them up as an array.
cdef struct soft_qp_counters:
    uint64_t tx_fpdus
    uint64_t rx_fpdus
    uint64_t tx_bytes                # on the stream
    uint64_t rx_bytes
    uint64_t sends
    uint64_t recvs
    uint64_t reads                   # READs of this side, completed
    uint64_t read_bytes
    uint64_t writes
    uint64_t write_bytes
    uint64_t reads_served            # READs of the peer, answered
    uint64_t writes_served           # WRITEs of the peer, placed
    uint64_t rx_staged_bytes         # payload octets copied through the receive buffer
    uint64_t terminates_sent
    uint64_t terminates_received
    uint64_t one_sided               # soft_shm: READs and WRITEs carried out by memcpy

# The constant table of the software devices' functions.
cdef const verbs_provider *soft_provider() noexcept nogil
# Fills this table, and the fabrics' tables: when the module is imported, and when the plain library (verbs/plain) is
# loaded. A second call changes nothing.
cdef void soft_fill_tables() noexcept nogil

# The device's GUID, big-endian: made of the host's boot id and the device's name.
cdef uint64_t soft_device_guid(const ibv_device *device) noexcept nogil
# query_port for a structure of `size` octets: older programs have a shorter structure.
cdef int soft_query_port_ex(ibv_context *context, uint8_t port_num, ibv_port_attr *out, size_t size) noexcept nogil

# A region over zeroed, page-aligned memory allocated by the provider, at mr.addr. dereg_mr frees the memory. NULL with
# errno as for reg_mr; EINVAL for a length of 0. On soft_shm0 a peer with the right accesses the memory one-sidedly.
cdef ibv_mr *soft_alloc_mr(ibv_pd *pd, size_t length, int access) noexcept nogil

# libibverbs' ibv_reg_mr_iova: requests and peers name the region's octets by addresses from iova on.
cdef ibv_mr *soft_reg_mr_iova(ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) noexcept nogil
# libibverbs' ibv_rereg_mr; the keys stay. 0, or IBV_REREG_MR_ERR_INPUT with errno, and the region is unchanged. EBUSY:
# memory windows are bound to the region. EINVAL also for regions of soft_alloc_mr and soft_reg_list. Accesses of a peer
# during the change find no region, as after dereg_mr.
cdef int soft_rereg_mr(ibv_mr *mr, int flags, ibv_pd *pd, void *addr, size_t length, int access) noexcept nogil

# A region over several pieces of memory. To a peer's READs the pieces are one range from mr.addr on; the provider
# gathers them when it answers the READ. The region serves no other purpose: an address in the range says nothing about
# the place of the octet. The memory stays the program's, as for reg_mr. EINVAL: the region has no octets, or more than
# max_sge pieces lie within 64 KB.
cdef ibv_mr *soft_reg_list(ibv_pd *pd, const iovec *memory, uint32_t count) noexcept nogil

# --- a channel in the program's own epoll set ---
# One thread alone posts to the channel's queue pairs, makes progress for them and calls the functions of this section.
cdef enum:
    SOFT_EVENT = 8                   # a bit in the data of events that belong to such channels
# Puts the channel's descriptors into the program's epoll set, before the first queue pair of the channel gets its
# stream. From then on the channel's own descriptor is never readable, poll_cq makes no progress, the program does not
# arm the channel's queues, and no progress thread can be started. EBUSY: a queue pair or a progress thread exists.
cdef int soft_channel_join(ibv_comp_channel *channel, int epfd) noexcept nogil
# Takes an event with SOFT_EVENT. The program hands in each such event before it destroys any queue pair and before it
# waits again. `coming`: the number of such events still in its hands, including this event. False: the turn is over,
# and epoll will report the event again; the program should hand in this event first then.
cdef bint soft_channel_event(const epoll_event *event, uint32_t coming) noexcept nogil
# The queue pair of an event with SOFT_EVENT.
cdef ibv_qp *soft_event_qp(const epoll_event *event) noexcept nogil
# Whether the queue has a completion for poll_cq, or has lost completions: then poll_cq fails. Needs no lock.
cdef bint soft_cq_pending(const ibv_cq *cq) noexcept nogil
# Makes progress without asking epoll, after soft_channel_join: for soft_shm's polled queue pairs; on soft_iw0 there are
# none. Returns whether there was work. A polled queue pair costs its peer no system call, a waiting queue pair does.
cdef bint soft_channel_poll(ibv_comp_channel *channel) noexcept nogil
# To be called before a wait for the epoll set. False: epoll reports an event for new work, and the program may wait if
# no queue has a completion. True: work is there already, and the program calls soft_channel_poll.
cdef bint soft_channel_arm(ibv_comp_channel *channel) noexcept nogil

# For a program with one thread for all posts and all progress of a channel: the program may begin the channel's turns
# itself. Until the next call all polls and posts together do about `work` (soft/domain.pxd defines the unit), for any
# number of queue pairs. Once the work is used up, only short messages still leave before the next turn, and
# get_cq_event fails with EAGAIN instead of waiting (on a joined channel: always). The function returns the unused work
# of the last turn: all of the work if there was nothing to do; 0 or less if more may be left. If the channel was
# joined, the thread takes no locks from now on except those of queue pairs.
cdef int64_t soft_channel_begin_turn(ibv_comp_channel *channel, uint32_t work) noexcept nogil
# The thread's last call, before another thread may destroy any object of the channel.
cdef void soft_channel_end_turns(ibv_comp_channel *channel) noexcept nogil

# For a program that only waits for one queue of a channel: sleeps until there may be a completion to poll, with one
# system call, and makes progress for the events. The queue need not be armed. One thread at a time may call, and no
# thread destroys a queue pair meanwhile. timeout: milliseconds; -1: for ever. Returns 0 after the timeout, -1 with
# errno as epoll_wait, else bits of soft_wakeup.
cdef enum soft_wakeup:
    CHANNEL_WORK = 1
    CHANNEL_PROGRAM = 2              # the program's descriptor is readable
cdef int soft_cq_wait(ibv_cq *cq, int timeout) noexcept nogil
# Adds a descriptor of the program to the wait of soft_cq_wait (CHANNEL_PROGRAM).
cdef int soft_channel_watch(ibv_comp_channel *channel, int fd) noexcept nogil

# Starts a thread that makes progress for all completion queues of the context, including queues made later. The thread
# serves programs whose memory peers READ and WRITE, and programs that wait for a channel's descriptor but must not
# delay their peers. The program polls completions and fetches events as usual, but must not call soft_channel_poll and
# soft_channel_arm.
#
# The thread polls for up to `spin` microseconds after work, as long as polling pays, and then sleeps.
# soft_stop_progress or close_device ends the thread. 0 or an errno value: EALREADY (there is a thread), EBUSY (a
# channel is joined), or the error of the system call.
cdef int soft_start_progress(ibv_context *context, unsigned int spin) noexcept nogil
# Ends the thread, if there is one, and waits for its end. No other thread may call soft_start_progress meanwhile.
cdef void soft_stop_progress(ibv_context *context) noexcept nogil

# The queue pair's counters. The call waits for no lock.
cdef void soft_query_counters(ibv_qp *qp, soft_qp_counters *out) noexcept nogil
# From now on the queue pair counts in *counters, which must outlive the queue pair. The queue pair has had no stream
# yet. Several queue pairs may share counters if one thread alone posts to them, makes progress for them and gives them
# their streams. Any thread may read the counters with relaxed_load.
cdef void soft_share_counters(ibv_qp *qp, soft_qp_counters *counters) noexcept nogil

# Whether the peer has ended the stream with a Terminate because of a request of this side, perhaps a request completed
# long ago: a WRITE completes when it is sent. If True, *opcode is the kind of the request (IBV_WR_SEND, _RDMA_WRITE or
# _RDMA_READ), and *status the status for its completion.
cdef bint soft_qp_terminated(ibv_qp *qp, int *opcode, ibv_wc_status *status) noexcept nogil

# Why the stream broke: a violation no correct peer commits, a peer without an answer in time, or a lack in this
# process. A constant string. NULL: the reason is unknown; the peer may have ended the stream.
cdef const char *soft_qp_fault(ibv_qp *qp) noexcept nogil

# Payload octets in each frame of a long WRITE, except the last frame. A peer predicts frames of this size: when several
# WRITEs move a value, each but the last should carry a multiple of this number. 0: the device copies values uncut.
cdef uint32_t soft_qp_write_unit(ibv_qp *qp) noexcept nogil

# --- soft_shm's peers: processes of this host that sleep, and map regions of soft_alloc_mr ---
# On other devices these functions return 0, or have no effect.
# The number of times this side had to wake the peer up. If a post raises the number, the peer was asleep, and so takes
# longer to answer. Waits for no lock. 0 also for a queue pair without a stream so far.
cdef uint32_t soft_qp_wakeups(ibv_qp *qp) noexcept nogil
# The peer's progress with its present or last WRITE to a region of soft_alloc_mr: the address behind the octets already
# copied. A lying peer can set any value. 0: no octets were written. No thread destroys the queue pair meanwhile.
cdef uint64_t soft_qp_written(ibv_qp *qp) noexcept nogil
# Takes a region of soft_alloc_mr back from all peers that have mapped it, without deregistering it: no READ completes
# through such a mapping any more, and no WRITE begins. A WRITE in the middle of a copy ends its copy. A peer naming
# the region on a queue pair with a stream gets a new offer. (Other devices need no such call: their queue pairs reach
# no memory once they are destroyed.)
cdef void soft_mr_renew(ibv_mr *mr) noexcept nogil

# --- shared receive queues of programs with many peers ---
# From now on the SRQ hands out the newest receive first. So few receives are in use, and their memory stays hot.
cdef void soft_srq_newest_first(ibv_srq *srq) noexcept nogil
# Limits a queue pair with an SRQ, and without a stream so far, to `allowed` receives. A peer beyond the limit ends its
# own stream, and leaves the receives of other peers alone. When the queue pair has come to ERR, a receive completion
# with IBV_WC_WR_FLUSH_ERR and this wr_id reports the error.
cdef void soft_qp_limit(ibv_qp *qp, uint32_t allowed, uint64_t wr_id) noexcept nogil
# Raises the limit by `more`. One thread at a time, without a lock.
cdef void soft_qp_allow(ibv_qp *qp, uint32_t more) noexcept nogil

# How a queue pair gets its stream, by fabric.
include "soft/tcp/public.pxd"
include "soft/shm/public.pxd"

# The parts' headers. The rest of the project uses no declaration of them.
include "soft/layout.pxd"
include "soft/fabric.pxd"
include "soft/async_events.pxd"
include "soft/mr.pxd"
include "soft/mw.pxd"
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
