"""soft_shm: a queue pair's stream over a UNIX socket and two rings, and the table of this fabric."""

cdef struct shm_stream:              # soft_qp.fabric_state; guarded by soft_qp.lock
    shm_link links[2]                # for soft_qp.domains; wait.pxd says what guards them
    shm_page *ours
    uint8_t *our_ring
    const shm_page *theirs           # NULL until the peer has introduced itself; read unlocked
    const uint8_t *their_ring
    const shm_generation *registry   # the peer's
    uint32_t ring_present            # octets of the peer's memfd, from its start, whose pages are there
    uint64_t tail                    # octets written to our ring: whole cells
    uint64_t space_head              # octets of them that the peer had consumed when last read; read unlocked
    uint64_t head                    # octets consumed of theirs: whole cells; read unlocked
    uint64_t head_published          # the value of head that the peer can read
    uint64_t head_woken              # the value of head when it was last checked whether the peer waits for space
    uint32_t tail_at                 # the same positions in the rings
    uint32_t head_at                 # read unlocked
    uint32_t chunk_left              # octets of the cell at the head, of kind SHM_STREAM, that were not read yet
    uint32_t chunk_at                # if any: position of the first of them
    uint32_t chunk_size              # octets of the ring that the cell takes
    uint32_t copied                  # octets of the request at the cursor that were copied through a window
    bint unfinished                  # a turn has ended before all was sent that the ring has room for; read unlocked
    uint64_t write_tail              # where the last WRITE that went through the ring ends
    uint32_t records_sent
    uint32_t records_seen            # read unlocked
    uint32_t wakeups_requested
    uint32_t wakeup_answered         # the last request of the peer that was answered
    uint32_t rings                   # how many were; read unlocked
    int bell                         # this end's, which the peer rings; -1: none
    int peer_bell                    # the peer's, if it is trusted; -1: it is woken by records
    bint wakeup_pending              # our request is not answered yet
    bint wakeup_for_space            # our request is also about consumption
    bint eof                         # the socket's end was read
    const char *broken               # what the peer has done that no correct peer does, or NULL
    shm_reader reader
    shm_hold hold                    # whether records stay in the socket
    uint64_t closing[CLOSER_EACH]    # the last pieces of memory that were left to the closing thread
    uint32_t nclosing                # how many there ever were
    shm_window *windows              # hash table of SHM_WINDOWS_SIZE by STag; NULL without
    uint32_t nwindows                # entries ever used
    uint32_t open_windows            # entries in use
    uint32_t swept                   # the entry that is looked at next, for whether its region is still there
    uint64_t window_bytes            # of the entries in use
    shm_arrival arrival
    uint32_t excess                  # work of offers beyond the share
    shm_generation offered[SHM_OFFERS]  # by slot; offered again after a collision
    bint answers                     # the peer answers offers. It gets the next one after it has answered the last
    shm_record unanswered            # that one; its kind is 0 without
    soft_mr *sending                 # the regions that messages last used, or NULL. They stay in use until the stream
    soft_mr *receiving               # ends, or until they are deregistered (shm_forget_region)

# The state of a queue pair of soft_shm.
cdef shm_stream *shm_of(const soft_qp *qp) noexcept nogil

# A HELLO has come: maps the peer's memory and opens the stream. False: no correct peer sends it. Needs qp.lock.
cdef bint shm_hello(soft_qp *qp, const shm_record *record) noexcept nogil

# Receives and sends what is possible. `socket`: the socket is readable. domain.progress is held; qp.lock, too, if the
# name says so, and then qp_update_fds is the caller's.
cdef void shm_progress(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil
cdef void shm_progress_locked(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil
