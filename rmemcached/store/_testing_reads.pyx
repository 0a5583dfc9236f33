"""See _testing_reads.pxd."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, strtoull
from libc.string cimport memcmp, memcpy

from rmemcached.direct cimport (
    DIRECT_ASK, DIRECT_FOREIGN, DIRECT_FOUND, DIRECT_READ, DIRECT_SLOTS, DIRECT_TORN, direct_answer,
    direct_bucket, direct_bucket_of, direct_class, direct_clock, direct_header, direct_hit, direct_item, direct_look,
    direct_memory, direct_mix, direct_place, direct_slot, direct_verify,
)
from rmemcached.store._testing_stress cimport stress_bytes_hold
from rmemcached.sys.atomics cimport load_acquire, read_fence, relaxed_load
from rmemcached.sys.key_hash cimport key_hash
from rmemcached.sys.linux cimport posix_memalign, sched_yield, snprintf

cdef enum:
    LINE = 64
    LINES = 65536 // LINE + 1    # cache lines touched by a copy, at most
    YIELD_ONE_OF = 64            # lines for each yield of the reader, on average


cdef void copy_lines(char *to, const char *place, size_t size, uint64_t *seed) noexcept nogil:
    """Copies the cache lines in random order."""
    cdef uint32_t order[LINES]
    cdef size_t before = <size_t>place % LINE
    cdef uint32_t lines = <uint32_t>((before + size + LINE - 1) // LINE)
    cdef uint32_t i, other
    cdef size_t at, end
    for i in range(lines):
        seed[0] = direct_mix(seed[0] + 0x9e3779b97f4a7c15ULL)
        other = <uint32_t>(seed[0] % (i + 1))
        order[i] = order[other]
        order[other] = i
    for i in range(lines):
        at = max(order[i] * <size_t>LINE, before) - before
        end = min((order[i] + 1) * <size_t>LINE - before, size)
        while at < end:
            (<uint64_t *>(to + at))[0] = relaxed_load(<uint64_t *>(place + at))
            at += 8
        read_fence()
        seed[0] = direct_mix(seed[0] + 0x9e3779b97f4a7c15ULL)
        if seed[0] % YIELD_ONE_OF == 0:
            sched_yield()


cdef direct_answer trust(const char *copy, const char *key, size_t nkey, direct_hit *hit) noexcept nogil:
    """The result of a client that checks only the key."""
    cdef direct_item *it = <direct_item *>copy
    cdef size_t before = sizeof(direct_item) + (8 if it.it_flags & 2 else 0)
    if it.nkey != nkey or memcmp(copy + before, key, nkey) != 0 or <uint32_t>it.nbytes > DIRECT_READ - 512 \
            or it.nbytes < 2:
        return DIRECT_TORN
    hit.data = copy + before + nkey + 1 + (4 if it.it_flags & 256 else 0)
    hit.length = <size_t>it.nbytes - 2
    return DIRECT_FOUND


cdef direct_answer read_lines(direct_memory *m, const char *key, size_t nkey, bint verify, uint64_t *seed, char *to,
                              direct_hit *hit) noexcept nogil:
    cdef direct_header *h = <direct_header *>m.header
    cdef uint32_t hv = key_hash(&h.hash, key, nkey)
    cdef direct_bucket bucket
    cdef direct_clock clock
    cdef uint64_t slot, place
    cdef size_t size
    cdef direct_answer answer = DIRECT_FOREIGN
    cdef int i = -1
    clock.now = <uint32_t>relaxed_load(&h.current_time)
    clock.oldest_live = <uint32_t>relaxed_load(&h.oldest_live)
    clock.algorithm = <uint32_t>relaxed_load(&h.algorithm)
    copy_lines(<char *>&bucket, <const char *>&m.index[direct_bucket_of(hv, relaxed_load(&h.buckets))],
               sizeof(bucket), seed)
    while answer == DIRECT_FOREIGN:
        # An item of another key with the same tag may come before the key's own item.
        i = direct_look(&m.chunks, &bucket, hv, i + 1)
        if i == DIRECT_SLOTS:
            return DIRECT_ASK
        slot = direct_slot(&bucket, i)
        place = direct_place(&m.chunks, slot)
        size = min(<size_t>m.chunks.sizes[direct_class(&m.chunks, slot)], <size_t>DIRECT_READ)
        if place < m.chunks.arena or place > m.length - size:
            return DIRECT_ASK
        copy_lines(to, m.base + place, size, seed)
        if not verify:
            return trust(to, key, nkey, hit)
        answer = direct_verify(&h.hash, &clock, place, hv, to, size, key, nkey, hit)
    return answer


cdef const char *lines_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                           uint64_t *counts) noexcept nogil:
    cdef char *to
    cdef const char *error = NULL
    cdef direct_answer answer
    cdef direct_hit hit
    cdef uint64_t number
    cdef size_t nkey
    cdef char key[32]
    if posix_memalign(<void **>&to, LINE, READ_ROOM) != 0:
        return b"out of memory"
    while error == NULL and not relaxed_load(stop):
        seed = direct_mix(seed + 0x9e3779b97f4a7c15ULL)
        number = seed % keys
        nkey = snprintf(key, sizeof(key), b"key-%llu", <unsigned long long>number)
        answer = read_lines(m, key, nkey, verify, &seed, to, &hit)
        counts[<int>answer] += 1
        if answer == DIRECT_FOUND and not stress_bytes_hold(hit.data, hit.length, number):
            error = b"a value was read that nobody has stored for its key"
    free(to)
    return error


cdef const char *lines_follow(direct_memory *m, const char *key, size_t nkey, uint64_t *told, uint32_t *stop,
                              uint64_t *counts) noexcept nogil:
    cdef char *to
    cdef const char *error = NULL
    cdef direct_answer answer
    cdef direct_hit hit
    cdef uint64_t seed = 1
    cdef uint64_t least, value
    cdef uint64_t last = 0
    cdef char text[32]
    if posix_memalign(<void **>&to, LINE, READ_ROOM) != 0:
        return b"out of memory"
    while error == NULL and not relaxed_load(stop):
        least = max(last, load_acquire(told))
        answer = read_lines(m, key, nkey, True, &seed, to, &hit)
        counts[<int>answer] += 1
        if answer != DIRECT_FOUND:
            continue
        memcpy(text, hit.data, min(hit.length, sizeof(text) - 1))
        text[min(hit.length, sizeof(text) - 1)] = 0
        value = strtoull(text, NULL, 10)
        if value < least:
            error = b"a value was read that had been replaced before"
        last = value
    free(to)
    return error
