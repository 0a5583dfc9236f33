"""soft_shm: a queue pair's stream over a UNIX socket and two rings, and the table of this fabric.

fabric.pxd says what each function of the table does, and with which locks held.
"""

cdef struct shm_stream:              # soft_qp.fabric_state; guarded by soft_qp.lock
    shm_link links[2]                # for soft_qp.domains; wait.pxd says what guards them
    shm_page *ours
    uint8_t *our_ring
    const shm_page *theirs           # NULL until the peer has introduced itself; read unlocked
    const uint8_t *their_ring
    const shm_generation *registry   # the peer's
    uint32_t ring_present            # octets of the peer's memfd, from its start, known to be present
    uint64_t tail                    # octets written to our ring: whole cells
    uint64_t space_head              # octets of our ring consumed by the peer at the last look; read unlocked
    uint64_t head                    # octets consumed of theirs: whole cells; read unlocked
    uint64_t head_published          # the value of head visible to the peer
    uint64_t head_woken              # the value of head at the last check whether the peer waits for space
    uint32_t tail_at                 # position of `tail` in our ring
    uint32_t head_at                 # position of `head` in theirs; read unlocked
    uint32_t chunk_left              # octets still to be read of the cell at the head, of kind SHM_STREAM
    uint32_t chunk_at                # if any: position of the first of them
    uint32_t chunk_size              # octets of the ring taken by the cell
    uint32_t copied                  # octets of the request at the cursor already copied through a window
    bint unfinished                  # a turn has ended with requests and room in the ring left; read unlocked
    # Counted as `tail`: the last WRITE through the ring ends here or before. While the peer's head is less, no request
    # may be copied through a window (region.pyx).
    uint64_t write_tail
    uint32_t records_sent
    uint32_t records_seen            # read unlocked
    uint32_t wakeups_requested
    uint32_t wakeup_answered         # the peer's last answered request
    uint32_t rings                   # number of answered requests; read unlocked
    int bell                         # this end's, rung by the peer; -1: none
    int peer_bell                    # the peer's, if it is trusted; -1: records wake the peer
    bint wakeup_pending              # our request is not answered yet
    bint wakeup_for_space            # our request is also about consumption
    bint eof                         # the socket's end was read
    const char *broken               # why the stream has to end (soft_qp_fault), or NULL
    shm_reader reader
    shm_hold hold                    # whether records stay in the socket
    uint64_t closing[CLOSER_EACH]    # the last pieces of memory left to the closing thread
    uint32_t nclosing                # their number since the beginning
    shm_window *windows              # hash table of SHM_WINDOWS_SIZE by STag; NULL without
    uint32_t nwindows                # entries ever used
    uint32_t open_windows            # entries in use
    uint32_t swept                   # the next entry to be checked for a deregistered region
    uint64_t window_bytes            # of the entries in use
    shm_arrival arrival
    uint32_t excess                  # work of offers beyond the share; goes to soft_domain.aside
    shm_generation offered[SHM_OFFERS]  # by slot; offered again after a collision
    bint answers                     # the peer answers offers: this end sends the next offer after the last answer
    shm_record unanswered            # the offer without an answer; its kind is 0 without
    soft_mr *sending                 # the regions last used by messages, or NULL. They stay in use until the stream
    soft_mr *receiving               # ends, or until they are deregistered (shm_forget_region)

# The shm_stream of a queue pair.
cdef shm_stream *shm_of(const soft_qp *qp) noexcept nogil

# Carries out the peer's HELLO: maps the peer's memory and opens the stream. False: no correct peer sends this record,
# or this process lacks memory or mappings. The caller then ends the stream. Needs qp.lock.
cdef bint shm_hello(soft_qp *qp, const shm_record *record) noexcept nogil

# Receive and send as much as possible. `socket`: the socket is readable. domain.progress is held. shm_progress_locked
# also needs qp.lock, and its caller calls qp_update_fds.
cdef void shm_progress(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil
cdef void shm_progress_locked(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil

# Fills the fabric's table, for soft_fill_tables.
cdef void shm_fill_table() noexcept nogil
