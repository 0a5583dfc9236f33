"""The command layer: requests are formatted into a Stream, answers are read from the line that a Stream holds.

Nothing here waits or sends. The functions are called with the GIL and by the Stream's one thread.
"""

from rmemcached.client._modes cimport store_mode
from rmemcached.client._stream cimport Stream

# --- keys, values and numbers; MemcacheIllegalInputError when memcached does not take them ---

# A key as it is sent: encoded, behind the prefix. TypeError: neither str nor bytes.
cdef bytes encode_key(object key, bytes prefix, bint unicode_keys)
# The same for put_fetch and put_store: a str that has its bytes is left as it is.
cdef object sendable_key(object key, bytes prefix, bint unicode_keys)
# Where its text is.
cdef const char *text_of(object key, size_t *length) noexcept
cdef bytes bytes_of_key(object key)
# The same for bytes.
cdef bytes checked_key(bytes key)
# The same bytes, of an object of a subclass of bytes.
cdef bytes exact_bytes(object value)
# bytes, a contiguous memoryview or a Gathered, of what is sent for a value.
cdef object encode_value(object value, str encoding)
# An integer, also NumPy's; no bool.
cdef bytes integer_text(object value, str name)
# The same; None for 0.
cdef bytes number_text(object value, str name)
# The expire of a storage command; None for 0. Of up to 64 bits the classic commands keep the lower 32; ms refuses them.
# -2**63 is left to the server: versions differ.
cdef bytes expire_text(object expire)
# What is added or subtracted. MemcacheClientError: the server would not take it.
cdef bytes delta_text(object value, str name)
cdef bytes cas_text(object cas, str encoding)

# --- requests; quiet: without an answer, unless it is an error line ---

cdef int put_bytes(Stream s, bytes text) except -1
# What is answered behind the commands that are not: mn, or version.
cdef int put_mark(Stream s) except -1
# mg, without its end, so that a sink can follow.
cdef int put_fetch(Stream s, object key, bint with_flags, bint with_cas, bytes expire) except -1
# ms. flags, expire: None for 0; cas: None but for STORE_CAS. True: the server reads the value from memory and answers
# even if quiet. Until then, or until it is sent, the value has to stay where it is.
cdef bint put_store(Stream s, store_mode mode, object key, object data, bytes flags, bytes expire, bytes cas,
                    bint quiet) except -1
# ms: with the line up to the length of the value, and the flags behind that. Returns what put_store does.
cdef bint put_meta_store(Stream s, bytes line, bytes flags, object data) except -1
cdef int put_delete(Stream s, bytes key, bint quiet) except -1
# ma; mode: its flags, up to the one that the delta follows.
cdef int put_arithmetic(Stream s, bytes key, bytes mode, bytes delta, bint quiet) except -1
cdef int put_touch(Stream s, bytes key, bytes seconds, bint quiet) except -1

# --- answers ---

# The line, without its end.
cdef bytes answer(Stream s)
cdef bint is_error(bytes line)
# The line with which a dump is refused.
cdef bint is_refusal(bytes line)
# The exception for an error line.
cdef object error_of(bytes line, bytes name)
# The number that incr or decr has answered; None: it is none. One that got shorter may have blanks behind it.
cdef object number_of(bytes text)
# Adds a line of `stats` to found. False: it is none.
cdef bint read_statistic(bytes line, dict found) except -1
# Gives the statistics their types.
cdef int convert_statistics(dict found) except -1
