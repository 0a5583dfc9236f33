"""A lane: one of the memcached connections that share a queue pair. It feeds the drive machine, and posts its replies.

OPEN makes a lane, if the server has room for one more connection. The lane is gone when both sides have sent CLOSE.

Output that cannot be posted stays in the lane's reply list, and the lane waits in a list of its connection. The next
completion lets it go on; a lane whose client keeps as much of its output as it has promised to keep, goes on when the
client has used some. A lane that has done its share of the turn goes on in the next.

Input of a waiting lane is copied, up to RDMA_LANE_BYTES and the beginning of a command. A lane with waiting replies
does no commands, so the replies are bounded, too.

A lane, and the lanes' fields of its connection, belong to the connection's worker. The list of a connection's lanes is
written under the lock that the owner has given, so that other threads can read it. A part of the C unit of rdma_conn,
above rdma/setup, rdma/queue, rdma/thread and rdma/lane_table.
"""

cdef enum:
    READS_AT_A_TIME = 16         # of one lane
    INPUT_FIRST = 4096           # bytes of the smallest buffer of a lane
    INPUT_PIECE = 2048           # what is put behind the beginning of a command at a time
    LANE_INPUT_MAX = 128 * 1024  # bytes of the largest buffer of a lane
    TURN_QUANTA = 4              # commands that a queue pair does in a turn, in reqs_per_event

cdef enum lane_place:            # what a lane waits for, if not for READs
    LANE_FREE = 0                # nothing. In no list
    LANE_RUNNABLE                # its share of the next turn
    LANE_WANTS_SEND              # a send buffer and a credit
    LANE_WANTS_WRITE             # room in the send queue for a WRITE
    LANE_WANTS_READ              # ... for a READ
    LANE_WANTS_ROOM              # that its client uses something

cdef struct rdma_lane:
    conn c                       # first: the machine's
    rdma_conn *rc
    uint32_t id
    lane_place place
    rdma_lane *list_prev         # in the list of the place
    rdma_lane *list_next
    rdma_lane *prev              # in the list of all; written under t.lanes.lock
    rdma_lane *next
    bint counted                 # as a connection of its own
    bint peer_closed             # CLOSE has come: nobody takes replies
    bint ending                  # it ends with its last READ; what comes for it is dropped
    const char *last_words       # what CLOSE says
    uint32_t last_active         # store time of its last message, or of a READ
    uint32_t rx_room             # bytes of DATA that the client may send
    uint32_t tx_room             # bytes of DATA that the client keeps
    char *inbuf                  # unparsed input that could not be used at once
    size_t insize
    size_t rest                  # bytes behind the unparsed input, of the message that is being used
    bint starved                 # the machine wants more: the unparsed input is the beginning of a command
    size_t write_off             # bytes of the next reply's data whose WRITE has been posted
    rdma_wr *last_write          # the last of them, if it has not completed; the reply has the reference to the item
    size_t read_bytes            # of the READs under way
    unsigned int reads           # READs under way
    lane_pins pins               # that the client has views of

cdef struct lane_close:          # a CLOSE that could not be sent yet. Its lane is gone
    lane_close *next
    const char *last_words
    uint32_t id

# --- messages that name a lane. Any may fail the queue pair ---
# OPEN.
cdef void lane_take_open(rdma_conn *rc, uint32_t id) noexcept nogil
# CLOSE.
cdef void lane_take_close(rdma_conn *rc, uint32_t id) noexcept nogil
# DATA, with a payload of so many bytes.
cdef void lane_take_data(rdma_conn *rc, const message_header *header, char *payload, size_t length) noexcept nogil
# A WRITE has completed, or failed.
cdef void lane_write_completed(rdma_wr *entry) noexcept nogil
# A READ of so many bytes has completed; the last of a batch lets the machine go on.
cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil

# --- for rdma/lanes ---
# Sends the CLOSE messages that wait, those first that wait the longest, as far as there is room. Without a word frees
# them.
cdef void lane_closes_send(rdma_conn *rc) noexcept nogil
cdef void lane_closes_free(rdma_conn *rc) noexcept nogil
# To leave the list of its place.
cdef void lane_leave_place(rdma_lane *lane) noexcept nogil
# Lets one go on that gave way, and tries again what one could not post. It has left its place, and may be gone
# afterwards.
cdef void lane_go_on(rdma_lane *lane) noexcept nogil
cdef void lane_retry(rdma_lane *lane) noexcept nogil
# Ends the lane, or makes the last READ end it. last_words: for the client; constant, or NULL.
cdef void lane_end(rdma_lane *lane, const char *last_words) noexcept nogil
# Frees it without a word, in whatever state. The table still has it.
cdef void lane_free(rdma_lane *lane) noexcept nogil
