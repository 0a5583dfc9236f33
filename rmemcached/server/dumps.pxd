"""Dumps of all items: the crawler thread writes them to a connection lent by its worker.

During a dump only the crawler thread uses the socket. Output not sent after the last item goes back with the
connection, so the crawler does not wait for a slow reader to take the END. memcached: crawler.c.
"""

from libc.stddef cimport size_t

from rmemcached.protocol.dump cimport dump_kind
from rmemcached.streams.stream cimport stream
from rmemcached.store.store cimport crawler_result_type, store

# The crawler thread is done with the socket. rest: malloc'd bytes still to be sent, now the owner's. ended: the
# connection is to be closed.
ctypedef void (*dump_release_fn)(void *owner, bint ended, char *rest, size_t length) noexcept nogil

cdef struct dumps            # complete in dumps.pyx

# Called at the daemon's start. NULL: no memory, or no descriptor (errno).
cdef dumps *dumps_create(store *s, dump_release_fn release) noexcept nogil
# Called before store_stop_threads: ends the dump under way and all later dumps, so no reader delays the end of the
# store's threads.
cdef void dumps_stop(dumps *d) noexcept nogil
# Frees d, after the end of the store's threads.
cdef void dumps_destroy(dumps *d) noexcept nogil
# Lends a connection's stream without waiting output. CRAWLER_OK: the crawler thread has the stream, and answers with
# OK, the lines of the items and END; `release` gives `owner` back. Any other result: the caller keeps the stream. Any
# thread. classes: as in lru_crawler_dump.
cdef crawler_result_type dumps_start(dumps *d, void *owner, stream *s, dump_kind kind, const char *classes,
                                     size_t length) noexcept nogil
