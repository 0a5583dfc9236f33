"""Sending: from send queue entries and READ responses to FPDUs. Called by qp.pyx and the fabrics, with soft_qp.lock.

FPDUs leave in batches. tx_build builds a batch from the cursor on. The fabric writes its octets, and tx_commit moves
the cursor behind the octets taken by the stream. The next batch builds the rest again: only the cursor is kept.
"""

cdef enum:
    TX_IOVECS = 160
    TX_FRAMES = 64
    TX_REGIONS = 64
    TX_COPY = 1024                   # payloads up to this size are copied next to their header
    TX_FRAME_ARENA = UNTAGGED_HEADER + TX_COPY + FPDU_TRAILER_MAX
    TX_ARENA = 16384
    TX_BYTES = 1280 << 10            # of one batch
    TX_TURN = 2 << 20                # work in one turn of a queue pair; domain.pxd defines the unit
    TX_BYTES_CRC = 128 << 10         # with CRC: less, since the CRC of octets refused by the stream is computed again

cdef enum:                           # tx_cursor.kind
    TX_NONE                          # between messages
    TX_REQUEST                       # in the send queue entry `next_wqe`
    TX_RESPONSE                      # in the READ response `next_response`

# The position of transmission. Counters run freely and wrap.
cdef struct tx_cursor:
    uint8_t kind
    bint response_turn               # a READ response comes next: responses and requests alternate by messages
    uint32_t next_wqe                # send queue entry
    uint32_t next_response
    uint32_t offset                  # payload octets of the message before the next FPDU
    uint32_t mulpdu                  # for all FPDUs of the message
    uint32_t send_msn
    uint32_t read_msn
    uint32_t reads                   # READ requests sent

cdef struct tx_state:                # soft_qp.tx; guarded by soft_qp.lock
    tx_cursor cursor
    bint allowed                     # FPDUs may be sent. An MPA responder may send after it has received an FPDU
    bint held                        # octets of the stream's start-up have to leave first
    bint blocked                     # a sender waits until the stream can be written; read unlocked
    bint owed                        # the fabric has taken octets that the stream has not taken yet
    bint broken                      # a write has failed; the receiving side will find out why
    uint32_t mulpdu                  # the longest ULPDU for a segment of the stream
    uint32_t batch_bytes             # of one batch
    uint32_t share                   # work that a turn may do
    uint32_t used                    # work done by the last turn
    uint32_t frame_sent              # written octets of the FPDU at the cursor
    uint32_t frame_crc               # CRC of the FPDU at the cursor, when frame_sent is not 0
    uint8_t *bounce                  # copies of READ sources under CRC, while there are responses
    uint32_t bounce_at               # position in bounce of the payload at the cursor, when frame_sent is not 0

cdef struct tx_frame:                # an FPDU of a batch
    tx_cursor before                 # the cursor at this FPDU, with the message chosen
    tx_cursor after                  # the cursor once this FPDU is written
    size_t size                      # octets to write
    uint32_t written                 # octets of the FPDU written before
    uint32_t payload
    uint32_t crc
    uint32_t bounce_at
    bint last

cdef struct tx_batch:                # on the stack of the sending thread
    iovec iov[TX_IOVECS]
    tx_frame frames[TX_FRAMES]
    soft_mr *regions[TX_REGIONS]     # in use until the octets are written
    int niov
    int nframes
    int nregions
    size_t size
    uint32_t used                    # of arena
    uint32_t bounce_used
    uint8_t arena[TX_ARENA]          # headers, trailers, small payloads

cdef enum:                           # results of building an FPDU
    TX_BUILT
    TX_FULL                          # the batch has no room for the FPDU
    TX_FAULT_REGION                  # the memory may not be read (any more)
    TX_FAULT_DEPTH                   # a READ, and the peer accepts none
    TX_FAULT_MEMORY                  # there is no memory for a copy
    TX_FAULT_BIND                    # BIND_MW is refused
    TX_FAULT_KEY                     # LOCAL_INV is refused

# Octets of payload in the longest FPDU of a WRITE or READ response.
cdef uint32_t tx_tagged_room(uint32_t mulpdu) noexcept nogil
# Whether there is an FPDU to send, or a request for the fabric to carry out itself (soft_fabric.is_direct).
cdef bint tx_pending(const soft_qp *qp) noexcept nogil
# Whether the next send queue entry may go out now.
cdef bint tx_may_start(const soft_qp *qp, const tx_cursor *cur) noexcept nogil
# Whether FPDUs may be written: the stream is open, no write has failed, and MPA's start-up allows FPDUs.
cdef bint tx_may_write(const soft_qp *qp) noexcept nogil
# Chooses the next message, unless the cursor is within one. False: there is none.
cdef bint tx_choose(soft_qp *qp, tx_cursor *cur) noexcept nogil

# Carries out the requests at the cursor that need no stream, and completes them. False: the queue pair is in error. The
# caller uses no region.
cdef bint tx_execute_local(soft_qp *qp) noexcept nogil
# Builds up to max_frames FPDUs from the cursor on, of about `most` octets, but at least one. The result is the reason
# for stopping; TX_BUILT: nothing is left. If none was built, a fault belongs to the FPDU at the cursor.
cdef int tx_build(soft_qp *qp, tx_batch *b, int max_frames, uint32_t most) noexcept nogil
# Called after the write: the stream has taken `written` octets of the batch. Moves the cursor behind them.
cdef void tx_commit(soft_qp *qp, tx_batch *b, size_t written) noexcept nogil
# Ends the use of the batch's regions. Called after each tx_build and its write.
cdef void tx_release(tx_batch *b) noexcept nogil
# Moves the queue pair to ERR, because the FPDU at the cursor cannot be built. `result` is tx_build's.
cdef void tx_fault(soft_qp *qp, int result) noexcept nogil
# Ends a turn: completes finished requests. If octets or messages are left, sending goes on when the stream is writable.
cdef void tx_end_turn(soft_qp *qp) noexcept nogil

# Writes the header of a SEND's FPDU at the cursor.
cdef void tx_put_send_header(uint8_t *header, const soft_swqe *swqe, const tx_cursor *cur, bint last,
                             uint32_t payload) noexcept nogil
# Appends pad and CRC to an FPDU of `size` octets. Returns the size including both.
cdef uint32_t tx_put_trailer(const soft_qp *qp, uint8_t *fpdu, uint32_t size) noexcept nogil

# Sends a Terminate, after the rest of a half-written FPDU, but only if the stream takes both at once. segment: the
# first octets of the faulty segment, `received` in number; or NULL.
cdef void tx_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil
