"""A lane: a memcached connection on a shared queue pair. The lane feeds the drive machine, and posts its replies.

OPEN makes a lane, if the server has room for one more connection. Its id is free again when both sides have sent CLOSE.

Output that cannot be posted stays in the lane's reply list, and the lane waits in a list of its connection. The
next completion lets the lane go on. A lane also waits when its client holds as much unused output as the client keeps,
until the client reports used output. A lane that has used up its share of the turn goes on in the next turn.

Input of a waiting lane is copied, up to RDMA_LANE_BYTES and the beginning of a command. A lane with waiting replies
does no commands, so the replies are bounded, too.

A lane, and the lanes' fields of its connection, belong to the connection's worker. The worker writes the list of a
connection's lanes under the owner's lock (t.lanes.lock), so any thread with the lock can read the list. A part of the C
unit of rdma_conn, above rdma/setup, rdma/queue, rdma/thread and rdma/lane_table.
"""

cdef enum:
    READS_AT_A_TIME = 16         # of a lane
    INPUT_FIRST = 4096           # bytes of the smallest buffer of a lane
    INPUT_PIECE = 2048           # bytes put behind the beginning of a command at a time
    LANE_INPUT_MAX = 128 * 1024  # bytes of the largest buffer of a lane
    TURN_QUANTA = 4              # commands of a queue pair in a turn, as a multiple of reqs_per_event

cdef enum lane_place:            # what a lane waits for, apart from its READs under way
    LANE_FREE = 0                # none: the lane is in no list
    LANE_RUNNABLE                # for its share of the next turn
    LANE_WANTS_SEND              # for a send buffer and a credit
    LANE_WANTS_WRITE             # for room for a WRITE in the send queue
    LANE_WANTS_READ              # for room for a READ in the send queue
    LANE_WANTS_ROOM              # for room at the client
    LANE_WANTS_RESULT            # for the result of a reply that waits (protocol/conn.pxd, resp_wait)

cdef struct rdma_lane:
    conn c                       # the drive machine's connection; the first field, so its address is the lane's
    rdma_conn *rc
    uint32_t id
    lane_place place
    rdma_lane *list_prev         # in the list of the place
    rdma_lane *list_next
    rdma_lane *prev              # in the list of all lanes; written under t.lanes.lock
    rdma_lane *next
    bint counted                 # as a connection of its own
    bint peer_closed             # CLOSE has come: nobody takes replies
    bint ending                  # the lane ends with its last READ, and drops its input
    const char *last_words       # the payload of the server's CLOSE
    uint32_t last_active         # store time of its last message, or of a READ
    uint32_t rx_room             # bytes of DATA that the client may send
    uint32_t tx_room             # bytes of DATA that may be sent to the client
    char *inbuf                  # buffer for kept unparsed input
    size_t insize
    size_t rest                  # bytes of the present message behind the unparsed input
    bint starved                 # the machine wants more: the unparsed input is the beginning of a command
    size_t write_off             # bytes of the next reply's data with posted WRITEs
    rdma_wr *last_write          # the last of these WRITEs, until completed; the reply has the reference to the item
    size_t read_bytes            # of the READs under way
    unsigned int reads           # READs under way
    lane_pins pins               # items with views of the client

cdef struct lane_close:          # a waiting CLOSE of the server. Its lane is gone
    lane_close *next
    const char *last_words
    uint32_t id

# --- messages for a lane. Each function may fail the queue pair ---
# OPEN: makes the lane, or answers with CLOSE if there are too many connections.
cdef void lane_take_open(rdma_conn *rc, uint32_t id) noexcept nogil
# The client's CLOSE: the lane ends after its earlier commands.
cdef void lane_take_close(rdma_conn *rc, uint32_t id) noexcept nogil
# DATA, with a payload of `length` bytes: runs the drive machine over it. May end the lane.
cdef void lane_take_data(rdma_conn *rc, const message_header *header, char *payload, size_t length) noexcept nogil
# A WRITE has completed, or failed: the lane forgets it. The caller releases the item (queue_release_item).
cdef void lane_write_completed(rdma_wr *entry) noexcept nogil
# A READ of `length` bytes has completed. The last READ of a payload lets the machine go on.
cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil

# --- for rdma/lanes ---
# Sends waiting CLOSE messages, the longest waiting first, as far as there is room.
cdef void lane_closes_send(rdma_conn *rc) noexcept nogil
# Frees the waiting CLOSE messages unsent.
cdef void lane_closes_free(rdma_conn *rc) noexcept nogil
# Takes the lane out of the list of its place.
cdef void lane_leave_place(rdma_lane *lane) noexcept nogil
# Tries again to post for a lane, and lets it go on. The lane has left its place, and may be gone afterwards.
cdef void lane_retry(rdma_lane *lane) noexcept nogil
# Ends the lane now, or with its last READ under way. last_words: for the client; constant, or NULL.
cdef void lane_end(rdma_lane *lane, const char *last_words) noexcept nogil
# Frees the lane in any state, without a CLOSE. The caller takes the lane out of the table.
cdef void lane_free(rdma_lane *lane) noexcept nogil
