"""The hash function of keys, for the daemon and the client's direct reads (with the daemon's secrets).

XXH3 with a secret, then multiply-shift with another secret: store/hash.pxd says why.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define XXH_INLINE_ALL
    #include <xxhash.h>

    /* XXH3 is two functions here: compiled alone, the function for short keys saves no registers. */
    #define RMC_XXH3(name, least, most)                                                                         \\
        static __attribute__((noinline, flatten)) uint64_t name(const void *key, size_t n, const void *secret)  \\
        {                                                                                                       \\
            if (n < (least) || n > (most))                                                                      \\
                __builtin_unreachable();                                                                        \\
            return XXH3_64bits_withSecret(key, n, secret, XXH3_SECRET_DEFAULT_SIZE);                             \\
        }
    RMC_XXH3(rmc_xxh3_short, 0, 16)
    RMC_XXH3(rmc_xxh3_long, 17, SIZE_MAX)

    static inline uint64_t rmc_xxh3(const void *key, size_t n, const void *secret)
    {
        return n <= 16 ? rmc_xxh3_short(key, n, secret) : rmc_xxh3_long(key, n, secret);
    }

    /* Bits 64 to 95 of a * x, where a has 96 bits. */
    static inline uint32_t rmc_multiply_shift(uint64_t x, uint64_t low, uint32_t high)
    {
        return (uint32_t)((unsigned __int128)low * x >> 64) + high * (uint32_t)x;
    }
    """
    enum:
        XXH3_SECRET_DEFAULT_SIZE
    uint64_t xxh3 "rmc_xxh3"(const void *key, size_t n, const void *secret) nogil
    uint32_t multiply_shift "rmc_multiply_shift"(uint64_t x, uint64_t low, uint32_t high) nogil

cdef struct hash_secrets:       # random
    uint8_t xxh3[XXH3_SECRET_DEFAULT_SIZE]
    uint64_t low                # bits 0 to 63 of multiply-shift's factor; odd
    uint32_t high               # bits 64 to 95

cdef inline uint32_t key_hash(const hash_secrets *secrets, const char *key, size_t nkey) noexcept nogil:
    return multiply_shift(xxh3(key, nkey, secrets.xxh3), secrets.low, secrets.high)
