# soft_shm: a queue pair's stream over a UNIX socket and two rings, and the table of this fabric.

cdef struct shm_stream:              # soft_qp.fabric_state; guarded by soft_qp.lock
    shm_link links[2]                # for soft_qp.domains; what guards them is said there
    shm_page *ours
    uint8_t *our_ring
    const shm_page *theirs           # NULL until the peer has introduced itself; read unlocked
    const uint8_t *their_ring
    const shm_generation *registry   # the peer's
    uint64_t tail                    # octets written to our ring: whole cells
    uint64_t space_head              # octets of them that the peer is known to have consumed; read unlocked
    uint64_t head                    # octets consumed of theirs: whole cells; read unlocked
    uint64_t head_published          # ... that the peer can know of
    uint64_t head_woken              # ... at which it was last looked whether the peer waits for space
    uint32_t tail_at                 # the same positions in the rings
    uint32_t head_at                 # read unlocked
    uint32_t chunk_left              # octets of the stream in the cell at the head that were not taken yet; if any:
    uint32_t chunk_at                # where the first of them is
    uint32_t chunk_size              # of the whole cell
    uint64_t write_tail              # where the last WRITE that went through the ring ends
    uint32_t records_sent
    uint32_t records_seen            # read unlocked
    uint32_t wakeups_requested
    uint32_t wakeup_answered         # the last request of the peer that was
    bint wakeup_pending              # ours is not answered
    bint wakeup_for_space            # and is for consumption too
    bint eof                         # the socket's end was read
    bint broken                      # the peer has done what no correct peer does
    shm_reader reader
    shm_window *windows              # hash table of SHM_WINDOWS_SIZE by STag; NULL without
    uint32_t nwindows                # entries ever used
    shm_generation offered[SHM_OFFERS]  # by slot; offered again after a collision
    soft_mr *sending                 # regions last used by messages in cells, or NULL. Their use is counted until the
    soft_mr *receiving               # stream's end, or until they are deregistered (shm_forget_region)

cdef shm_stream *shm_of(const soft_qp *qp) noexcept nogil

# A HELLO: maps what the peer has sent, and opens the stream. False: no correct peer does that. qp.lock is held.
cdef bint shm_hello(soft_qp *qp, const shm_record *record) noexcept nogil

# Does what the stream allows now; `socket`: its socket is readable. The progress lock of `domain` is held; takes
# qp.lock.
cdef void shm_progress(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil
