# Sending: from send queue entries and READ responses to FPDUs, many in one batch. All of it with soft_qp.lock held.
#
# A batch is built from the cursor on, with tx_build; the fabric writes its octets and says with tx_commit how many of
# them the stream has taken. What it has not taken is built again, so that nothing but the cursor is kept.

cdef enum:
    TX_IOVECS = 160
    TX_FRAMES = 64
    TX_REGIONS = 64
    TX_COPY = 1024                   # payloads of up to this are copied next to their header
    TX_FRAME_ARENA = UNTAGGED_HEADER + TX_COPY + FPDU_TRAILER_MAX
    TX_ARENA = 16384
    TX_BYTES = 1280 << 10            # in one batch
    TX_BYTES_CRC = 128 << 10         # less, as a CRC of octets that the stream does not take is made again

cdef enum:                           # tx_cursor.kind
    TX_NONE                          # between messages
    TX_REQUEST                       # in the send queue entry `next_wqe`
    TX_RESPONSE                      # in the READ response `next_response`

# Where transmission is. Counters run freely and wrap.
cdef struct tx_cursor:
    uint8_t kind
    bint response_turn               # READ responses and the send queue alternate, message by message
    uint32_t next_wqe
    uint32_t next_response
    uint32_t offset                  # payload octets of the message before the next FPDU
    uint32_t mulpdu                  # for all FPDUs of the message
    uint32_t send_msn
    uint32_t read_msn
    uint32_t reads                   # READ requests sent

cdef struct tx_state:                # soft_qp.tx; guarded by soft_qp.lock
    tx_cursor cursor
    bint allowed                     # FPDUs may be sent (by an MPA responder: after the first that came in)
    bint held                        # not yet: octets of the stream's start-up go first
    bint blocked                     # until the stream can be written; read unlocked
    bint broken                      # the kernel refused to send; the receiving side will find out why
    uint32_t mulpdu                  # the longest ULPDU that fits the stream's segments
    uint32_t batch_bytes             # in one batch
    uint32_t frame_sent              # octets of the FPDU at the cursor that are written
    uint32_t frame_crc               # its CRC state, when frame_sent is not 0
    uint8_t *bounce                  # copies of READ sources under CRC, while there are responses
    uint32_t bounce_at               # where in there the FPDU at the cursor is, when frame_sent is not 0

cdef struct tx_frame:                # an FPDU of a batch
    tx_cursor before                 # the cursor at this FPDU, with the message chosen
    tx_cursor after                  # the cursor once it is written
    size_t size                      # octets to write
    uint32_t written                 # octets of the FPDU written before
    uint32_t payload
    uint32_t crc
    uint32_t bounce_at
    bint last

cdef struct tx_batch:                # on the stack of the thread that sends
    iovec iov[TX_IOVECS]
    tx_frame frames[TX_FRAMES]
    soft_mr *regions[TX_REGIONS]     # held until the octets are with the kernel
    int niov
    int nframes
    int nregions
    size_t size
    uint32_t used                    # of arena
    uint32_t bounce_used
    uint8_t arena[TX_ARENA]          # headers, trailers, small payloads

cdef enum:                           # results of building an FPDU
    TX_BUILT
    TX_FULL                          # the batch has no room for it
    TX_FAULT_REGION                  # the memory may not be read (any more)
    TX_FAULT_DEPTH                   # a READ, and the peer takes none
    TX_FAULT_MEMORY

# Whether there is an FPDU that could be sent now.
cdef bint tx_pending(const soft_qp *qp) noexcept nogil
# Whether the next send queue entry may go out now.
cdef bint tx_may_start(const soft_qp *qp, const tx_cursor *cur) noexcept nogil
# Whether FPDUs may be written at all.
cdef bint tx_may_write(const soft_qp *qp) noexcept nogil
# Between messages: what comes next. False: nothing.
cdef bint tx_choose(soft_qp *qp, tx_cursor *cur) noexcept nogil

# Builds up to max_frames FPDUs from the cursor on. The result says why it stopped; TX_BUILT: there is nothing more. A
# fault with no FPDU built is of the one at the cursor.
cdef int tx_build(soft_qp *qp, tx_batch *b, int max_frames) noexcept nogil
# The stream has taken this many octets of the batch.
cdef void tx_commit(soft_qp *qp, tx_batch *b, size_t written) noexcept nogil
# Lets the batch's regions go.
cdef void tx_release(tx_batch *b) noexcept nogil
# The FPDU at the cursor cannot be sent, for this result of tx_build: the queue pair goes to ERR.
cdef void tx_fault(soft_qp *qp, int result) noexcept nogil
# At the end of a turn: completes what is done, and notes whether something waits until the stream can be written.
cdef void tx_end_turn(soft_qp *qp) noexcept nogil

# The header of a SEND's FPDU at the cursor.
cdef void tx_put_send_header(uint8_t *header, const soft_swqe *swqe, const tx_cursor *cur, bint last,
                             uint32_t payload) noexcept nogil
# Appends pad and CRC to an FPDU of `size` octets, whose memory has room for them. Gives the whole size.
cdef uint32_t tx_put_trailer(const soft_qp *qp, uint8_t *fpdu, uint32_t size) noexcept nogil

# Sends a Terminate, best effort: not when an FPDU is half written and cannot be finished.
cdef void tx_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil
