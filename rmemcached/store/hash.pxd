"""The hash function of keys, named HASH_ALGORITHM in settings.py: XXH3 with a secret, then multiply-shift with a second
secret. The secrets are random and new in each process, so nobody can choose keys that share a bucket. A bucket is a
list, and lookups search the list under an item lock.

An attacker who knows the function, but not the secrets, gets this far:

- XXH3 maps the key to a word of 64 bits. Keys of up to 8 bytes have different words if they have the same length. For
  longer keys there is no proof, and XXH3 is not a cryptographic function. The best attack known to us is a pair of keys
  that differ by the complement of 16 bytes. With a random secret the pair has the same word with a probability of
  2^-27. With the library's secret and a seed, as in XXH3_64bits_withSeed and _withSecretandSeed for keys of up to 240
  bytes, the probability is 2^-10 (https://github.com/Cyan4973/xxHash/issues/1127). Therefore the whole secret is
  random, and there is no seed.
- Multiply-shift maps the word to the hash value: bits 64 to 95 of a * word, with a random odd a. For two different
  words the last j bits are the same with a probability of at most 2^(1 - j) (Dietzfelbinger and others: A reliable
  randomized algorithm for the closest-pair problem, 1997). The last bits choose the bucket and the item lock. The proof
  holds for any words from XXH3, if the keys were chosen without knowledge of a.

Neither function helps against an attacker who has learned of the secrets. No reply contains a hash value. But a dump of
the hash table (lru_crawler metadump hash) lists the keys in the order of their buckets, and the duration of a request
depends on the keys in its bucket. An attacker needs hundreds of keys in one bucket, each found in such a way, before
anybody else notices.
"""

# Common to all stores of the process. Constant while there is a store.
cdef hash_secrets store_secrets

cdef inline uint32_t store_hash(const char *key, size_t nkey) noexcept nogil:
    return key_hash(&store_secrets, key, nkey)
