"""See _direct.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t
from libc.string cimport memcmp

from rmemcached.client._state cimport lock_state, shared_state, unlock_state
from rmemcached.direct cimport (
    DIRECT_ASK,
    DIRECT_FOUND,
    direct_answer,
    direct_copy,
    direct_find,
    direct_header,
    direct_hit,
    direct_is_alive,
    direct_map,
    direct_note,
    direct_report_begin,
    direct_unmap,
)
from rmemcached.sys.key_hash cimport hash_secrets

cdef enum:
    TRIES = 3                # of a value that is being changed
    LONG_COPY = 64 * 1024    # bytes, from which on other threads of Python run meanwhile


cdef class DirectMemory:

    def __dealloc__(self):
        if self.memory.base != NULL:
            direct_unmap(&self.memory)


cdef DirectMemory map_memory(int fd):
    cdef DirectMemory made = DirectMemory.__new__(DirectMemory)
    return made if direct_map(&made.memory, fd) == 0 else None


cdef class DirectReader:

    cdef bytes read(self, const char *text, size_t length, uint32_t *flags):
        cdef direct_memory *m = &self.memory.memory
        cdef direct_hit hit
        cdef direct_answer answer = DIRECT_ASK
        cdef bytes value = None
        cdef char *to
        cdef int _try
        for _try in range(TRIES):
            answer = direct_find(m, text, length, &hit)
            if answer == DIRECT_FOUND:
                value = PyBytes_FromStringAndSize(NULL, hit.length)
                to = PyBytes_AS_STRING(value)
                if hit.length < LONG_COPY:
                    answer = direct_copy(m, &hit, to)
                else:
                    with nogil:
                        answer = direct_copy(m, &hit, to)
            if answer == DIRECT_FOUND or answer == DIRECT_ASK:
                break
        if answer != DIRECT_FOUND:
            return None
        flags[0] = hit.flags
        self.note(&hit)
        return value

    cdef direct_answer find(self, const char *text, size_t length, direct_hit *hit) noexcept:
        cdef direct_answer answer = direct_find(&self.memory.memory, text, length, hit)
        return answer if self.is_alive() else DIRECT_ASK

    cdef void note(self, const direct_hit *hit) noexcept:
        lock_state(&shared_state)
        if direct_note(&self.report, &self.memory.memory, hit):
            self.told_later = True
        unlock_state(&shared_state)

    cdef bint is_alive(self) noexcept:
        return direct_is_alive(&self.memory.memory)


cdef bint is_same(DirectMemory one, DirectMemory other) noexcept:
    cdef const direct_header *first
    cdef const direct_header *second
    if one is None or other is None or one is other:
        return one is other
    # Each connection of its own queue pair has a mapping of its own. The secrets are random.
    first = one.memory.header
    second = other.memory.header
    return first.base == second.base and memcmp(&first.hash, &second.hash, sizeof(hash_secrets)) == 0


cdef DirectReader new_reader(DirectMemory memory):
    cdef DirectReader reader = DirectReader.__new__(DirectReader)
    reader.memory = memory
    direct_report_begin(&reader.report, &memory.memory)
    return reader
