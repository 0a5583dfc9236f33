# Progress domains: the queue pairs that one poll makes progress for, and the descriptor that tells when to poll.
#
# A completion channel is a domain, and so is each completion queue without one. A domain has the queue pairs of all its
# completion queues. One thread at a time makes progress for it, with `progress` held.

cdef enum:
    EVENT_TIMER = 1                  # in epoll data, beside a queue pair's address: its timer. Queue pairs are aligned

cdef struct soft_link:               # a queue pair in a domain's list
    soft_link *next                  # guarded by domain.progress
    soft_link *prev
    soft_qp *qp
    soft_domain *domain              # NULL: in no list
    bint watched                     # the stream is in the domain's epoll set; guarded by soft_qp.lock

cdef struct soft_domain:
    soft_domain *next                # of the context; guarded by its thread_lock
    soft_domain *prev
    const soft_fabric *fabric
    void *fabric_state               # the fabric's own; guarded by `progress`
    pthread_mutex_t progress         # held by the thread that makes progress; guards links and nlinks
    int epoll_fd                     # has streams, start-up timers and event_fd
    int event_fd                     # readable while events are pending; -1 without a channel
    bint watched                     # streams are in the epoll set: with a channel, or when that pays; read unlocked
    bint blocking                    # get_cq_event last saw the descriptor without O_NONBLOCK; a hint, atomic
    soft_link *links
    uint32_t nlinks
    uint32_t armed                   # completion queues that are armed; atomic
    bint work_pending                # something was there to be done when the descriptor was armed; read unlocked
    pthread_mutex_t events           # guards the rest, and the event fields of soft_cq
    bint polling                     # soft_channel_poll tells of events, not the descriptor; read unlocked
    pthread_cond_t acked
    soft_cq *first_event             # CQs with undelivered events, oldest first; read unlocked
    soft_cq *last_event
    bint signalled                   # event_fd is readable, for events or for work_pending; read unlocked

# Makes descriptors and locks; `channel`: events have to be told. False: errno says why, and nothing is left open.
cdef bint domain_open(soft_domain *domain, soft_context *context, bint channel) noexcept nogil
cdef void domain_close(soft_domain *domain, soft_context *context) noexcept nogil

cdef void domain_add(soft_domain *domain, soft_link *link, soft_qp *qp) noexcept nogil
# When it returns no thread makes progress for the queue pair in this domain.
cdef void domain_remove(soft_domain *domain, soft_link *link) noexcept nogil

# Puts the streams into the epoll set, these and later ones. The progress lock is held.
cdef void domain_watch(soft_domain *domain) noexcept nogil

# Makes progress. If another thread is at it: waits for that one (`waits`), or leaves the work to it.
cdef void domain_progress(soft_domain *domain, bint waits) noexcept nogil

# Asks the epoll set for descriptors that are ready and hands them to the fabric. Whether there were any. The progress
# lock is held.
cdef bint domain_poll_descriptors(soft_domain *domain) noexcept nogil

# Makes event_fd say whether events are pending. Called at the end of each entry point that may have made events, not
# where they are made: an event that get_cq_event itself makes and delivers costs no system call.
cdef void domain_update_fd(soft_domain *domain) noexcept nogil
cdef void domain_update_fd_locked(soft_domain *domain) noexcept nogil
# The same for the domains of a queue pair, except the one whose caller does it itself; NULL: for all.
cdef void qp_update_fds(soft_qp *qp, soft_domain *but) noexcept nogil

# The oldest undelivered event, which counts as delivered from now on. NULL: there is none.
cdef soft_cq *domain_take_event(soft_domain *domain) noexcept nogil
