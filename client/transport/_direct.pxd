"""Direct reads of a server's memory, without requests (docs/direct-reads.md): the memory of a server, and a Client's
use of this memory.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_answer, direct_hit, direct_memory, direct_report

# One of several values read to memory together.
cdef struct direct_want:
    const char *text         # the encoded key, of so many bytes
    size_t text_length
    char *to
    size_t room
    direct_answer answer     # of the last step
    direct_hit hit
    Py_ssize_t size          # the result, as of read_into


cdef class DirectMemory:
    """A server's memory, mapped here for reading. Any thread uses the object, whose fields never change."""
    cdef direct_memory memory

    # Whether gets read this memory without asking.
    cdef bint is_read(self) noexcept

# Maps the memory from the descriptors of index and arena, which stay the caller's. Raises OSError, whose text is the
# reason alone, when this process cannot use them.
cdef DirectMemory map_memory(int index, int arena)


cdef class DirectReader:
    """A Client's reads. Several threads may call `read`, `read_into` and `read_all`; all else is called with the GIL,
    or the lock of _state.pxd.
    """
    cdef DirectMemory memory
    cdef direct_report report
    cdef bint told_later     # a line with the report is due, even without a request

    # The value of a key as bytes, or None: only the server can tell. text: the encoded key.
    cdef bytes read(self, const char *text, size_t length, uint32_t *flags, uint64_t *cas)
    # Reads likewise, to memory: the value's length; -1: only the server can tell. A value longer than the memory is not
    # copied. A value that changes meanwhile may have left bytes there.
    cdef Py_ssize_t read_into(self, const char *text, size_t length, char *to, size_t room) noexcept
    # Reads several values. Long values are copied while other threads of Python run. The caller then notes the hits of
    # the wants with DIRECT_FOUND, and tells the server in between: a report holds no more hits than a line.
    cdef void read_all(self, direct_want *wants, size_t count) noexcept
    # Looks for a value. DIRECT_FOUND: at a moment of the call the key had this value. The memory may change from then
    # on.
    cdef direct_answer find(self, const char *text, size_t length, direct_hit *hit) noexcept
    # Counts a hit, by read or find, for the server.
    cdef void note(self, const direct_hit *hit) noexcept
    # Whether the server lives, as far as the memory tells.
    cdef bint is_alive(self) noexcept

cdef DirectReader new_reader(DirectMemory memory)
# The line with all hits so far for the server, into DIRECT_LINE bytes. Its length; 0: there is nothing to tell.
cdef size_t put_report(DirectReader reader, char *to) noexcept
# A CAS value in the server's form.
cdef bytes cas_bytes(uint64_t cas)
# Whether both are mappings of the same server's memory. Either may be None.
cdef bint is_same(DirectMemory one, DirectMemory other) noexcept
