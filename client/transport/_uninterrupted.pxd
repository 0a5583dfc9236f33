"""Steps without a signal handler in between: Python runs handlers between its own instructions, and not within C."""

cdef class Turn:
    cdef object lock         # with acquire(timeout=) and release()
    cdef object limit        # seconds, or None

# Takes the descriptor of a socket.socket. The socket object does not own it any more. OSError.
cdef int take_descriptor(sock) except -1
