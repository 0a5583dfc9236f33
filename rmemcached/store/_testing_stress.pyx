"""The stress test's threads. The kind of a key is its number modulo 4:

- 0, 1: a value of any length; all bytes follow from the key and the version in the first word;
- 2: blocks of 16 bytes, each able to verify itself after appends and prepends;
- 3: a decimal number.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, strtoull
from libc.string cimport memcmp, memcpy, memset
from posix.uio cimport iovec

from rmemcached.direct cimport DIRECT_FOUND, direct_answer, direct_copy, direct_find, direct_hit, direct_memory
from rmemcached.store cimport store as st
from rmemcached.store.store cimport item, rel_time_t, store
from rmemcached.sys.atomics cimport fetch_add, relaxed_load, relaxed_store
from rmemcached.sys.linux cimport pthread_create, pthread_join, pthread_t, sched_yield, snprintf

cdef enum:
    HELD = 8            # references kept by a thread over several commands
    MAX_RUNS = 16       # runs of an item's data, looked at together
    NUMBER = 3          # the kind of key with a number as its value
    BLOCKS = 2
    READ_MOST = 1 << 20

cdef struct held_item:
    item *it
    uint64_t key
    size_t length       # of a number: its text when the reference was kept
    char text[32]

cdef struct win_record:     # stale items already won, by their CAS value; shared by all threads
    uint64_t first
    uint64_t count
    uint8_t *winners        # atomic

cdef struct stress_thread:
    store *s
    win_record *wins
    uint64_t ops
    uint64_t random
    uint64_t keys
    size_t max_value
    bint clock
    bint even
    unsigned int stop   # atomic: the thread moving pages must end
    held_item held[HELD]
    stress_result result
    const char *error


cdef inline uint64_t _mix(uint64_t x) noexcept nogil:
    x = (x ^ x >> 30) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ x >> 27) * <uint64_t>0x94d049bb133111eb
    return x ^ x >> 31


cdef inline uint64_t _random(stress_thread *t) noexcept nogil:
    t.random += <uint64_t>0x9e3779b97f4a7c15
    return _mix(t.random)


cdef inline uint64_t _word(uint64_t key, uint64_t kind, uint64_t seed, size_t index) noexcept nogil:
    """The word at this index of a value of the key. seed: the value's version, or for blocks the block's first word."""
    if kind == BLOCKS:
        return seed if index % 2 == 0 else _mix(seed ^ key)
    return seed if index == 0 else _mix(seed + _mix(key) + index)


cdef bint _fill(item *it, uint64_t key, uint64_t seed) noexcept nogil:
    """Writes a value of the key into the item. seed: the value's version."""
    cdef iovec runs[MAX_RUNS]
    cdef int i, n
    cdef size_t pos = 0
    cdef size_t j
    cdef size_t length = it.nbytes - 2
    cdef uint64_t word = 0
    cdef uint64_t kind = key % 4
    while pos < length:
        n = st.item_iov(it, pos, length - pos, runs, MAX_RUNS)
        if n == 0:
            return False
        for i in range(n):
            for j in range(runs[i].iov_len):
                if pos % 8 == 0:
                    if kind == BLOCKS and pos % 16 == 0:
                        seed = _mix(seed + 1)
                    word = _word(key, kind, seed, pos // 8)
                (<unsigned char *>runs[i].iov_base)[j] = <unsigned char>(word >> 8 * (pos % 8))
                pos += 1
    return pos == length


cdef struct reader:         # the state of verifying a value
    uint64_t key
    uint64_t kind
    size_t length
    size_t pos
    uint64_t seed
    uint64_t word


cdef inline bint _verify_byte(reader *r, unsigned char c) noexcept nogil:
    """Whether c can be the next byte of a value of the key, or of its line end. Moves on by a byte."""
    cdef size_t pos = r.pos
    r.pos += 1
    if pos >= r.length:
        return c == (c'\r' if pos == r.length else c'\n')
    if r.kind == NUMBER:
        return c'0' <= c <= c'9' or c == c' '
    if pos < 8 or (r.kind == BLOCKS and pos % 16 < 8):
        if pos % 8 == 0:
            r.seed = 0
        r.seed |= <uint64_t>c << 8 * (pos % 8)
        return True
    if pos % 8 == 0:
        r.word = _word(r.key, r.kind, r.seed, pos // 8)
    return c == <unsigned char>(r.word >> 8 * (pos % 8))


cdef bint _verify(item *it, uint64_t key) noexcept nogil:
    """Whether the data bytes are a whole value, written by some thread for the key."""
    cdef iovec runs[MAX_RUNS]
    cdef int i, n
    cdef size_t j
    cdef reader r
    memset(&r, 0, sizeof(r))
    r.key = key
    r.kind = key % 4
    r.length = it.nbytes - 2
    if r.kind == BLOCKS and r.length % 16 != 0:
        return False
    while r.pos < <size_t>it.nbytes:
        n = st.item_iov(it, r.pos, it.nbytes - r.pos, runs, MAX_RUNS)
        if n == 0:
            return False
        for i in range(n):
            for j in range(runs[i].iov_len):
                if not _verify_byte(&r, (<unsigned char *>runs[i].iov_base)[j]):
                    return False
    return r.pos == <size_t>it.nbytes


cdef bint _key_matches(item *it, const char *key, size_t nkey) noexcept nogil:
    return it.nkey == nkey and memcmp(st.ITEM_key(it), key, nkey) == 0


cdef void _release_held(stress_thread *t, held_item *h) noexcept nogil:
    if h.it == NULL:
        return
    if not _verify(h.it, h.key):
        t.error = b"an item changed while it was referenced"
    if h.key % 4 == NUMBER and (<size_t>h.it.nbytes != h.length or memcmp(st.ITEM_data(h.it), h.text, h.length) != 0):
        t.error = b"a number changed while it was referenced"
    st.item_remove(t.s, h.it)
    h.it = NULL


cdef void _hold(stress_thread *t, item *it, uint64_t key) noexcept nogil:
    """Keeps the reference in place of an older reference."""
    cdef held_item *h = &t.held[_random(t) % HELD]
    _release_held(t, h)
    h.it = it
    h.key = key
    if key % 4 == NUMBER:
        h.length = it.nbytes
        memcpy(h.text, st.ITEM_data(it), h.length)


cdef size_t _value_length(stress_thread *t, uint64_t kind) noexcept nogil:
    cdef uint64_t r = _random(t)
    cdef size_t length
    if kind == NUMBER:
        return 1 + r % 20
    if t.even:
        # There are as many lengths of 64 to 128 bytes as of 128 to 256.
        length = <size_t>64 << (r >> 8) % 32
        while length > t.max_value:
            r = _mix(r)
            length = <size_t>64 << (r >> 8) % 32
        length += (r >> 16) % length
    elif r % 100 < 85:
        length = 8 + (r >> 8) % 600
    elif r % 100 < 97:
        length = 8 + (r >> 8) % 20000
    else:
        length = 8 + (r >> 8) % t.max_value
    if length > t.max_value:
        length = t.max_value
    return length & ~<size_t>15 if kind == BLOCKS else length


cdef void _one_store(stress_thread *t, const char *key, size_t nkey, uint64_t number, st.store_op op,
                     uint64_t cas) noexcept nogil:
    cdef uint64_t kind = number % 4
    cdef size_t length = _value_length(t, kind)
    cdef rel_time_t exptime = 0
    cdef char text[32]
    cdef item *it
    cdef st.store_item_type result
    if _random(t) % 8 == 0:
        exptime = st.realtime(t.s, 1 + <int64_t>(_random(t) % 3))
    if kind == NUMBER:
        length = snprintf(text, sizeof(text), "%llu", <unsigned long long>(_random(t) >> _random(t) % 60))
    it = st.item_alloc(t.s, key, nkey, <uint32_t>(_random(t) & 1), exptime, length + 2)
    if it == NULL:
        t.result.no_memory += 1
        return
    if kind == NUMBER:
        memcpy(st.ITEM_data(it), text, length)
    elif not _fill(it, number, _random(t)):
        t.error = b"a new item's runs do not cover its data"
    st.ITEM_set_cas(it, cas)
    result = st.store_item(t.s, it, op, 0, False, NULL)
    if result == st.STORED:
        t.result.stored += 1
        if op == st.NREAD_APPEND or op == st.NREAD_PREPEND:
            t.result.joined += 1
    else:
        t.result.not_stored += 1
    st.item_remove(t.s, it)


cdef void _one_get(stress_thread *t, const char *key, size_t nkey, uint64_t number, bint hold) noexcept nogil:
    cdef item *it = st.item_get(t.s, key, nkey, True)
    t.result.gets += 1
    if it == NULL:
        return
    t.result.hits += 1
    if not _key_matches(it, key, nkey):
        t.error = b"a get returned an item of another key"
    elif not _verify(it, number):
        t.error = b"a get returned a wrong value"
    if hold:
        _hold(t, it, number)
    else:
        st.item_remove(t.s, it)


cdef void _one_mark(stress_thread *t, const char *key, size_t nkey) noexcept nogil:
    """Makes the item stale, as md does with the flag I."""
    cdef uint32_t hv
    cdef item *it = st.item_get_locked(t.s, key, nkey, False, &hv)
    if it != NULL:
        st.do_item_set_flags(t.s, it, st.ITEM_STALE)
        st.do_item_clear_flags(t.s, it, st.ITEM_TOKEN_SENT)
        st.ITEM_set_cas(it, st.get_cas_id(t.s))
        st.do_item_remove(t.s, it)
        t.result.marked += 1
    st.item_unlock(t.s, hv)


cdef void _one_recache(stress_thread *t, const char *key, size_t nkey) noexcept nogil:
    """Tries to win the recaching of the item, like mg."""
    cdef item *it = st.item_get(t.s, key, nkey, True)
    cdef uint64_t cas
    if it == NULL:
        return
    cas = st.ITEM_get_cas(it)
    if st.ITEM_has(it, st.ITEM_STALE) and st.item_win(t.s, it, cas):
        t.result.won += 1
        if cas - t.wins.first < t.wins.count and fetch_add(&t.wins.winners[cas - t.wins.first], 1) != 0:
            t.error = b"two threads won the same stale item"
    st.item_remove(t.s, it)


cdef void _one_command(stress_thread *t) noexcept nogil:
    cdef uint64_t number = _random(t) % t.keys
    cdef uint64_t dice = _random(t) % 1000
    cdef uint64_t kind = number % 4
    cdef uint64_t cas = 0
    cdef char key[32]
    cdef char buf[st.INCR_MAX_STORAGE_LEN]
    cdef size_t nkey = snprintf(key, sizeof(key), "key-%llu", <unsigned long long>number)
    cdef item *it
    cdef st.delta_result_type delta
    if dice < 450:
        _one_get(t, key, nkey, number, dice % 8 == 0 and not t.even)
    elif dice < 650:
        _one_store(t, key, nkey, number, st.NREAD_SET, 0)
    elif dice < 700:
        _one_store(t, key, nkey, number, st.NREAD_ADD if dice & 1 else st.NREAD_REPLACE, 0)
    elif dice < 850 and kind == BLOCKS:
        _one_store(t, key, nkey, number, st.NREAD_APPEND if dice & 1 else st.NREAD_PREPEND, 0)
    elif dice < 850 and kind == NUMBER:
        delta = st.add_delta(t.s, key, nkey, dice & 1, _random(t) >> _random(t) % 64, buf, &cas)
        if delta == st.NON_NUMERIC:
            t.error = b"a number is none"
        elif delta == st.OK:
            t.result.counted += 1
    elif dice < 850:
        it = st.item_get(t.s, key, nkey, False)
        if it != NULL:
            cas = st.ITEM_get_cas(it)
            st.item_remove(t.s, it)
            _one_store(t, key, nkey, number, st.NREAD_CAS, cas)
    elif dice < 900:
        it = st.item_get(t.s, key, nkey, False)
        if it != NULL:
            st.item_unlink(t.s, key, nkey)
            t.result.deleted += 1
            if dice & 1 and not t.even:
                _hold(t, it, number)
            else:
                st.item_remove(t.s, it)
    elif dice < 930:
        it = st.item_touch(t.s, key, nkey, st.realtime(t.s, 1 + <int64_t>(_random(t) % 3)))
        if it != NULL:
            st.item_remove(t.s, it)
    elif dice < 960:
        _release_held(t, &t.held[_random(t) % HELD])
    elif dice < 970:
        _one_mark(t, key, nkey)
    elif dice < 999:
        _one_recache(t, key, nkey)
    elif dice == 999 and t.clock:
        if _random(t) % 8 == 0:
            st.store_flush_all(t.s, <int64_t>(_random(t) % 2))
            t.result.flushed += 1
        else:
            st.store_advance(t.s, 1 + <unsigned int>(_random(t) % 40))


cdef void *_stress_thread(void *arg) noexcept nogil:
    cdef stress_thread *t = <stress_thread *>arg
    cdef uint64_t _i
    cdef int j
    for _i in range(t.ops):
        _one_command(t)
        if t.error != NULL:
            break
    for j in range(HELD):
        _release_held(t, &t.held[j])
    return NULL


cdef void *_moving_thread(void *arg) noexcept nogil:
    """Has pages moved between any two classes, and the pool, until all stress threads are done."""
    cdef stress_thread *t = <stress_thread *>arg
    cdef unsigned int classes = st.store_largest_class(t.s) + 1
    cdef int dst
    while not relaxed_load(&t.stop):
        dst = <int>(_random(t) % classes)
        if st.slabs_reassign(t.s, <int>(_random(t) % (classes + 1)) - 1, dst, _random(t) & 1) == st.REASSIGN_OK:
            t.result.moves += 1
        else:
            sched_yield()
    return NULL


cdef const char *stress_run(store *s, const stress_plan *plan, stress_result *result) noexcept nogil:
    cdef int threads = plan.threads
    cdef bint move = plan.move
    cdef stress_thread *t = <stress_thread *>calloc(threads + 1, sizeof(stress_thread))
    cdef pthread_t *ids = <pthread_t *>calloc(threads, sizeof(pthread_t))
    cdef pthread_t mover
    cdef win_record wins
    cdef const char *error = NULL
    cdef uint64_t *sum = <uint64_t *>result
    cdef int started = threads
    cdef int i
    cdef size_t j
    memset(result, 0, sizeof(result[0]))
    wins.first = st.get_cas_id(s)
    wins.count = 2 * <uint64_t>threads * plan.ops    # no command takes more than two CAS values
    wins.winners = <uint8_t *>calloc(wins.count, 1)
    if t == NULL or ids == NULL or wins.winners == NULL:
        error = b"out of memory"
        threads = 0
        move = False
    if move:
        t[threads].s = s
        t[threads].random = _mix(plan.seed * 1000 + 999)
        move = pthread_create(&mover, NULL, _moving_thread, &t[threads]) == 0
    for i in range(threads):
        t[i].s = s
        t[i].wins = &wins
        t[i].ops = plan.ops
        t[i].random = _mix(plan.seed * 1000 + <uint64_t>i)
        t[i].keys = plan.keys
        t[i].max_value = plan.max_value
        t[i].clock = plan.clock and i == 0
        t[i].even = plan.even
        if pthread_create(&ids[i], NULL, _stress_thread, &t[i]) != 0:
            error = b"no thread"
            threads = i
            break
    for i in range(threads):
        pthread_join(ids[i], NULL)
        if t[i].error != NULL:
            error = t[i].error
        for j in range(sizeof(stress_result) // sizeof(uint64_t)):
            sum[j] += (<uint64_t *>&t[i].result)[j]
    if move:
        relaxed_store(&t[started].stop, 1)
        pthread_join(mover, NULL)
        result.moves = t[started].result.moves
    free(t)
    free(ids)
    free(wins.winners)
    return error


# --- direct reads ---

cdef bint stress_bytes_hold(const char *data, size_t length, uint64_t key) noexcept nogil:
    cdef reader r
    memset(&r, 0, sizeof(r))
    r.key = key
    r.kind = key % 4
    r.length = length
    if r.kind == BLOCKS and length % 16 != 0:
        return False
    while r.pos < length:
        if not _verify_byte(&r, <unsigned char>data[r.pos]):
            return False
    return True


cdef const char *direct_run(direct_memory *m, uint64_t seed, uint64_t keys, bint verify, uint32_t *stop,
                            uint64_t *counts) noexcept nogil:
    cdef char *to = <char *>malloc(READ_MOST)
    cdef const char *error = NULL
    cdef direct_hit hit
    cdef direct_answer answer
    cdef uint64_t number
    cdef size_t nkey
    cdef char key[32]
    if to == NULL:
        return b"out of memory"
    while error == NULL and not relaxed_load(stop):
        seed = _mix(seed + <uint64_t>0x9e3779b97f4a7c15)
        number = seed % keys
        nkey = snprintf(key, sizeof(key), "key-%llu", <unsigned long long>number)
        answer = direct_find(m, key, nkey, &hit)
        if answer == DIRECT_FOUND and hit.length > READ_MOST:
            error = b"a value is longer than any that was stored"
        elif answer == DIRECT_FOUND and (verify or hit.chained):
            answer = direct_copy(m, &hit, to)
        elif answer == DIRECT_FOUND:
            sched_yield()
            memcpy(to, hit.data, hit.length)
        counts[<int>answer] += 1
        if answer == DIRECT_FOUND and error == NULL and not stress_bytes_hold(to, hit.length, number):
            error = b"a value was read that nobody has stored for its key"
    free(to)
    return error


# --- a number without lost increments ---

cdef struct race_thread:
    store *s
    uint64_t ops
    const char *key
    size_t nkey
    bint use_cas
    uint64_t retries
    const char *error


cdef bint _cas_increment(race_thread *t) noexcept nogil:
    """Adds 1 by a get and a cas. False: another thread was faster."""
    cdef char text[32]
    cdef uint64_t cas
    cdef size_t length
    cdef st.store_item_type result
    cdef item *it = st.item_get(t.s, t.key, t.nkey, True)
    if it == NULL:
        t.error = b"the number is missing"
        return True
    cas = st.ITEM_get_cas(it)
    length = snprintf(text, sizeof(text), "%llu", strtoull(st.ITEM_data(it), NULL, 10) + 1)
    st.item_remove(t.s, it)
    it = st.item_alloc(t.s, t.key, t.nkey, 0, 0, length + 2)
    if it == NULL:
        t.error = b"no memory"
        return True
    memcpy(st.ITEM_data(it), text, length)
    st.ITEM_set_cas(it, cas)
    result = st.store_item(t.s, it, st.NREAD_CAS, 0, False, NULL)
    st.item_remove(t.s, it)
    return result == st.STORED


cdef void *_race_thread(void *arg) noexcept nogil:
    cdef race_thread *t = <race_thread *>arg
    cdef char buf[st.INCR_MAX_STORAGE_LEN]
    cdef uint64_t done = 0
    while done < t.ops and t.error == NULL:
        if not t.use_cas:
            if st.add_delta(t.s, t.key, t.nkey, True, 1, buf, NULL) != st.OK:
                t.error = b"incr failed"
            done += 1
        elif _cas_increment(t):
            done += 1
        else:
            t.retries += 1
    return NULL


cdef const char *race_run(store *s, int threads, uint64_t ops, const char *key, size_t nkey, bint use_cas,
                          uint64_t *retries) noexcept nogil:
    cdef race_thread *t = <race_thread *>calloc(threads, sizeof(race_thread))
    cdef pthread_t *ids = <pthread_t *>calloc(threads, sizeof(pthread_t))
    cdef const char *error = NULL
    cdef int i
    if t == NULL or ids == NULL:
        error = b"out of memory"
        threads = 0
    for i in range(threads):
        t[i].s = s
        t[i].ops = ops
        t[i].key = key
        t[i].nkey = nkey
        t[i].use_cas = use_cas
        if pthread_create(&ids[i], NULL, _race_thread, &t[i]) != 0:
            error = b"no thread"
            threads = i
            break
    for i in range(threads):
        pthread_join(ids[i], NULL)
        retries[0] += t[i].retries
        if t[i].error != NULL:
            error = t[i].error
    free(t)
    free(ids)
    return error
