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

# One for all stores of the process. Constant while there is a store.
cdef hash_secrets store_secrets

cdef inline uint32_t store_hash(const char *key, size_t nkey) noexcept nogil:
    return key_hash(&store_secrets, key, nkey)
