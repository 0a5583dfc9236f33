"""Meta replies: their lines are read from a Stream, and parsed.

The parser does no I/O, allocates nothing and touches no Python object: any thread may call it. Reading needs the
thread that uses the Stream.
"""

from libc.stdint cimport uint32_t

from rmemcached.client.transport._stream cimport Stream

cdef enum reply_code:
    REPLY_OTHER              # an error line, or a classic reply
    REPLY_HD
    REPLY_EN
    REPLY_VA
    REPLY_NS
    REPLY_EX
    REPLY_NF
    REPLY_MN
    REPLY_NUMBER             # of a classic incr or decr

cdef struct reply_line:
    reply_code code
    size_t length            # VA: bytes of the value
    uint32_t flags           # f
    size_t cas_offset        # c: where its digits are in the line
    size_t cas_length
    bint in_memory           # @: the value is in the memory named in the request

# Parses a line of the classic protocol into the equivalent meta reply. Returns as parse_reply.
cdef int parse_classic(const char *line, size_t length, reply_line *out) noexcept nogil
# Parses a line without its \r\n. 1, or -EBADMSG: the line begins like a meta reply and is malformed.
cdef int parse_reply(const char *line, size_t length, reply_line *out) noexcept nogil

# Reads and parses the next line. Skips error lines of commands without a reply, up to the answer to the mark. Returns
# as the Stream's methods.
cdef int read_reply(Stream s, reply_line *reply) noexcept nogil
# Does the same with the present input, and never waits. -EAGAIN: there is no whole line.
cdef int next_reply(Stream s, reply_line *reply) noexcept nogil
