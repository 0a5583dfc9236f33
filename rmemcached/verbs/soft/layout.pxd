# Objects of the software provider: layout, and which lock guards what.
#
# Every object starts with the libibverbs struct that programs see. Locks are taken in this order, each at most once by
# one thread: soft_context.thread_lock, soft_domain.progress or soft_context.lock, soft_qp.lock, then one of
# mr_shard.lock, soft_cq.lock or soft_srq.lock, then soft_domain.events or soft_context.async_lock. Reference counts
# (`users`) are changed atomically.
#
# "looked at": written with the lock held, and atomically, for it is also read without, where an old value does no harm.


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_rwlock_t:
        pass
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t *, const void *, void *(*)(void *) noexcept nogil, void *) noexcept
    int pthread_join(pthread_t, void **) noexcept
    int pthread_mutex_init(pthread_mutex_t *, void *) noexcept
    int pthread_mutex_destroy(pthread_mutex_t *) noexcept
    int pthread_mutex_lock(pthread_mutex_t *) noexcept
    int pthread_mutex_trylock(pthread_mutex_t *) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *) noexcept
    int pthread_cond_init(pthread_cond_t *, void *) noexcept
    int pthread_cond_destroy(pthread_cond_t *) noexcept
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *) noexcept
    int pthread_cond_broadcast(pthread_cond_t *) noexcept
    int pthread_rwlock_init(pthread_rwlock_t *, void *) noexcept
    int pthread_rwlock_destroy(pthread_rwlock_t *) noexcept
    int pthread_rwlock_rdlock(pthread_rwlock_t *) noexcept
    int pthread_rwlock_wrlock(pthread_rwlock_t *) noexcept
    int pthread_rwlock_unlock(pthread_rwlock_t *) noexcept

cdef extern from "<signal.h>" nogil:
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) noexcept


cdef enum:                           # limits of the device
    MAX_SGE = 16
    MAX_QP_WR = 16384
    MAX_SRQ_WR = 1 << 18
    MAX_CQE = 1 << 22
    MAX_INLINE = 1024
    MAX_READS = 128                  # IRD and ORD
    MR_SHARDS = 16
    SHM_WINDOWS_SIZE = 512           # power of two
    SHM_WINDOWS_MAX = 256            # regions of a peer that are mapped
    SHM_OFFERS = 256
    RX_IOVECS = 96                   # of one reception

cdef struct mr_shard:
    pthread_rwlock_t lock            # guards buckets, the chains, and soft_mr.valid
    soft_mr **buckets
    uint32_t size                    # power of two
    uint32_t count

# The asynchronous events of one object. Each kind of event is pending at most once: no allocation, no overflow.
cdef struct soft_async:
    soft_async *next                 # soft_context.first_async; all fields are guarded by async_lock
    void *element                    # ibv_qp, ibv_cq or ibv_srq
    uint32_t pending                 # bits 1 << ibv_event_type
    uint32_t delivered
    uint32_t acked

cdef struct soft_context:
    ibv_context ibv                  # async_fd is an eventfd, readable while events are pending
    pthread_mutex_t async_lock       # guards the next four
    pthread_cond_t async_acked
    soft_async *first_async          # objects with pending events, oldest first
    soft_async *last_async
    bint async_signalled             # async_fd is readable
    mr_shard shards[MR_SHARDS]
    pthread_mutex_t lock             # guards the list of queue pairs and next_qp_num; those listed are not freed
    soft_qp *qps
    uint32_t next_qp_num
    uint32_t users                   # PDs, CQs and channels
    pthread_mutex_t thread_lock      # guards the list of domains, and the thread's descriptors
    soft_domain *domains             # of all channels, and of completion queues without one
    pthread_t thread                 # the progress thread, while thread_epoll is not -1
    int thread_epoll
    int thread_stop                  # eventfd
    bint thread_stopping             # atomic
    uint32_t thread_spin             # microseconds; set before the thread starts
    bint shm                         # the device is soft_shm0; then:
    shm_generation *registry         # of SHM_SLOTS, in shared memory; a slot is given away under `lock`
    int registry_fd
    uint32_t next_slot
    shm_generation next_generation

cdef struct soft_pd:
    ibv_pd ibv
    uint32_t users                   # MRs, SRQs and QPs

cdef struct soft_mr:
    ibv_mr ibv                       # lkey and rkey are the same STag
    soft_mr *next                    # hash chain
    int access
    bint valid                       # false once a peer has invalidated the STag; looked at
    size_t mapped                    # octets at ibv.addr that are ours to unmap; 0: the program's memory
    int memfd                        # of that memory, when it is to be shared
    uint32_t slot
    shm_generation generation        # 0: not to be shared
    uint32_t users                   # accesses under way, and streams that keep it; dereg_mr waits until there is none

# Where progress is made: the completion channel, or the CQ when it has none.
cdef struct soft_domain:
    soft_domain *next                # of the context; guarded by thread_lock
    soft_domain *prev
    pthread_mutex_t progress         # held while a thread makes progress; guards links
    int epoll_fd                     # streams, start-up timers, event_fd
    int event_fd                     # readable while events are pending; -1 without a channel
    bint watched                     # streams are in the epoll set; without a channel only when there is need
    bint blocking                    # get_cq_event last saw the descriptor without O_NONBLOCK; a hint, atomic
    soft_link *links
    uint32_t nlinks
    bint shm                         # of soft_shm; then, guarded by progress:
    soft_link *hot                   # queue pairs whose rings are looked at; the others wait for their bell; looked at
    uint32_t nhot
    uint32_t turns                   # since it was last asked what time it is
    int64_t checked                  # when the sockets were looked at; CLOCK_MONOTONIC nanoseconds
    uint32_t armed                   # completion queues that are; atomic
    bint work                        # something was there to be done when the bells were asked for; looked at
    pthread_mutex_t events           # guards the rest, and the event fields of soft_cq
    bint polling                     # soft_channel_poll is what tells of events, not the descriptor; looked at
    pthread_cond_t acked
    soft_cq *first_event             # CQs with undelivered events, oldest first; looked at
    soft_cq *last_event
    bint signalled                   # event_fd is readable: for events, or for `work`; looked at

cdef struct soft_link:               # a queue pair in a domain's list
    soft_link *next
    soft_link *prev
    soft_qp *qp
    soft_domain *domain
    bint watched                     # the stream is in the domain's epoll set; guarded by soft_qp.lock
    bint hot                         # in the domain's list of these; looked at
    uint32_t idle                    # looks at the ring in vain
    soft_link *hot_next
    soft_link *hot_prev

cdef struct soft_channel:
    ibv_comp_channel ibv             # refcnt: CQs; under context lock
    soft_domain domain

cdef enum:                           # soft_cq.armed
    ARMED_NOT
    ARMED_SOLICITED
    ARMED_ANY

cdef struct soft_cq:
    ibv_cq ibv
    soft_domain *domain              # the channel's, or &own
    soft_domain own
    pthread_mutex_t lock             # guards ring, head, count, armed, overrun; count and overrun are looked at
    ibv_wc *ring
    uint32_t size                    # power of two, at least ibv.cqe
    uint32_t head
    uint32_t count
    int armed
    bint overrun
    uint32_t users                   # ends of queue pairs
    uint32_t polls                   # that found completions without making progress; a hint, atomic
    soft_cq *next_event              # guarded by domain.events, as the rest
    uint32_t events_pending          # made and not yet delivered
    uint32_t events_delivered
    uint32_t events_acked
    soft_async async_events

cdef enum:                           # soft_swqe.state
    SWQE_POSTED
    SWQE_SENT                        # a READ whose request is on its way
    SWQE_DONE

cdef struct soft_swqe:
    uint64_t wr_id
    uint64_t remote_addr
    uint32_t rkey                    # or the STag to invalidate
    uint32_t length
    uint32_t received                # READ: octets placed
    uint16_t num_sge                 # 0 with inline data
    uint8_t opcode                   # ibv_wr_opcode
    uint8_t flags                    # ibv_send_flags; SIGNALED also for sq_sig_all
    uint8_t state

cdef struct soft_rwqe:
    uint64_t wr_id
    uint64_t length
    uint32_t num_sge

cdef struct soft_srq:
    ibv_srq ibv
    pthread_mutex_t lock             # guards the rest
    soft_rwqe *ring                  # of mask + 1
    ibv_sge *sges
    uint32_t mask
    uint32_t head
    uint32_t tail
    uint32_t max_wr
    uint32_t max_sge
    uint32_t limit                   # an event when fewer receives than this are left; 0: not armed
    uint32_t users                   # queue pairs
    soft_async async_events

cdef struct soft_response:           # a READ of the peer to be answered
    uint64_t sink_to
    uint64_t source_to
    uint32_t sink_stag
    uint32_t source_stag
    uint32_t length

cdef enum:                           # tx_cursor.kind
    TX_NONE                          # between messages
    TX_REQUEST                       # in the send queue entry `next_wqe`
    TX_RESPONSE                      # in the READ response `next_response`

# Where transmission is. Counters run freely and wrap.
cdef struct tx_cursor:
    uint8_t kind
    bint response_turn               # READ responses and the send queue alternate, message by message
    uint32_t next_wqe
    uint32_t next_response
    uint32_t offset                  # payload octets of the message before the next FPDU
    uint32_t mulpdu                  # for all FPDUs of the message
    uint32_t send_msn
    uint32_t read_msn
    uint32_t reads                   # READ requests sent

cdef enum:                           # soft_qp.phase
    STREAM_NONE
    STREAM_ATTACHING                 # a thread is in soft_iw_connect or soft_iw_accept
    STREAM_REQUESTED                 # MPA request sent, reply awaited
    STREAM_OPEN                      # FPDUs may be received
    STREAM_CLOSED

cdef enum:                           # soft_qp.rx_state
    RX_HEADER
    RX_PAYLOAD
    RX_TRAILER

cdef struct shm_window:              # a region of the peer, mapped here
    uint8_t *base                    # NULL: a place that is free again
    size_t length
    uint64_t addr                    # of the owner
    uint32_t stag
    uint32_t slot
    shm_generation generation
    uint32_t access
    bint used                        # now or before: searches go on past it

cdef struct shm_stream:              # guarded by soft_qp.lock; what shm_ready reads is looked at
    shm_page *ours
    uint8_t *our_ring
    const shm_page *theirs           # NULL until the peer has introduced itself
    const uint8_t *their_ring
    const shm_generation *registry   # the peer's
    uint64_t tail                    # octets written to our ring: whole cells
    uint64_t space_head              # octets of them that the peer is known to have consumed
    uint64_t head                    # octets consumed of theirs: whole cells
    uint64_t head_told               # ... that the peer can know of
    uint64_t head_rung               # ... at which it was last seen whether it waits for space
    uint32_t tail_at                 # the same places in the rings
    uint32_t head_at
    uint32_t chunk_left              # octets of the stream in the cell at the head that were not taken yet; if any:
    uint32_t chunk_at                # where the first of them is
    uint32_t chunk_size              # of the whole cell
    uint64_t write_tail              # where the last WRITE that went through the ring ends
    uint32_t records_sent
    uint32_t records_seen
    uint32_t wishes
    uint32_t wish_answered           # the last wish of the peer that was
    bint wished                      # ours is pending
    bint wish_space                  # and is for consumption too
    bint eof                         # the socket's end was read
    bint broken                      # the peer has done what no correct peer does
    shm_record record                # what has come of the next one
    uint32_t record_have
    int fds[2]                       # that came with it
    int nfds
    shm_window *windows              # hash table of SHM_WINDOWS_SIZE by STag; NULL without
    uint32_t nwindows                # places ever used
    shm_generation offered[SHM_OFFERS]  # by slot; offered again after a collision
    soft_mr *sending                 # regions last used by messages in cells, or NULL. Their use is counted until the
    soft_mr *receiving               # stream's end, or until they are deregistered (shm_let_go)

cdef struct soft_qp:
    ibv_qp ibv
    pthread_mutex_t lock             # guards everything below, ibv.state and the descriptor's use
    soft_context *context
    soft_pd *pd
    soft_cq *send_cq
    soft_cq *recv_cq
    soft_srq *srq                    # NULL: own receive queue. Else rq has one place, for the open message
    soft_async async_events
    soft_qp *next                    # context list; guarded by context.lock
    soft_qp *prev
    soft_link links[2]               # guarded by the domain's progress lock
    soft_domain *domains[2]          # of send_cq and recv_cq; one entry when they are the same
    int ndomains
    ibv_qp_attr attr
    ibv_qp_cap cap
    bint sig_all
    bint drain_notify                # SQD was asked for with an event
    bint established                 # a message came in while in RTR, and the event was made

    int fd                           # -1 without a stream; looked at, as ibv.state
    shm_stream *shm                  # soft_shm: NULL before the first attachment
    uint8_t phase
    int timer_fd                     # start-up time-out for domains that are watched; -1 without
    int64_t deadline                 # of the start-up, or end of the pause; CLOCK_MONOTONIC nanoseconds
    bint pausing                     # tx_gate opens at the deadline
    bint crc
    bint tx_gate                     # FPDUs may be sent (a responder's: after the first that came in)
    bint tx_blocked                  # waiting for EPOLLOUT; looked at
    bint tx_dead                     # the kernel refused to send; the receive side will find out why
    uint32_t mulpdu
    bint peer_near                   # the peer seems to run on this core
    uint16_t ird
    uint16_t ord
    bint want_crc                    # initiator: as requested
    bint enhanced                    # initiator: as requested
    bint peer_to_peer                # initiator: as requested
    bint refused
    uint16_t pause                   # initiator: milliseconds
    uint16_t peer_ird
    uint16_t peer_ord
    uint8_t *peer_data               # initiator: private data of the reply
    uint32_t peer_length
    uint8_t *start_frame             # MPA frame, or ready-to-receive FPDU, to send
    uint32_t start_length
    uint32_t start_sent

    soft_swqe *sq                    # ring of sq_mask + 1
    ibv_sge *sq_sges
    uint8_t *sq_inline
    uint32_t sq_mask
    uint32_t sq_head                 # oldest not completed
    uint32_t sq_tail
    uint32_t reads[MAX_READS]        # send queue indices of READs under way, ring
    uint32_t reads_done              # READ responses completed; cursor.reads counts the requests

    soft_response *responses         # ring of responses_mask + 1, which is ird rounded up
    uint32_t responses_mask
    uint32_t responses_tail

    tx_cursor cursor
    uint32_t frame_sent              # octets of the FPDU at the cursor that are written
    uint32_t frame_crc               # its CRC state, when frame_sent is not 0
    uint8_t *bounce                  # copies of READ sources under CRC, while there are responses
    uint32_t bounce_at               # place of the FPDU at the cursor, when frame_sent is not 0

    soft_rwqe *rq                    # ring of rq_mask + 1; with an SRQ one place, for the receive in use
    ibv_sge *rq_sges
    uint32_t rq_mask
    uint32_t rq_sge                  # elements of rq_sges for each
    uint32_t rq_head
    uint32_t rq_tail

    uint8_t *rx_buffer
    uint32_t rx_capacity
    uint32_t rx_start
    uint32_t rx_end
    uint32_t rx_window               # octets asked for at a frame's start
    uint32_t rx_need                 # octets without which parsing cannot go on
    uint8_t rx_state
    ddp_header rx_header             # of the open FPDU
    uint8_t rx_raw[20]               # the same, as received
    uint32_t rx_left                 # payload octets of the FPDU to come
    uint32_t rx_trailer              # pad and CRC behind it
    uint32_t rx_crc                  # CRC state of what is placed of it, when it is not checked
    bint rx_checked                  # its CRC was, before anything was placed
    uint32_t rx_segment              # payload of the last tagged FPDU that was not its message's last
    uint64_t rx_to                   # RDMA WRITE: where the next octet goes
    uint32_t rx_offset               # SEND: octets of the message placed
    uint8_t rx_send                  # opcode of the open SEND message
    uint32_t rx_send_msn
    uint32_t rx_read_msn

    soft_qp_counters counters
    bint terminated                  # the peer has sent a Terminate, which complained of:
    int terminated_opcode            # ibv_wr_opcode, or -1: no request of this side
    int terminated_status            # ibv_wc_status
