"""Atomic operations on integers, by the compiler's ``__atomic`` builtins.

The names tell the memory order. ``fetch_add``, ``fetch_sub``, ``exchange`` and ``compare_exchange`` acquire and
release; ``counter_add`` is relaxed. Counters with a single writing thread use ``relaxed_load``, ``relaxed_store`` and
``counter_add``; flags for publishing memory use ``load_acquire`` and ``store_release``. All are macros: they take a
pointer to any integer or pointer type of up to eight bytes. Cython takes their results for 64-bit integers; the
assignment narrows them.
"""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #define rmc_relaxed_load(p)      __atomic_load_n((p), __ATOMIC_RELAXED)
    #define rmc_relaxed_store(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    /* For counters with a single writer: no lock prefix, yet no torn read. */
    #define rmc_counter_add(p, v)    rmc_relaxed_store((p), rmc_relaxed_load(p) + (v))
    #define rmc_fetch_add(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
    #define rmc_fetch_sub(p, v)      __atomic_fetch_sub((p), (v), __ATOMIC_ACQ_REL)
    #define rmc_load_acquire(p)      __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define rmc_store_release(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define rmc_exchange(p, v)       __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
    /* True if *p was *e, and is v now. Otherwise *e gets the present value of *p. */
    #define rmc_compare_exchange(p, e, v) \
        __atomic_compare_exchange_n((p), (e), (v), 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)
    #define rmc_full_fence()         __atomic_thread_fence(__ATOMIC_SEQ_CST)
    /* Earlier loads come before later loads; earlier stores before later stores. */
    #define rmc_read_fence()         __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #define rmc_write_fence()        __atomic_thread_fence(__ATOMIC_RELEASE)
    #if defined(__x86_64__)
    #define rmc_cpu_relax() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define rmc_cpu_relax() __asm__ __volatile__("yield")
    #else
    #define rmc_cpu_relax() ((void)0)
    #endif
    """
    uint64_t relaxed_load "rmc_relaxed_load"(void *p) nogil
    void relaxed_store "rmc_relaxed_store"(void *p, uint64_t value) nogil
    void relaxed_store_pointer "rmc_relaxed_store"(void *p, const void *value) nogil
    void counter_add "rmc_counter_add"(void *p, uint64_t value) nogil
    uint64_t fetch_add "rmc_fetch_add"(void *p, uint64_t value) nogil
    uint64_t fetch_sub "rmc_fetch_sub"(void *p, uint64_t value) nogil
    uint64_t load_acquire "rmc_load_acquire"(void *p) nogil
    void store_release "rmc_store_release"(void *p, uint64_t value) nogil
    void store_release_pointer "rmc_store_release"(void *p, const void *value) nogil
    uint64_t exchange "rmc_exchange"(void *p, uint64_t value) nogil
    bint compare_exchange "rmc_compare_exchange"(uint64_t *p, uint64_t *expected, uint64_t value) nogil
    bint compare_exchange_pointer "rmc_compare_exchange"(void *p, void *expected, const void *value) nogil
    void full_fence "rmc_full_fence"() nogil
    void read_fence "rmc_read_fence"() nogil
    void write_fence "rmc_write_fence"() nogil
    void cpu_relax "rmc_cpu_relax"() nogil
    # Loads the cache line of an address early. The address need not be valid.
    void prefetch "__builtin_prefetch"(const void *p) nogil
