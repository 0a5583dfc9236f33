"""The hash function of keys: HASH_ALGORITHM in settings.py is its name. The same value in every process."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    /* Folds the 128 bit product of two words into one: every input bit reaches most output bits. */
    static inline unsigned long long rmc_mum(unsigned long long a, unsigned long long b)
    {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    }
    """
    uint64_t mum "rmc_mum"(uint64_t a, uint64_t b) nogil

cdef inline uint64_t _load8(const char *p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return word

cdef inline uint64_t _load4(const char *p) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, p, 4)
    return word

cdef inline uint32_t store_hash(const char *key, size_t nkey) noexcept nogil:
    """Folds 64 x 64 bit products, one for each 16 bytes of the key."""
    cdef uint64_t h = mum(<uint64_t>nkey ^ <uint64_t>0x9e3779b97f4a7c15, <uint64_t>0xd1342543de82ef95)
    cdef uint64_t a, b
    cdef size_t left = nkey
    while left > 16:
        h = mum(_load8(key) ^ <uint64_t>0xa0b428db45c6d2f1 ^ h, _load8(key + 8) ^ <uint64_t>0xc8f2d6a94b1e7703)
        key += 16
        left -= 16
    # The last 1 to 16 bytes as two words, which overlap when there are fewer.
    if left >= 8:
        a = _load8(key)
        b = _load8(key + left - 8)
    elif left >= 4:
        a = _load4(key)
        b = _load4(key + left - 4)
    elif left > 0:
        a = <uint64_t><uint8_t>key[0] << 16 | <uint64_t><uint8_t>key[left >> 1] << 8 | <uint8_t>key[left - 1]
        b = 0
    else:
        a = b = 0
    h = mum(a ^ <uint64_t>0xe7037ed1a0b428db ^ h, b ^ <uint64_t>0x8ebc6af09c88c6e3)
    h = mum(h ^ <uint64_t>0x589965cc75374cc3, <uint64_t>0x9e3779b97f4a7c15)
    return <uint32_t>(h ^ h >> 32)
