"""soft_shm: polling and waiting streams, and the wake-up of a waiting stream.

In each of its domains a stream is either polled or waits. Any thread making progress in a domain looks at the rings of
its polled streams. The page of a waiting stream asks the peer for a wake-up: the peer rings this end's bell, or sends a
record, after it has written or consumed octets. A stream polled in all its domains costs its peer no system call.
"""

cdef enum:
    SHM_ALWAYS_POLLED = 4            # up to so many streams of a domain are polled for ever
    SHM_POLL_LOOKS = 48              # looks at rings in one poll before it gives up
    SHM_TURNS = 16                   # polls between looks at the clock

cdef struct shm_link:                # a stream in one of its domains
    shm_link *next                   # in the domain's list of polled streams; guarded by domain.progress
    shm_link *prev
    soft_qp *qp
    uint32_t idle                    # polls in a row without work; guarded by domain.progress
    bint polled                      # in the list; read unlocked

cdef struct shm_domain:              # soft_domain.fabric_state; guarded by domain.progress
    shm_link *polled                 # polled streams; read unlocked
    shm_link *resume                 # the first stream of the next turn; NULL: the head of the list
    bint left_over                   # left_over of some soft_link is set; atomic
    uint32_t npolled
    uint32_t turns                   # since the last look at the clock
    int64_t checked                  # time of the last look at the sockets; CLOCK_MONOTONIC nanoseconds
    int64_t check_after              # nanoseconds from then to the next look, while some streams wait

# The shm_domain of a domain of soft_shm.
cdef shm_domain *shm_domain_of(const soft_domain *domain) noexcept nogil

# Entries of the fabric's table; fabric.pxd says what they do.
cdef bint shm_open_domain(soft_domain *domain) noexcept nogil
cdef void shm_close_domain(soft_domain *domain) noexcept nogil
cdef void shm_domain_progress(soft_domain *domain, bint waits) noexcept nogil
cdef bint shm_serve(soft_domain *domain, bint arm) noexcept nogil
cdef void shm_arm(soft_domain *domain) noexcept nogil
cdef void shm_leave(soft_domain *domain, soft_qp *qp) noexcept nogil
cdef bint shm_polls(const soft_domain *domain) noexcept nogil

# From now on the stream is polled in this domain. Called when the stream was woken. domain.progress is held.
cdef void shm_start_polling(soft_domain *domain, soft_qp *qp) noexcept nogil

# The next five need soft_qp.lock.

# Called when a turn has ended with work left. Domains that poll the stream find the rest. Domains where the stream
# waits are told, and poll the stream from now on, too.
cdef void shm_tell_rest(soft_qp *qp) noexcept nogil

# Whether the stream waits in any of its domains.
cdef bint shm_has_waiter(const soft_qp *qp) noexcept nogil
# Asks the peer for a wake-up, before the stream waits. True: there is work already, so the stream must not wait.
cdef bint shm_request_wakeup(soft_qp *qp) noexcept nogil
# Called when our ring is full: sets tx.blocked, and asks for a wake-up if the stream waits in any domain. True: the
# peer has consumed octets meanwhile, so the sender should try again.
cdef bint shm_wait_for_space(soft_qp *qp) noexcept nogil
# Wakes the peer if it has asked for a wake-up. Called after each change that the peer may wait for. `consumed`: octets
# of its ring were consumed.
cdef void shm_wake_peer(soft_qp *qp, bint consumed) noexcept nogil
