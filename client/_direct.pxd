"""Reads of a server's memory that ask nobody (docs/direct-reads.md): the memory of one server, and a Client's use of
it.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_answer, direct_hit, direct_memory, direct_report

# One of several values that are read to memory together.
cdef struct direct_want:
    const char *text         # the key as it is sent, of so many bytes
    size_t text_length
    char *to
    size_t room
    direct_answer answer     # as far as it is read
    direct_hit hit
    Py_ssize_t size          # the result, as that of read_into


cdef class DirectMemory:
    """A server's memory, mapped here for reading. Any thread; nothing of it changes."""
    cdef direct_memory memory

    # Whether gets read it, and do not ask.
    cdef bint is_read(self) noexcept

# From the descriptors of index and arena, which stay the caller's. Raises OSError, with the reason alone, when this
# process cannot use them.
cdef DirectMemory map_memory(int index, int arena)


cdef class DirectReader:
    """One Client's reads. `read`, `read_into` and `read_all` may be called by several threads, all else with the
    GIL, or the lock of _state.pxd.
    """
    cdef DirectMemory memory
    cdef direct_report report
    cdef bint told_later     # it is time to tell the server

    # The value of a key as bytes, or None: only the server can say. text: of a key as it is sent.
    cdef bytes read(self, const char *text, size_t length, uint32_t *flags, uint64_t *cas)
    # The same, to memory: the value's length; -1: only the server can say. A value that is longer than the memory is
    # not copied. One that changes meanwhile may have left bytes there.
    cdef Py_ssize_t read_into(self, const char *text, size_t length, char *to, size_t room) noexcept
    # The same of several values. Long ones are copied while other threads of Python run. The caller notes the hits of
    # those whose answer is DIRECT_FOUND then: of more than a line names, some would be forgotten.
    cdef void read_all(self, direct_want *wants, size_t count) noexcept
    # Looks for a value. DIRECT_FOUND: the key had it at one moment of the call. It may be anything from then on.
    cdef direct_answer find(self, const char *text, size_t length, direct_hit *hit) noexcept
    # A hit that was read or found, for the server.
    cdef void note(self, const direct_hit *hit) noexcept
    # Whether the server lives, as far as the memory tells.
    cdef bint is_alive(self) noexcept

cdef DirectReader new_reader(DirectMemory memory)
# The line that tells the server of all hits so far, into DIRECT_LINE bytes. Its length; 0: there is nothing to tell.
cdef size_t put_report(DirectReader reader, char *to) noexcept
# A CAS value as the server says it.
cdef bytes cas_bytes(uint64_t cas)
# Whether both are mappings of one server's memory. Either may be None.
cdef bint is_same(DirectMemory one, DirectMemory other) noexcept
