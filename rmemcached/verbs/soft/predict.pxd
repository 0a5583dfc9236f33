"""Prediction: while a long tagged message comes in, one read of the stream takes many FPDUs.

A message's FPDUs have the same size, and the sinks of READs are known. So rdmap_rx can plan, behind the open FPDU
(the FPDU with a parsed header and a trailer to come) or between two FPDUs, where the next headers and payloads will be.
It reads each payload straight to its target, and the octets between two payloads into a gap. Then it parses the
received octets in order. If the plan was wrong, octets in a wrong place are copied back and go through the receive
buffer, as if received there.

The plan thus places payload before the header is checked. So it uses only memory whose content the peer decides anyway:
the rest of the sinks of READs under way, and regions registered with SOFT_ACCESS_SCRATCH.

With CRC, payload for such memory need not wait for its CRC either: until the CRC is right, the READ does not complete,
and nothing follows the WRITE. All other payload is placed after the check of its FPDU's CRC.

All functions need soft_qp.lock.
"""

cdef enum:
    PREDICTED_MAX = 32
    PREDICTED_BYTES = 512 << 10
    GAP_MAX = FPDU_TRAILER_MAX + TAGGED_HEADER

cdef struct rx_predicted:            # an expected FPDU
    uint64_t to
    uint32_t stag
    uint32_t payload
    uint32_t gap                     # octets of the preceding trailer and of its own header
    int iov                          # index of the gap in rx_target.iov

cdef struct rx_plan:
    rx_predicted fpdus[PREDICTED_MAX]
    uint32_t count
    uint32_t size                    # octets of all of them, gaps included
    uint32_t most                    # the plan is full at this size
    uint32_t trailer                 # of the last FPDU
    bint ends                        # the message, or the sink, ends with the last FPDU
    uint8_t gaps[PREDICTED_MAX][GAP_MAX]

# Between two FPDUs: whether more of a long tagged message is to come, so that rx_predict_between may plan.
cdef bint rx_within_message(const soft_qp *qp) noexcept nogil
# Plans between two FPDUs of a message. False: rdmap_rx has to read the next header first.
cdef bint rx_predict_between(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Plans the FPDUs behind the open FPDU. target already names the memory for the open FPDU's payload. The plan may be
# empty.
cdef void rx_predict(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Parses the `left` octets behind the payload of the open FPDU. False: the queue pair is in error.
cdef bint rx_take_predicted(soft_qp *qp, const rx_target *target, const rx_plan *plan, uint32_t left) noexcept nogil

# Whether, with CRC, the payload behind a header may be placed before its CRC is known.
cdef bint rx_may_place_early(soft_qp *qp, const ddp_header *h) noexcept nogil
# Adds placed octets to the CRC, from iov[index] on. Does nothing without CRC.
cdef void rx_add_crc(soft_qp *qp, const rx_target *target, int index, uint32_t length) noexcept nogil
