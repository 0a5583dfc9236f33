"""Authentication by SASL (-S), in side threads: a mechanism may wait for a file, a directory or another process.

A worker hands over a session (protocol/conn.pxd) and goes on with its other connections. A side thread asks libsasl2,
and delivers the session to the worker's queue. The connection may end meanwhile; then whoever has the session frees it.
memcached: sasl_defs.c, proto_bin.c; there the worker itself waits.
"""

from libc.stdint cimport uint64_t

from rmemcached.protocol.conn cimport sasl_hooks, sasl_session

# Gives the session to its worker, from a side thread.
ctypedef void (*sasl_deliver_fn)(sasl_session *session) noexcept nogil

cdef struct sasl_pool            # complete in sasl.pyx

# The main thread: loads libsasl2, and reads its configuration (folder: of memcached.conf, passwords: of
# MEMCACHED_SASL_PWDB; each may be None, but not both). verbose: the daemon's. Raises ServerError with the reason,
# MemoryError. A process has one pool at a time.
cdef sasl_pool *sasl_create(folder, passwords, const uint64_t *verbose, sasl_deliver_fn deliver) except NULL
# The table for conn_hooks. Constant until sasl_destroy.
cdef const sasl_hooks *sasl_get_hooks(const sasl_pool *pool) noexcept nogil
# Starts the first side thread; others start when they are needed. 0 or an errno value.
cdef int sasl_start(sasl_pool *pool) noexcept nogil
# When the workers have been joined: ends the side threads, except for a thread that a mechanism holds. Nothing is
# delivered afterwards; sessions that wait are their connections' again.
cdef void sasl_stop(sasl_pool *pool) noexcept nogil
# Frees the pool after the end of all connections. If a mechanism still holds a thread, the pool stays: the process is
# about to end.
cdef void sasl_destroy(sasl_pool *pool) noexcept nogil
