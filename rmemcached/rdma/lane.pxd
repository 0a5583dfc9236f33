"""A lane: one of the memcached connections that share a queue pair. It feeds the drive machine, and posts its replies.

The first DATA message with a lane's id makes it; whatever ends a memcached connection, as `quit` does, ends it. Output
that cannot be posted stays in the lane's reply list, and the lane is marked as blocked. The next completion lets it go
on. A lane that has done its share of the turn is marked as runnable, and goes on in the next.

Input of a lane that cannot run is copied, as long as the queue pair's lanes keep no more than INPUT_KEPT. What comes
then stays in its receive, and the client does not get that credit back before the lane has used it. Replies that wait
are bounded, too: while those of a queue pair are more than OUTPUT_KEPT, no lane of it does more commands.

A lane, and the lanes' fields of its connection, belong to the connection's worker. A part of the C unit of rdma_conn,
above rdma/setup, rdma/queue and rdma/thread.
"""

cdef enum:
    READS_AT_A_TIME = 16         # of one lane
    INPUT_KEPT = RDMA_INPUT_MAX // 2     # bytes, of all lanes; the other half is for the beginnings of commands
    INPUT_FIRST = 4096           # bytes of the smallest buffer of a lane
    INPUT_PIECE = 2048           # what is put behind the beginning of a command at a time
    OUTPUT_KEPT = MAX_PENDING_BYTES      # bytes of replies that wait, and one lane's more
    TURN_QUANTA = 4              # commands that a queue pair does in a turn, in reqs_per_event

cdef struct rdma_lane:
    conn c                       # first: the machine's
    rdma_conn *rc
    uint32_t id
    char *inbuf                  # unparsed input that could not be used at once
    size_t insize
    size_t write_off             # bytes of the next reply's data whose WRITE has been posted
    size_t read_bytes            # of the READs under way
    size_t waiting               # of its replies, in rdma_conn.output_waiting
    unsigned int reads           # READs under way
    unsigned int nheld           # messages that stay in their receives
    uint32_t first_held          # the oldest of them; the others are linked by rdma_queue.held
    uint32_t last_held

# NULL: out of memory.
cdef rdma_lane *lane_open(rdma_conn *rc, uint32_t id) noexcept nogil
# No READ of it is under way, or the queue pair has been destroyed.
cdef void lane_close(rdma_lane *lane) noexcept nogil
# Takes the payload of a DATA message, which is in receive `index`. False: it stays there, and so the receive is not to
# be posted. The lane may be gone, and the queue pair may have failed.
cdef bint lane_input(rdma_lane *lane, uint32_t index, char *data, size_t length) noexcept nogil
# A READ of so many bytes has completed; the last of a batch lets the machine go on.
cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil

# A turn of the connection begins: its lanes have their share of commands again.
cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil
# Whether they have used it up.
cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil
# Lets lanes go on that have given way.
cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil
# Tries again what could not be posted.
cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil
