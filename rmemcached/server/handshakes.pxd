"""A pool of threads for TLS handshakes.

A handshake's signature took a core 0.06 ms with a key of an elliptic curve, 1.5 ms with RSA of 2048 bits, and 11 ms
with RSA of 4096 bits (openssl speed, two busy cores of an EPYC), and OpenSSL does not stop in between. A worker would
hold up its connections for so long, whatever its budget, again and again while many clients come. So a worker lends
the connection to this pool for each step of the handshake. The pool's threads have a low priority: workers with
requests come before handshakes.
"""

from rmemcached.streams.tls cimport tls_session

cdef struct handshakes           # complete in handshakes.pyx

# A step of the handshake is done: the session's `result` says what follows. `owner` is as in handshakes_add.
ctypedef void (*handshake_done_fn)(void *owner) noexcept nogil

# NULL: out of memory. The main thread, as for the next two.
cdef handshakes *handshakes_create(unsigned int threads, handshake_done_fn done) noexcept nogil
# Starts the threads. 0 or an errno value.
cdef int handshakes_start(handshakes *h) noexcept nogil
# Ends the threads, and frees everything. Sessions still waiting are not given back.
cdef void handshakes_destroy(handshakes *h) noexcept nogil
# Lends the session for a step of its handshake. Any thread.
cdef void handshakes_add(handshakes *h, tls_session *x, void *owner) noexcept nogil
