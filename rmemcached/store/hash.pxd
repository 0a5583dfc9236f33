"""The hash function of keys, whose name is HASH_ALGORITHM in settings.py: XXH3 with a secret, and multiply-shift with
another. The secrets are random and new in each process, so that nobody can choose keys that share a bucket, which is a
list that is searched under an item lock.

What somebody can do who knows the function, but not the secrets:

- XXH3 maps the key to a word of 64 bits. Keys of up to 8 bytes have different words if they have the same length. For
  longer ones there is no proof, and XXH3 is not a cryptographic function. The best attack known to us is a pair of keys
  that differ by the complement of 16 bytes. The pair has the same word with a probability of 2^-27, if the secret is
  random; with the library's secret and a seed it is 2^-10, and that is what XXH3_64bits_withSeed and _withSecretandSeed
  do for keys of up to 240 bytes (https://github.com/Cyan4973/xxHash/issues/1127). Therefore the whole secret is random,
  and there is no seed.
- Multiply-shift maps the word to the hash value: bits 64 to 95 of a * word, with a random odd a. For two different
  words the last j bits are the same with a probability of at most 2^(1 - j) (Dietzfelbinger and others: A reliable
  randomized algorithm for the closest-pair problem, 1997). The last bits choose the bucket and the item lock. This is a
  proof, whatever XXH3's words look like, for keys that were chosen without knowledge of a.

Neither helps against somebody who has learned of the secrets. No reply has a hash value in it, but a dump of the hash
table (lru_crawler metadump hash) lists the keys in the order of their buckets, and how long a request takes depends on
the keys in its bucket. Hundreds of keys in one bucket are needed for an effect that others notice, each of them found
in such a way.
"""

cdef extern from *:
    """
    #define XXH_INLINE_ALL
    #include <xxhash.h>

    /* Two functions: compiled alone, the path of short keys saves no registers. */
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
    uint64_t low                # of a; odd
    uint32_t high

# One for all stores of the process. Constant while there is a store.
cdef hash_secrets store_secrets

cdef inline uint32_t store_hash(const char *key, size_t nkey) noexcept nogil:
    return multiply_shift(xxh3(key, nkey, store_secrets.xxh3), store_secrets.low, store_secrets.high)
