"""soft_shm: who polls a ring, who waits, and how the one that waits is woken.

In each of its domains a stream is either polled or waits. If it is polled, whoever makes progress in the domain looks
at its ring. If it waits, its page asks the peer for a wake-up, and the peer sends a record when it has written
something; that makes the socket readable. A stream that is polled in all its domains costs its peer no system call.
"""

cdef enum:
    SHM_ALWAYS_POLLED = 4            # up to so many streams of a domain are polled for ever
    SHM_POLL_LOOKS = 48              # rings that one poll looks at before it gives up
    SHM_TURNS = 16                   # polls between looks at the clock

cdef struct shm_link:                # a stream in one of its domains
    shm_link *next                   # in the domain's list of polled streams; guarded by domain.progress
    shm_link *prev
    soft_qp *qp
    uint32_t idle                    # polls in a row that have found nothing; guarded by domain.progress
    bint polled                      # in that list; read unlocked

cdef struct shm_domain:              # soft_domain.fabric_state; guarded by domain.progress
    shm_link *polled                 # streams whose rings are looked at; read unlocked
    shm_link *resume                 # the one that the next turn begins with; NULL: the first
    bint left_over                   # some link's is set; atomic
    uint32_t npolled
    uint32_t turns                   # since the clock was looked at
    int64_t checked                  # when the sockets were looked at; CLOCK_MONOTONIC nanoseconds
    int64_t check_after              # nanoseconds from then to the next look, while some streams wait

# The state of a domain of soft_shm.
cdef shm_domain *shm_domain_of(const soft_domain *domain) noexcept nogil

# Entries of the fabric's table.
cdef bint shm_open_domain(soft_domain *domain) noexcept nogil
cdef void shm_close_domain(soft_domain *domain) noexcept nogil
cdef void shm_domain_progress(soft_domain *domain, bint waits) noexcept nogil
cdef bint shm_serve(soft_domain *domain, bint arm) noexcept nogil
cdef void shm_arm(soft_domain *domain) noexcept nogil
cdef void shm_leave(soft_domain *domain, soft_qp *qp) noexcept nogil
cdef bint shm_polls(const soft_domain *domain) noexcept nogil

# From now on the stream is polled in this domain. domain.progress is held.
cdef void shm_start_polling(soft_domain *domain, soft_qp *qp) noexcept nogil

# The next five need soft_qp.lock.

# A turn has ended before all was done. Whoever polls the stream finds the rest. Its domains in which it waits are told:
# from now on they poll it, too.
cdef void shm_tell_rest(soft_qp *qp) noexcept nogil

# Whether the stream waits in one of its domains.
cdef bint shm_has_waiter(const soft_qp *qp) noexcept nogil
# Asks the peer for a wake-up. True: there is something to do already.
cdef bint shm_request_wakeup(soft_qp *qp) noexcept nogil
# With a full ring: asks for a wake-up if the stream waits somewhere. True: there is room already.
cdef bint shm_wait_for_space(soft_qp *qp) noexcept nogil
# Wakes the peer if it has asked for that. Called after each change that the peer may wait for. `consumed`: octets of
# its ring were consumed.
cdef void shm_wake_peer(soft_qp *qp, bint consumed) noexcept nogil
