"""A client's reads of a store's memory, for tests."""

import os

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from rmemcached.direct cimport (
    DIRECT_ASK, DIRECT_FOUND, DIRECT_LINE, direct_answer, direct_copy, direct_find, direct_hit, direct_header,
    direct_is_alive, direct_is_usable, direct_line, direct_map, direct_memory, direct_note, direct_prefault,
    direct_report, direct_report_begin, direct_unmap,
)
from rmemcached.store._testing_reads cimport READ_ROOM, lines_follow, lines_run, read_lines
from rmemcached.store._testing_stress cimport direct_run
from rmemcached.sys.atomics cimport relaxed_store, store_release
from rmemcached.sys.linux cimport posix_memalign


cdef class DirectReader:
    """Reads a store's memory as a client does. The caller owns the descriptors."""

    cdef direct_memory memory
    cdef direct_report report
    cdef uint32_t stop
    cdef uint64_t told

    def __init__(self, descriptors):
        cdef int index_fd, arena_fd, error
        index_fd, arena_fd = descriptors
        error = direct_map(&self.memory, index_fd, arena_fd)
        if error:
            raise OSError(-error, os.strerror(-error))
        direct_report_begin(&self.report, self.memory.header)

    def __dealloc__(self):
        if self.memory.base != NULL:
            direct_unmap(&self.memory)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        """The memory, of the length stated in the header."""
        PyBuffer_FillInfo(buffer, self, <void *>self.memory.base, self.memory.length, True, flags)

    @property
    def alive(self):
        return direct_is_alive(&self.memory)

    def prefault(self):
        """Maps the memory ahead. Returns the number of mapped bytes."""
        cdef uint64_t at = 0
        cdef uint64_t mapped = 0
        while direct_prefault(&self.memory, &at, &mapped):
            pass
        return mapped

    def read(self, bytes key):
        """Returns (value, flags, whether to send a line); "ask", if only the daemon can tell; or "torn"."""
        cdef direct_hit hit
        cdef direct_answer answer = direct_find(&self.memory, key, len(key), &hit)
        cdef bytes value
        if answer == DIRECT_FOUND:
            value = PyBytes_FromStringAndSize(NULL, hit.length)
            answer = direct_copy(&self.memory, &hit, value)
        if answer == DIRECT_FOUND:
            return value, hit.flags, direct_note(&self.report, self.memory.header, &hit)
        return "ask" if answer == DIRECT_ASK else "torn"

    def get(self, bytes key):
        """The value. None: the reader has to ask the daemon, or found the item changing."""
        found = self.read(key)
        return found[0] if isinstance(found, tuple) else None

    def line(self):
        """Takes the line about the hits noted so far."""
        cdef char text[DIRECT_LINE]
        cdef size_t length = direct_line(&self.report, self.memory.header, text)
        return text[:length]

    def run(self, uint64_t seed, uint64_t keys, bint verify=True):
        """Reads keys of Store.stress until `end`. Returns [asked, found, torn]; raises AssertionError."""
        cdef uint64_t[3] counts = [0, 0, 0]
        cdef const char *error
        with nogil:
            error = direct_run(&self.memory, seed, keys, verify, &self.stop, counts)
        if error != NULL:
            raise AssertionError(error.decode())
        return counts

    def read_lines(self, bytes key):
        """Reads as `read` does, with a copy in an RDMA device's order: (value, flags), "ask", or "torn"."""
        cdef direct_hit hit
        cdef char *to = NULL
        cdef direct_answer answer
        cdef uint64_t seed = <uint64_t>len(key)
        if posix_memalign(<void **>&to, 64, READ_ROOM) != 0:
            raise MemoryError
        try:
            answer = read_lines(&self.memory, key, len(key), True, &seed, to, &hit)
            if answer == DIRECT_FOUND:
                return PyBytes_FromStringAndSize(hit.data, hit.length), hit.flags
            return "ask" if answer == DIRECT_ASK else "torn"
        finally:
            free(to)

    def run_lines(self, uint64_t seed, uint64_t keys, bint verify=True):
        """Reads as `run` does, with the copies of `read_lines`."""
        cdef uint64_t[3] counts = [0, 0, 0]
        cdef const char *error
        with nogil:
            error = lines_run(&self.memory, seed, keys, verify, &self.stop, counts)
        if error != NULL:
            raise AssertionError(error.decode())
        return counts

    def follow_lines(self, bytes key):
        """Reads a rising number until `end`: no value is less than the last `tell` before the read, or than an earlier
        value.
        """
        cdef uint64_t[3] counts = [0, 0, 0]
        cdef const char *c_key = key
        cdef size_t nkey = len(key)
        cdef const char *error
        with nogil:
            error = lines_follow(&self.memory, c_key, nkey, &self.told, &self.stop, counts)
        if error != NULL:
            raise AssertionError(error.decode())
        return counts

    def tell(self, uint64_t number):
        store_release(&self.told, number)

    def end(self):
        relaxed_store(&self.stop, 1)


def header_is_usable(bytes header):
    """Whether a client with READs would use memory with this header."""
    cdef direct_header copy
    if len(header) < <Py_ssize_t>sizeof(direct_header):
        raise ValueError("a header that is too short")
    memcpy(&copy, <const char *>header, sizeof(direct_header))
    return direct_is_usable(&copy)
