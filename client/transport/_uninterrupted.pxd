"""Steps without a signal handler in between: Python runs handlers between its own instructions, and not within C."""

cdef class Turn:
    cdef object lock         # with acquire(timeout=) and release()
    cdef object limit        # seconds, or None

# Takes over the descriptor of a socket object, which is closed afterwards. From a socket of gevent or eventlet the
# caller gets a duplicate. The caller closes the descriptor. Raises OSError.
cdef int take_descriptor(sock) except -1
