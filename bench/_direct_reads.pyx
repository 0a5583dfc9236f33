"""Direct reads, repeated at C speed, for `rmemcached-bench direct` and the tests of direct reads."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.transport._direct cimport DirectReader
from rmemcached.client.api._reads cimport time_read
from rmemcached.client.api._session cimport Session
from rmemcached.direct cimport DIRECT_FOUND, direct_answer, direct_copy, direct_find, direct_hit, direct_memory
from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.linux cimport nanosleep, timespec

cdef enum:
    READ_MOST = 1 << 20      # bytes of the longest value for a direct read
    ASKED_MOST = 100         # failed reads beyond the successful, after which read_remote gives up


def read_direct(Session session not None, bytes key, seconds, pause=0.0, most=1000000):
    """Reads a key by direct reads, at C speed. Between two reads are `pause` seconds: a busy loop,
    or from 50 us on a sleep.

    Returns the time of each read in nanoseconds, a list of at most `most`; each time includes reading the clock. Raises
    ValueError when a request to the server is needed: there is no connection, or the server offers no direct reads.
    """
    cdef DirectReader reader = session.reader()
    cdef size_t length = len(key)
    cdef const char *text = key
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef int64_t gap = <int64_t>(pause * 1e9)
    cdef int64_t begin, end
    cdef size_t limit = most
    cdef size_t count = 0
    cdef direct_answer answer = DIRECT_FOUND
    cdef direct_hit hit
    cdef direct_memory *m
    cdef timespec sleeping = ns_timespec(gap)
    cdef char *to = <char *>malloc(READ_MOST)
    cdef int64_t *took = <int64_t *>malloc(limit * sizeof(int64_t))
    try:
        if to == NULL or took == NULL:
            raise MemoryError()
        if reader is None:
            raise ValueError("the server does not let this client read without asking")
        m = &reader.memory.memory
        with nogil:
            end = now_ns()
            while answer == DIRECT_FOUND and count < limit and end < until:
                begin = now_ns()
                answer = direct_find(m, text, length, &hit)
                if answer == DIRECT_FOUND and hit.length <= READ_MOST:
                    answer = direct_copy(m, &hit, to)
                end = now_ns()
                took[count] = end - begin
                count += 1
                if gap >= 50000:
                    nanosleep(&sleeping, NULL)
                while gap and now_ns() - end < gap:
                    pass
        if answer != DIRECT_FOUND:
            raise ValueError("the key is not to be had without asking")
        return [took[i] for i in range(count)]
    finally:
        free(to)
        free(took)


def read_remote(Session session not None, bytes key, seconds, anew=False, most=1000000):
    """Reads a key by READs over a device: the time of each read in nanoseconds, a list of at most `most`.

    anew: each read first looks for the item's place, as a first read does. Raises ValueError as read_direct does. The
    list leaves out the few reads after which a client would ask the server.
    """
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef Py_ssize_t limit = most
    cdef Py_ssize_t asked = 0
    cdef list took = []
    cdef bint again = anew
    cdef Connection c
    cdef int64_t ns
    while len(took) < limit and now_ns() < until:
        c = session.enter(False, b"get")
        try:
            ns = time_read(c, key, again)
        finally:
            session.leave(c, None)
        if ns:
            took.append(ns)
            continue
        asked += 1
        if asked > len(took) + ASKED_MOST:
            raise ValueError("the key is not to be had without asking")
    return took


def count_direct(Session session not None, keys, seconds):
    """Reads keys (bytes) by direct reads, at C speed, for so many seconds. Returns (reads, reads after which a client
    would ask the server). Raises ValueError as read_direct does."""
    cdef DirectReader reader = session.reader()
    cdef list names = list(keys)
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef size_t count = len(names)
    cdef size_t read = 0
    cdef size_t asked = 0
    cdef size_t place = 0
    cdef const char **texts = <const char **>malloc(count * sizeof(char *))
    cdef size_t *lengths = <size_t *>malloc(count * sizeof(size_t))
    cdef char *to = <char *>malloc(READ_MOST)
    cdef direct_hit hit
    cdef direct_memory *m
    try:
        if texts == NULL or lengths == NULL or to == NULL:
            raise MemoryError()
        if reader is None:
            raise ValueError("the server does not let this client read without asking")
        m = &reader.memory.memory
        for name in names:
            texts[place] = name
            lengths[place] = len(name)
            place += 1
        with nogil:
            while read % 1024 or now_ns() < until:
                place = read % count
                read += 1
                if direct_find(m, texts[place], lengths[place], &hit) != DIRECT_FOUND or hit.length > READ_MOST \
                        or direct_copy(m, &hit, to) != DIRECT_FOUND:
                    asked += 1
        return read, asked
    finally:
        free(texts)
        free(lengths)
        free(to)
