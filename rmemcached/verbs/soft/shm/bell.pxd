"""soft_shm: bells. A bell is an eventfd of one end, passed to its peer. The peer rings the bell to wake the end up.

An end watches its bell in the epoll sets of its domains, edge-triggered, and never reads the bell: each ring is an
event, and costs one system call on either side. The peer has the same open file, and may fill its counter and make
ringing block. So for an untrusted peer an end rings by a record through the socket instead: sending never blocks.
"""

# Whether the peer's process could harm this process anyway: its user is the same, or root.
cdef bint bell_is_trusted(const soft_qp *qp) noexcept nogil

# The next four need soft_qp.lock.

# Makes and watches this end's bell, before this end's HELLO. Returns the descriptor, or -1 with errno: then the caller
# calls bell_close.
cdef int bell_make(soft_qp *qp) noexcept nogil
# Takes the peer's bell, from its HELLO, or closes the bell if the peer is not trusted.
cdef void bell_take(soft_qp *qp, int fd) noexcept nogil
# Wakes the peer up, by its bell or by a record, for shm_wake_peer. Counts the wake-up.
cdef void bell_ring(soft_qp *qp) noexcept nogil
# Closes both bells, at the end of the stream.
cdef void bell_close(soft_qp *qp) noexcept nogil

# Entries of the fabric's table; fabric.pxd says what they do. shm_wakeups returns the number of bell_ring's calls.
cdef void shm_rung(soft_qp *qp, soft_domain *domain) noexcept nogil
cdef uint32_t shm_wakeups(const soft_qp *qp) noexcept nogil
