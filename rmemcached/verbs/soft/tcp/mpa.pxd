"""MPA's start-up (RFC 5044 section 7.1, RFC 6581): its frames, and the agreement of both ends by them.

mpa.pyx also defines the functions of public.pxd. The functions below are the initiator's, and need soft_qp.lock.
"""

# Reads the MPA Reply, when the socket is readable. 1: the stream is open; 0: the reply is not complete yet; -1: the
# peer refuses, or the stream is broken: the caller moves the queue pair to ERR.
cdef int mpa_read_reply(soft_qp *qp) noexcept nogil

# Allows FPDUs to be sent, after the reply or after the pause of soft_iw_options. The ready-to-receive frame, if agreed
# on, is the first FPDU. False: no memory.
cdef bint mpa_ready(soft_qp *qp) noexcept nogil
