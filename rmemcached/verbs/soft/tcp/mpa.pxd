"""MPA's start-up (RFC 5044 section 7.1, RFC 6581): its frames, and the agreement of both ends by them.

mpa.pyx also defines the functions of public.pxd. The functions below are the initiator's, and need soft_qp.lock.
"""

# Reads the MPA Reply. 1: the stream is open; 0: the reply is not complete yet; -1: refused or broken.
cdef int mpa_read_reply(soft_qp *qp) noexcept nogil

# Allows FPDUs to be sent. The ready-to-receive frame, if agreed on, is the first FPDU. False: no memory.
cdef bint mpa_ready(soft_qp *qp) noexcept nogil
