# Prediction: while a long tagged message comes in, one read of the stream takes many FPDUs.
#
# Behind the open FPDU, or when the stream was empty between two, the next ones of the same message, and of the READs
# behind it, are expected at known positions: the octets between two payloads go to a gap of their own, each payload
# straight to its target. What came is then parsed in order. What turns out not to be where it belongs is taken up again
# and goes through the receive buffer, as if it had been received there.
#
# Payload is thus written before its header is seen. So only memory is used whose content the peer decides anyway: all
# that is left of the sinks of READs under way, and regions registered with SOFT_ACCESS_SCRATCH.
#
# The same holds with CRC, where payload that goes there need not wait for its CRC: a READ is not complete, and a WRITE
# not followed by anything, before that is right. All else is placed once the CRC of its FPDU has been checked.
#
# All of it is called by rdmap_rx, with soft_qp.lock held.

cdef enum:
    PREDICTED_MAX = 32
    GAP_MAX = FPDU_TRAILER_MAX + TAGGED_HEADER

cdef struct rx_predicted:            # an FPDU that is expected
    uint64_t to
    uint32_t stag
    uint32_t payload
    uint32_t gap                     # octets of the trailer before it and of its header
    int iov                          # index of the gap in rx_target.iov

cdef struct rx_plan:
    rx_predicted fpdus[PREDICTED_MAX]
    uint32_t count
    uint32_t size                    # octets of all of them, gaps included
    uint32_t trailer                 # of the last one
    bint ends                        # with the last one the message, or the sink, ends
    uint8_t gaps[PREDICTED_MAX][GAP_MAX]

# Between two FPDUs: whether more of a long tagged message is to come, so that its position may be known.
cdef bint rx_within_message(const soft_qp *qp) noexcept nogil
# Plans for the middle of a message, with nothing of its next FPDU received. False: its header must come first.
cdef bint rx_predict_between(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Plans what is expected behind the open FPDU, whose target is set.
cdef void rx_predict(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Takes in `left` octets that came behind the payload of the open FPDU. False: the queue pair is in error.
cdef bint rx_take_predicted(soft_qp *qp, const rx_target *target, const rx_plan *plan, uint32_t left) noexcept nogil

# With CRC: whether the payload behind a header may be placed before the CRC is known.
cdef bint rx_may_place_early(soft_qp *qp, const ddp_header *h) noexcept nogil
# With CRC: adds octets that were placed, from iov[index] on.
cdef void rx_add_crc(soft_qp *qp, const rx_target *target, int index, uint32_t length) noexcept nogil
