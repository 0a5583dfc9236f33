"""The logger thread: takes log entries out of the rings and writes their lines to the watching connections.

A worker lends a watcher's connection: from then on only the logger thread reads and writes the socket. In the end the
connection goes back to the worker, to be closed. memcached: logger.c.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.logger cimport logger
from rmemcached.protocol.conn cimport lend_result
from rmemcached.streams.stream cimport stream

cdef enum:
    WATCHER_LIMIT = 20

# The logger thread is done with the socket. ended is always True: the connection is to be closed. rest is NULL.
ctypedef void (*watcher_release_fn)(void *owner, bint ended, char *rest, size_t length) noexcept nogil

cdef struct watchers         # complete in watchers.pyx

cdef struct watcher_stats:   # since the start or the last reset
    uint64_t dropped         # entries dropped because the thread's ring was full
    uint64_t written
    uint64_t skipped         # lines skipped because the watcher's buffer was full
    uint64_t sent
    uint64_t count           # watchers now

# buffer_size: bytes of waiting output for each watcher. NULL: out of memory. The main thread.
cdef watchers *watchers_create(logger *log, size_t buffer_size, watcher_release_fn release) noexcept nogil
# Starts the thread. Returns 0 or an errno. The main thread, as for the next two.
cdef int watchers_start(watchers *ws) noexcept nogil
# Ends the thread after a last attempt to send waiting output. The sockets stay open: their workers close them.
cdef void watchers_stop(watchers *ws) noexcept nogil
# Frees everything, after watchers_stop and the end of all workers.
cdef void watchers_destroy(watchers *ws) noexcept nogil
# Lends a connection's stream. The logger thread answers OK and then sends lines for eflags (log_eflags). Any thread.
cdef lend_result watchers_add(watchers *ws, void *owner, stream *s, uint32_t eflags) noexcept nogil
# Reads the counts since the last reset, for `stats`. Any thread.
cdef void watchers_get_stats(watchers *ws, watcher_stats *out) noexcept nogil
# Begins the counts anew, for `stats reset`. Any thread.
cdef void watchers_reset_stats(watchers *ws) noexcept nogil
