"""Direct reads of a server's memory, without requests (docs/direct-reads.md): the memory of a server, and a Client's
use of this memory.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.direct cimport direct_answer, direct_hit, direct_memory, direct_report

# One of several values read to memory together, by DirectReader.read_all. The caller fills the first four fields.
cdef struct direct_want:
    const char *text         # the encoded key
    size_t text_length
    char *to                 # the place for the value, with `room` bytes
    size_t room
    direct_answer answer     # DIRECT_FOUND: the caller has to note the hit
    direct_hit hit
    Py_ssize_t size          # the result: the same as read_into returns


cdef class DirectMemory:
    """A server's memory, mapped here for reading. Any thread uses the object, whose fields never change."""
    cdef direct_memory memory

    # Whether gets read this memory, and send no request: for Client.direct and the log.
    cdef bint is_read(self) noexcept

# Maps the memory of a new connection's server (_attach.pyx). index, arena: the descriptors of the server's index and
# item memory, which stay the caller's. Raises OSError, whose text is the reason alone, if this process cannot use them.
cdef DirectMemory map_memory(int index, int arena)


cdef class DirectReader:
    """A Client's reads, and their report for the server, which counts hits. Several threads may call `read`,
    `read_into` and `read_all`; all else is called with the GIL, or the lock of _state.pxd.
    """
    cdef DirectMemory memory
    cdef direct_report report
    cdef bint told_later     # the client must send the report soon, even without a request

    # Returns the value of a key as bytes, and notes the hit. None: the client must ask the server. text: the encoded
    # key.
    cdef bytes read(self, const char *text, size_t length, uint32_t *flags, uint64_t *cas)
    # Reads a value to memory of `room` bytes, and notes the hit. Returns the value's length; a value longer than the
    # room is not copied. -1: the client must ask the server; a value that changed meanwhile may have left bytes there.
    cdef Py_ssize_t read_into(self, const char *text, size_t length, char *to, size_t room) noexcept
    # Reads several values. Long values are copied while other threads of Python run. Afterwards the caller notes the
    # hit of each want with DIRECT_FOUND, and sends the report whenever `told_later` is set: its room is limited.
    cdef void read_all(self, direct_want *wants, size_t count) noexcept
    # Looks for an item, and copies nothing. DIRECT_FOUND: at a moment of the call the key had the value at `hit`. The
    # memory may change from then on. DIRECT_ASK, and any other answer: the client must ask the server.
    cdef direct_answer find(self, const char *text, size_t length, direct_hit *hit) noexcept
    # Adds a hit of `find` or `read_all` to the report, and may set told_later.
    cdef void note(self, const direct_hit *hit) noexcept
    # Whether the server lives, as far as the memory tells. If not, the Client drops this reader, and asks the server.
    cdef bint is_alive(self) noexcept

# A reader with an empty report, for a Session or an AsyncConnection.
cdef DirectReader new_reader(DirectMemory memory)
# Writes the line about the noted hits into DIRECT_LINE bytes of a connection's output, and begins the report anew;
# counts without room wait for the next line. Returns the line's length; 0: there is nothing to report.
cdef size_t put_report(DirectReader reader, char *to) noexcept
# A CAS unique as decimal digits, as `gets` returns it.
cdef bytes cas_bytes(uint64_t cas)
# Whether both are mappings of the same server's memory: only this server may get a report about it. Either may be None.
cdef bint is_same(DirectMemory one, DirectMemory other) noexcept
