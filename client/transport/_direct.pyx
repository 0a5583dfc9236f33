"""See _direct.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EPROTO
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, strerror

from rmemcached.client.transport._results cimport new_result
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.direct cimport (
    DIRECT_ASK,
    DIRECT_FOUND,
    DIRECT_TORN,
    direct_answer,
    direct_copy,
    direct_find,
    direct_header,
    direct_hit,
    direct_is_alive,
    direct_is_read,
    direct_line,
    direct_map,
    direct_note,
    direct_report_begin,
    direct_unmap,
)
from rmemcached.sys.key_hash cimport hash_secrets
from rmemcached.sys.linux cimport snprintf

cdef enum:
    TRIES = 3                # for a value under change
    LONG_COPY = 64 * 1024    # bytes; other threads of Python run during longer copies
    CAS_MOST = 24            # bytes of a number and a zero


cdef class DirectMemory:

    def __dealloc__(self):
        if self.memory.base != NULL:
            direct_unmap(&self.memory)

    cdef bint is_read(self) noexcept:
        return direct_is_read(&self.memory)


cdef DirectMemory map_memory(int index, int arena):
    cdef DirectMemory made = DirectMemory.__new__(DirectMemory)
    cdef int r = direct_map(&made.memory, index, arena)
    if r == -EPROTO:
        raise OSError(EPROTO, "it is not laid out as this client knows it")
    if r < 0:
        raise OSError(-r, strerror(-r).decode())
    return made


cdef direct_answer copy(const direct_memory *m, const direct_hit *hit, char *to) noexcept:
    cdef direct_answer answer
    if hit.length < LONG_COPY:
        return direct_copy(m, hit, to)
    with nogil:
        answer = direct_copy(m, hit, to)
    return answer


cdef void copy_all(const direct_memory *m, direct_want *wants, size_t count) noexcept nogil:
    cdef size_t i
    for i in range(count):
        if wants[i].answer == DIRECT_FOUND:
            wants[i].answer = direct_copy(m, &wants[i].hit, wants[i].to)


cdef class DirectReader:

    cdef bytes read(self, const char *text, size_t length, uint32_t *flags, uint64_t *cas):
        cdef direct_memory *m = &self.memory.memory
        cdef direct_hit hit
        cdef direct_answer answer = DIRECT_TORN
        cdef bytes value = None
        cdef int _try
        for _try in range(TRIES):
            answer = direct_find(m, text, length, &hit)
            if answer == DIRECT_FOUND:
                value = new_result(hit.length)
                answer = copy(m, &hit, PyBytes_AS_STRING(value))
            if answer != DIRECT_TORN:
                break
        if answer != DIRECT_FOUND:
            return None
        flags[0] = hit.flags
        cas[0] = hit.cas
        self.note(&hit)
        return value

    cdef Py_ssize_t read_into(self, const char *text, size_t length, char *to, size_t room) noexcept:
        cdef direct_memory *m = &self.memory.memory
        cdef direct_hit hit
        cdef direct_answer answer = DIRECT_TORN
        cdef int _try
        for _try in range(TRIES):
            answer = direct_find(m, text, length, &hit)
            if answer == DIRECT_FOUND and hit.length > room:
                answer = DIRECT_FOUND if self.is_alive() else DIRECT_ASK
            elif answer == DIRECT_FOUND:
                answer = copy(m, &hit, to)
            if answer != DIRECT_TORN:
                break
        if answer != DIRECT_FOUND:
            return -1
        self.note(&hit)
        return hit.length

    cdef void read_all(self, direct_want *wants, size_t count) noexcept:
        cdef direct_memory *m = &self.memory.memory
        cdef direct_want *w
        cdef size_t nbytes = 0
        cdef size_t i
        for i in range(count):
            w = &wants[i]
            w.answer = direct_find(m, w.text, w.text_length, &w.hit)
            if w.answer == DIRECT_FOUND and w.hit.length > w.room:
                # read_into handles this value below, like a value that changed meanwhile.
                w.answer = DIRECT_TORN
            elif w.answer == DIRECT_FOUND:
                nbytes += w.hit.length
        if nbytes < LONG_COPY:
            copy_all(m, wants, count)
        else:
            with nogil:
                copy_all(m, wants, count)
        for i in range(count):
            w = &wants[i]
            w.size = -1
            if w.answer == DIRECT_FOUND:
                w.size = w.hit.length
            elif w.answer == DIRECT_TORN:
                w.size = self.read_into(w.text, w.text_length, w.to, w.room)

    cdef direct_answer find(self, const char *text, size_t length, direct_hit *hit) noexcept:
        cdef direct_answer answer = direct_find(&self.memory.memory, text, length, hit)
        return answer if self.is_alive() else DIRECT_ASK

    cdef void note(self, const direct_hit *hit) noexcept:
        lock_state(&shared_state)
        if direct_note(&self.report, self.memory.memory.header, hit):
            self.told_later = True
        unlock_state(&shared_state)

    cdef bint is_alive(self) noexcept:
        return direct_is_alive(&self.memory.memory)


cdef size_t put_report(DirectReader reader, char *to) noexcept:
    cdef size_t length
    lock_state(&shared_state)
    reader.told_later = False
    length = direct_line(&reader.report, reader.memory.memory.header, to)
    unlock_state(&shared_state)
    return length


cdef bytes cas_bytes(uint64_t cas):
    cdef char text[CAS_MOST]
    return text[:snprintf(text, CAS_MOST, "%llu", <unsigned long long>cas)]


cdef bint is_same(DirectMemory one, DirectMemory other) noexcept:
    cdef const direct_header *first
    cdef const direct_header *second
    if one is None or other is None or one is other:
        return one is other
    # Each queue pair has a mapping of its own, so the headers are compared. The secrets are random.
    first = one.memory.header
    second = other.memory.header
    return first.base == second.base and memcmp(&first.hash, &second.hash, sizeof(hash_secrets)) == 0


cdef DirectReader new_reader(DirectMemory memory):
    cdef DirectReader reader = DirectReader.__new__(DirectReader)
    reader.memory = memory
    direct_report_begin(&reader.report, memory.memory.header)
    return reader
