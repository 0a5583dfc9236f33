"""The clocks: CLOCK_MONOTONIC in nanoseconds, and the processor's own counter."""

from libc.stdint cimport int64_t, uint64_t

from rmemcached.sys.linux cimport CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, clock_gettime, timespec

cdef extern from *:
    """
    #include <time.h>
    #if defined(__x86_64__)
    #define rmc_cycles() __builtin_ia32_rdtsc()
    #elif defined(__aarch64__)
    static inline uint64_t rmc_cycles(void)
    {
        uint64_t now;
        __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(now));
        return now;
    }
    #else
    static inline uint64_t rmc_cycles(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
    }
    #endif
    """
    # A counter with a constant rate; a reading costs a few nanoseconds. The rate differs by machine, so the caller
    # compares two readings with now_ns().
    uint64_t cycles "rmc_cycles"() nogil

cdef inline int64_t now_ns() noexcept nogil:
    """CLOCK_MONOTONIC in nanoseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec

cdef inline int64_t coarse_ms() noexcept nogil:
    """CLOCK_MONOTONIC at the system's last tick, in ms. The value is up to 10 ms old, and costs a few nanoseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000

cdef inline int64_t now_seconds() noexcept nogil:
    """CLOCK_MONOTONIC in whole seconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec

cdef inline timespec ns_timespec(int64_t ns) noexcept nogil:
    """Nanoseconds as a timespec for system calls."""
    cdef timespec out
    out.tv_sec = ns // 1000000000
    out.tv_nsec = ns % 1000000000
    return out
