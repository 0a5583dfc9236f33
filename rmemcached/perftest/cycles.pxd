"""The clock of the measured loops: the processor's counter, which costs a few nanoseconds."""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #include <time.h>
    static inline uint64_t rmc_nanoseconds(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
    }
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
    #define rmc_cycles() rmc_nanoseconds()
    #endif
    """
    uint64_t cycles "rmc_cycles"() noexcept nogil
    uint64_t nanoseconds "rmc_nanoseconds"() noexcept nogil
