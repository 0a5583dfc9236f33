"""The command layer: requests are formatted into a Stream, answers are read from the Stream's line.

Nothing here waits or sends. The functions are called with the GIL, in the Stream's thread.
"""

from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._modes cimport store_mode

cdef enum:
    KEY_MAX = 250            # bytes

# --- keys, values and numbers; MemcacheIllegalInputError for input that memcached does not take ---

# A key in its form for the server: encoded, behind the prefix. TypeError: neither str nor bytes.
cdef bytes encode_key(object key, bytes prefix, bint unicode_keys)
# The key in its form for put_fetch and put_store: an ASCII str is returned unchanged, if there is no prefix.
cdef object sendable_key(object key, bytes prefix, bint unicode_keys)
# Returns the text of a key from sendable_key. The text lies in the key object: the caller keeps the object meanwhile.
cdef const char *text_of(object key, size_t *length) noexcept
# The same text as a bytes object.
cdef bytes bytes_of_key(object key)
# Returns the encoded key, if memcached takes the key.
cdef bytes checked_key(bytes key)
# A copy as bytes, for an object of a subclass of bytes.
cdef bytes exact_bytes(object value)
# The bytes to send for a value: bytes, a contiguous memoryview or a Gathered.
cdef object encode_value(object value, str encoding)
# The digits of an integer, also of NumPy's. A bool is refused. name: of the argument, for the error.
cdef bytes integer_text(object value, str name)
# The same digits, but None for 0.
cdef bytes number_text(object value, str name)
# The expire of a storage command; None for 0. Classic commands keep the lower 32 bits of a number of up to 64 bits, but
# ms refuses such a number: so the client sends the lower 32 bits. -2**63 is sent as it is, because servers differ.
cdef bytes expire_text(object expire)
# The digits of a number to add or subtract. Raises MemcacheClientError if the server would not take the number.
cdef bytes delta_text(object value, str name)
# The digits of a CAS unique, given as an integer, str or bytes.
cdef bytes cas_text(object cas, str encoding)

# --- requests; quiet: without an answer, except for an error line ---

cdef int put_bytes(Stream s, bytes text) except -1
# A command whose answer marks the end of commands without answers: mn, or version.
cdef int put_mark(Stream s) except -1
# mg, without the line's end: put_sink or put_target may follow.
cdef int put_fetch(Stream s, object key, bint with_flags, bint with_cas, bytes expire) except -1
# Called after put_fetch, for a remote stream: names the stream's memory for the value (name_sink of _lane_memory.pxd).
# Puts nothing if the value is to come in the stream.
cdef int put_sink(Stream s, bint lends) except -1
# Called in place of put_sink: names the caller's memory for the value (name_target of _lane_memory.pxd).
cdef int put_target(Stream s, char *to, size_t size) except -1
# ms. flags, expire: None for 0; cas: None but for STORE_CAS. True: the server reads the value from memory and answers
# even if quiet. The value must stay in place until the answer; after False, until it is sent.
cdef bint put_store(Stream s, store_mode mode, object key, object data, bytes flags, bytes expire, bytes cas,
                    bint quiet) except -1
# ms. line: its text up to the value's length. flags: the text behind the length. Returns the same as put_store.
cdef bint put_meta_store(Stream s, bytes line, bytes flags, object data) except -1
cdef int put_delete(Stream s, bytes key, bint quiet) except -1
# ma; mode: its flags, up to the delta's flag.
cdef int put_arithmetic(Stream s, bytes key, bytes mode, bytes delta, bint quiet) except -1
cdef int put_touch(Stream s, bytes key, bytes seconds, bint quiet) except -1

# --- answers ---

# The line just read from the Stream, without its end.
cdef bytes answer(Stream s)
cdef bint is_error(bytes line)
# Whether the line refuses a dump.
cdef bint is_refusal(bytes line)
# Returns the exception for an error line. name: of the command.
cdef object error_of(bytes line, bytes name)
# The number in the answer to incr or decr; None: not a number. A number that got shorter may have blanks behind it.
cdef object number_of(bytes text)
# Adds a line of `stats` to found. False: the line is no statistic.
cdef bint read_statistic(bytes line, dict found) except -1
# Gives the statistics their types.
cdef int convert_statistics(dict found) except -1
