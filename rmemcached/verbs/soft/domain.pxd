"""Progress domains: the queue pairs that one poll makes progress for, and the descriptor that says when to poll.

A completion channel is a domain, and so is a completion queue without a channel. A domain has the queue pairs of all
its completion queues. One thread at a time makes progress for it: the one that holds `progress`.

A turn is bounded by the work in it, so that no peer holds up others, however much it sends and asks for. Work is
counted in octets that are copied; other work counts as a fixed number of octets. A queue pair leaves off when it
has used up its share, and a domain when it has used up its turn. What is left makes the descriptor readable, or is
found by the next poll, which begins with the queue pairs that had none.

Each poll is a turn, and each post may do TX_TURN more. If the program begins the turns itself
(soft_channel_begin_turn), all polls and posts between two of its calls are one turn.
"""

cdef enum:
    DOMAIN_TURN = 4 << 20            # work in one turn of a domain
    SHARE_MIN = 32 << 10             # of a queue pair, also at the turn's end: for those that epoll has named already
    PROGRESS_BATCH = 16              # descriptors of one epoll_wait, at most
    WORK_FPDU = 1024                 # a frame counts as so many octets besides its own
    WORK_CALL = 4096                 # a system call that sends or receives

# What is added to a queue pair's address in epoll data. Addresses end in four bits of zero.
cdef enum:
    EVENT_TIMER = 1                  # its timer, not its stream
    EVENT_BELL = 2                   # its bell
    EVENT_PROGRAM = 4                # without an address: a descriptor of the program
    EVENTS = EVENT_TIMER | EVENT_BELL | EVENT_PROGRAM | SOFT_EVENT

cdef struct soft_link:               # a queue pair in a domain's list
    soft_link *next                  # guarded by domain.progress, as the next three
    soft_link *prev
    soft_qp *qp
    soft_domain *domain              # NULL: in no list
    bint watched                     # the stream is in the domain's epoll set; guarded by soft_qp.lock
    bint left_over                   # a fabric's: a turn ended elsewhere, and this domain does not know; atomic

cdef struct soft_domain:
    soft_domain *next                # of the context; guarded by its thread_lock
    soft_domain *prev
    const soft_fabric *fabric
    void *fabric_state               # the fabric's own data, or NULL
    pthread_mutex_t progress         # held by the thread that makes progress; guards links, nlinks and watched
    int epoll_fd                     # has streams, their timers and bells, and event_fd
    uint64_t mark                    # SOFT_EVENT: epoll_fd is the program's, and it hands events in; else 0
    int event_fd                     # readable while `signalled`; -1 without a channel
    bint watched                     # streams are in the epoll set: with a channel, or when that pays; read unlocked
    bint blocking                    # get_cq_event last saw the descriptor without O_NONBLOCK; a hint, atomic
    soft_link *links
    uint32_t nlinks
    # Guarded by progress; if the program begins the turns, they are its thread's.
    int64_t left                     # work left in this turn; negative: more was done
    int64_t aside                    # the same for what a fabric does beyond the share of a queue pair
    uint32_t turn                    # work of a turn that the program begins; 0: it does not
    uint32_t coming                  # queue pairs that the turn still comes to, with the one that it is at; never 0
    uint32_t busy                    # queue pairs that had something to do in the last pass over all; never 0
    bint looked                      # there was a pass in this turn
    uint32_t seen                    # events that the program has handed in in this turn
    uint32_t owner                   # the program's thread that begins the turns, for assertions
    bint alone                       # with mark, too: that thread does all there is to do, and takes no lock for it
    uint32_t armed                   # number of completion queues that are armed; atomic
    bint work_pending                # when the descriptor was armed, something was there already; atomic
    pthread_mutex_t events           # guards the rest, and the event fields of soft_cq
    bint polling                     # the program asks its queues, and the descriptor tells of nothing; read unlocked
    pthread_cond_t acked
    uint8_t *spare                   # a receive buffer that no queue pair needs (rdmap_rx), or NULL; atomic
    soft_cq *first_event             # completion queues with undelivered events, oldest first; read unlocked
    soft_cq *last_event
    bint signalled                   # event_fd is readable, because of events or work_pending; read unlocked
    int64_t yield_again              # CLOCK_MONOTONIC nanoseconds until which no transfer gives its core away; atomic

# Take and release `progress`, and say that it is held. They do nothing for a thread that is alone, but a debug build
# checks that it is the one.
cdef void domain_lock(soft_domain *domain) noexcept nogil
cdef bint domain_trylock(soft_domain *domain) noexcept nogil
cdef void domain_unlock(soft_domain *domain) noexcept nogil
cdef void assert_domain(const soft_domain *domain) noexcept nogil

# Makes descriptors and locks; `channel`: the domain is a channel. False: errno says why, and nothing is left open.
cdef bint domain_open(soft_domain *domain, soft_context *context, bint channel) noexcept nogil
cdef void domain_close(soft_domain *domain, soft_context *context) noexcept nogil

# Adds the queue pair to the list. Both take `progress`.
cdef void domain_add(soft_domain *domain, soft_link *link, soft_qp *qp) noexcept nogil
# After its return no thread makes progress for the queue pair in this domain.
cdef void domain_remove(soft_domain *domain, soft_link *link) noexcept nogil

# Puts all streams into the epoll set, and from now on each new one. `progress` is held.
cdef void domain_watch(soft_domain *domain) noexcept nogil

# What tells events of the queue pair from others in the epoll set.
cdef uint64_t domain_event(const soft_domain *domain, const soft_qp *qp, uint32_t kind) noexcept nogil

# The next six belong to a turn. `progress` is held.
# A new turn, unless the program begins the turns.
cdef void domain_begin_turn(soft_domain *domain) noexcept nogil
# The same, unless soft_channel_poll does: all polls between two of its calls share one.
cdef void domain_next_turn(soft_domain *domain) noexcept nogil
# Whether nothing more is done in this turn. Each turn looks once at the queue pairs, also if posts have used it up.
cdef bint domain_is_over(const soft_domain *domain) noexcept nogil
# The share of a queue pair: `most`, or what the others that are to come leave of the turn.
cdef uint32_t domain_share(const soft_domain *domain, uint32_t most) noexcept nogil
# Takes work off the turn.
cdef void domain_worked(soft_domain *domain, uint32_t work) noexcept nogil
# The fabric's `transmit` for the queue pair's share. soft_qp.lock is held, too.
cdef void domain_transmit(soft_domain *domain, soft_qp *qp) noexcept nogil

# The fabric's `transmit` for a post. soft_qp.lock is held.
cdef void domain_post(soft_qp *qp) noexcept nogil
# Takes work of a post off the turn, if the program begins the turns.
cdef void domain_posted(soft_qp *qp, uint32_t work) noexcept nogil
# Takes work off a share.
cdef void share_spend(uint32_t *share, uint64_t work) noexcept nogil

# Sets work_pending back. What a thread has stored before it set work_pending is seen afterwards.
cdef void domain_clear_pending(soft_domain *domain) noexcept nogil

# Takes `progress` and makes progress. If another thread is at it, `waits` says whether to wait for it or to return.
cdef void domain_progress(soft_domain *domain, bint waits) noexcept nogil

# Hands an event of a queue pair, or a batch from epoll, to the fabric. How many of the batch were of queue pairs.
# `progress` is held.
cdef void domain_take(soft_domain *domain, const epoll_event *event) noexcept nogil
cdef uint32_t domain_take_batch(soft_domain *domain, const epoll_event *ready, int count) noexcept nogil

# Asks epoll which descriptors are ready and hands them to the fabric. The number of those; 0 if the program does that.
# `progress` is held.
cdef uint32_t domain_poll_descriptors(soft_domain *domain) noexcept nogil

# Makes event_fd readable exactly while something is to be told. Each entry point that may have made events calls it
# once, at its end. So an event that get_cq_event itself makes and delivers costs no system call.
cdef void domain_update_fd(soft_domain *domain) noexcept nogil
cdef void domain_update_fd_locked(soft_domain *domain) noexcept nogil
# The same for all domains of a queue pair but `except_for`, whose caller does it itself; NULL: for all.
cdef void qp_update_fds(soft_qp *qp, soft_domain *except_for) noexcept nogil

# The completion queue of the oldest undelivered event, which counts as delivered from now on. NULL: there is none.
cdef soft_cq *domain_take_event(soft_domain *domain) noexcept nogil
