# MPA's start-up frames (RFC 5044 section 7.1, RFC 6581): coding, and what both sides agree on by them. soft_iw_connect,
# soft_iw_accept, soft_iw_reject, soft_iw_parse_request and soft_iw_query are here too.

# Initiator: reads the MPA Reply. 1: the stream is open; 0: not yet; -1: refused or broken. qp.lock is held.
cdef int mpa_read_reply(soft_qp *qp) noexcept nogil

# Initiator: from now on FPDUs may be sent, the first one being that which was agreed on. False: no memory. qp.lock is
# held.
cdef bint mpa_ready(soft_qp *qp) noexcept nogil
