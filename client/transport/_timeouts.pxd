"""Time limits: seconds or None, as Python code has them, for system calls.

Deadlines are CLOCK_MONOTONIC nanoseconds, as now_ns() has them.
"""

from libc.stdint cimport int64_t

from rmemcached.sys.clock cimport now_ns

cdef enum:
    START_WAIT = 10000       # ms for starting a connection without a time limit; the providers' own limit, too


cdef inline int milliseconds(object seconds, int unlimited) except? -1:
    """The milliseconds, 1 at least; `unlimited` for None."""
    return unlimited if seconds is None else max(1, min(int(seconds * 1000), 2**31 - 1))


cdef inline int64_t start_deadline(object seconds) except? -1:
    """When a connection starting now, with this time limit, has failed."""
    return now_ns() + <int64_t>milliseconds(seconds, START_WAIT) * 1000000


cdef inline int poll_timeout(int64_t deadline, int64_t now) noexcept nogil:
    """The milliseconds from now to the deadline, rounded up; 0 after the deadline."""
    return <int>min((deadline - now + 999999) // 1000000, <int64_t>0x7FFFFFFF) if now < deadline else 0
