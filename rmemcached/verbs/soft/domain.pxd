"""Progress domains: sets of queue pairs served by one poll, each with a descriptor to wait for.

A completion channel is a domain, and so is a completion queue without a channel. A domain has the queue pairs of all
its completion queues. One thread at a time makes progress for a domain: the holder of `progress`.

A turn is bounded by its work, so no peer holds up others, however much it sends and asks for. The unit of work is a
copied octet; other work counts as a fixed number of octets. The domain leaves a queue pair once the queue pair has used
up its share, and ends the turn once the turn's work is used up. Unfinished work makes the descriptor readable, or the
next poll finds it: that poll begins with the queue pairs that had no share.

Each poll is a turn, and each post may do TX_TURN more. If the program begins the turns itself
(soft_channel_begin_turn), all polls and posts between two of its calls are one turn.
"""

cdef enum:
    DOMAIN_TURN = 4 << 20            # work in one turn of a domain
    SHARE_MIN = 32 << 10             # least share of a queue pair that epoll has reported, even with no work left
    PROGRESS_BATCH = 16              # descriptors of one epoll_wait, at most
    WORK_FPDU = 1024                 # a frame: so many octets are added to its size
    WORK_CALL = 4096                 # a system call that sends or receives
    WORK_RENEWAL = 32 << 10          # a renewal of a TLS session's keys, and the answer: some 40 microseconds

# Bits added to a queue pair's address in epoll data: addresses end in four bits of zero. No bit: an event of the
# stream.
cdef enum:
    EVENT_TIMER = 1                  # an event of the queue pair's timer
    EVENT_BELL = 2                   # an event of its bell
    EVENT_PROGRAM = 4                # alone, without an address: the descriptor of soft_channel_watch
    EVENTS = EVENT_TIMER | EVENT_BELL | EVENT_PROGRAM | SOFT_EVENT

cdef struct soft_link:               # a queue pair in a domain's list
    soft_link *next                  # guarded by domain.progress, as the next three
    soft_link *prev
    soft_qp *qp
    soft_domain *domain              # NULL: in no list
    bint watched                     # the stream is in the domain's epoll set; guarded by soft_qp.lock
    bint left_over                   # atomic, for the fabric: a turn of the queue pair's other domain left work

cdef struct soft_domain:
    soft_domain *next                # of the context; guarded by its thread_lock
    soft_domain *prev
    const soft_fabric *fabric
    void *fabric_state               # the fabric's own data, or NULL
    pthread_mutex_t progress         # held by the thread making progress; guards links, nlinks and watched
    int epoll_fd                     # has streams, their timers and bells, and event_fd
    uint64_t mark                    # SOFT_EVENT: epoll_fd is the program's, and the program hands events in; else 0
    int event_fd                     # readable while `signalled`; -1 without a channel
    bint watched                     # streams are in the epoll set: with a channel, or when epoll pays; read unlocked
    bint blocking                    # get_cq_event last saw the descriptor without O_NONBLOCK; a hint, atomic
    soft_link *links
    uint32_t nlinks
    # Guarded by progress. If the program begins the turns, only its thread uses them.
    int64_t left                     # work left in this turn; negative: the turn did more
    int64_t aside                    # as `left`, but for work larger than a share (soft_shm: examining an offer)
    uint32_t turn                    # work of a turn begun by the program; 0: the program begins none
    uint32_t coming                  # queue pairs to be served in the turn, with the present queue pair; never 0
    uint32_t busy                    # queue pairs with work in the last pass over all; never 0
    bint looked                      # this turn has looked at the queue pairs
    uint32_t seen                    # events handed in by the program in this turn
    uint32_t owner                   # the program's thread that begins the turns, for assertions
    bint alone                       # turn and mark are both set: the owner alone uses the domain, without locks
    uint32_t armed                   # number of armed completion queues; atomic
    bint work_pending                # work was pending already when the descriptor was armed; atomic
    pthread_mutex_t events           # guards the rest, and the event fields of soft_cq
    bint polling                     # the program asks its queues, and the descriptor signals nothing; read unlocked
    pthread_cond_t acked
    uint8_t *spare                   # a receive buffer free for any queue pair (rdmap_rx), or NULL; atomic
    soft_cq *first_event             # completion queues with undelivered events, oldest first; read unlocked
    soft_cq *last_event
    bint signalled                   # event_fd is readable, because of events or work_pending; read unlocked
    int64_t yield_again              # CLOCK_MONOTONIC nanoseconds until which no transfer gives its core away; atomic

# Take, release and assert `progress`. If soft_domain.alone is set, they do nothing, but a debug build checks that the
# thread is the owner. domain_trylock does not wait; False: another thread holds `progress`.
cdef void domain_lock(soft_domain *domain) noexcept nogil
cdef bint domain_trylock(soft_domain *domain) noexcept nogil
cdef void domain_unlock(soft_domain *domain) noexcept nogil
cdef void assert_domain(const soft_domain *domain) noexcept nogil

# Makes the descriptors and locks of a zeroed domain, and adds the domain to the context's list. `channel`: the domain
# is a channel's, not a completion queue's. False: errno is set, and nothing is left open.
cdef bint domain_open(soft_domain *domain, soft_context *context, bint channel) noexcept nogil
# Undoes domain_open when the channel or completion queue is destroyed. No queue pair is left in the domain.
cdef void domain_close(soft_domain *domain, soft_context *context) noexcept nogil

# Adds the queue pair to the domain's list, when a stream is attached. Takes `progress`.
cdef void domain_add(soft_domain *domain, soft_link *link, soft_qp *qp) noexcept nogil
# Takes the queue pair off the list, when the queue pair is destroyed. Takes `progress`: after the return no thread
# makes progress for the queue pair in this domain.
cdef void domain_remove(soft_domain *domain, soft_link *link) noexcept nogil

# Puts all streams into the epoll set, and from now on each new stream. A queue pair whose stream epoll refuses moves to
# ERR. `progress` is held.
cdef void domain_watch(soft_domain *domain) noexcept nogil

# The epoll data for events of the queue pair. kind: EVENT_TIMER, EVENT_BELL, or 0 for its stream.
cdef uint64_t domain_event(const soft_domain *domain, const soft_qp *qp, uint32_t kind) noexcept nogil

# The next six belong to a turn. `progress` is held, but domain_is_over needs no lock.
# Begins a new turn, unless the program begins the turns.
cdef void domain_begin_turn(soft_domain *domain) noexcept nogil
# Begins a turn likewise, but not for a joined channel. There soft_channel_poll begins the turns, and all work between
# two of its calls shares a turn.
cdef void domain_next_turn(soft_domain *domain) noexcept nogil
# Whether the turn is over. Each turn looks once at the queue pairs, even after posts have used up its work.
cdef bint domain_is_over(const soft_domain *domain) noexcept nogil
# The share of a queue pair: an equal part of the turn's remaining work, but no less than SHARE_MIN and no more than
# `most`.
cdef uint32_t domain_share(const soft_domain *domain, uint32_t most) noexcept nogil
# Takes work off the turn.
cdef void domain_worked(soft_domain *domain, uint32_t work) noexcept nogil
# Calls the fabric's `transmit` with the queue pair's share. soft_qp.lock is held, too.
cdef void domain_transmit(soft_domain *domain, soft_qp *qp) noexcept nogil

# Calls the fabric's `transmit` for a post. Needs soft_qp.lock; if the program begins the turns, only its thread may
# call.
cdef void domain_post(soft_qp *qp) noexcept nogil
# Takes work of a post off the turn, if the program begins the turns. Needs soft_qp.lock; if the program begins the
# turns, only its thread may call.
cdef void domain_posted(soft_qp *qp, uint32_t work) noexcept nogil
# Takes work off a share, down to 0.
cdef void share_spend(uint32_t *share, uint64_t work) noexcept nogil

# Clears work_pending, before the caller looks for work. Afterwards the caller sees all that another thread stored
# before that thread set work_pending.
cdef void domain_clear_pending(soft_domain *domain) noexcept nogil

# Takes `progress` and makes progress. If another thread holds `progress`, the call waits (`waits`) or returns at once.
# The fabric's function gets `waits`, too.
cdef void domain_progress(soft_domain *domain, bint waits) noexcept nogil

# Hands an event of a queue pair to the fabric, or, for its timer, to stream_deadline. `progress` is held.
cdef void domain_take(soft_domain *domain, const epoll_event *event) noexcept nogil
# Hands the events of queue pairs among `count` events from epoll to domain_take. Returns their number. `progress` is
# held.
cdef uint32_t domain_take_batch(soft_domain *domain, const epoll_event *ready, int count) noexcept nogil

# Asks epoll for ready descriptors and hands their events to the fabric. Returns the number of events of queue pairs; 0
# if the program hands in events. `progress` is held.
cdef uint32_t domain_poll_descriptors(soft_domain *domain) noexcept nogil

# Makes event_fd readable exactly while an event or pending work is to be reported. Each entry point with a possible
# event calls the function once, at its end. So an event made and delivered by get_cq_event itself costs no system call.
cdef void domain_update_fd(soft_domain *domain) noexcept nogil
# domain_update_fd for a caller that holds domain.events.
cdef void domain_update_fd_locked(soft_domain *domain) noexcept nogil
# Updates event_fd of all domains of a queue pair but `except_for`, whose caller updates it; NULL: of all.
cdef void qp_update_fds(soft_qp *qp, soft_domain *except_for) noexcept nogil

# For get_cq_event: returns the completion queue of the oldest undelivered event, and counts the event as delivered.
# NULL: there is no event.
cdef soft_cq *domain_take_event(soft_domain *domain) noexcept nogil
