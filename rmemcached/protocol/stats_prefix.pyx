"""Counts of commands by the prefix of their keys (see stats_prefix.pxd)."""

from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from rmemcached.sys.linux cimport pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.store.store cimport store_hash
from rmemcached.sys.debug cimport assert_held

cdef enum:
    LINE_ROOM = 128              # of a line of the dump, without the prefix: words and four numbers


cdef stats_prefixes *stats_prefix_create(char delimiter, bint enabled) noexcept nogil:
    cdef stats_prefixes *p = <stats_prefixes *>calloc(1, sizeof(stats_prefixes))
    if p != NULL:
        p.delimiter = delimiter
        p.enabled = enabled
        pthread_mutex_init(&p.lock, NULL)
    return p


cdef void do_clear(stats_prefixes *p) noexcept nogil:
    cdef prefix_entry *entry
    cdef int i
    assert_held(&p.lock)
    for i in range(PREFIX_BUCKETS):
        while p.buckets[i] != NULL:
            entry = p.buckets[i]
            p.buckets[i] = entry.next
            free(entry)
    p.count = 0


cdef void stats_prefix_clear(stats_prefixes *p) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    do_clear(p)
    pthread_mutex_unlock(&p.lock)


cdef void stats_prefix_destroy(stats_prefixes *p) noexcept nogil:
    stats_prefix_clear(p)
    pthread_mutex_destroy(&p.lock)
    free(p)


cdef prefix_entry *do_find(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil:
    """The entry of the key's prefix, made if need be. NULL: no prefix, the table is full, or no memory."""
    cdef const char *end = <const char *>memchr(key, p.delimiter, nkey)
    cdef prefix_entry *entry
    cdef prefix_entry **bucket
    cdef size_t length
    assert_held(&p.lock)
    if end == NULL:
        return NULL
    length = <size_t>(end - key)
    bucket = &p.buckets[store_hash(key, length) % PREFIX_BUCKETS]
    entry = bucket[0]
    while entry != NULL:
        if entry.length == length and memcmp(entry.prefix, key, length) == 0:
            return entry
        entry = entry.next
    if p.count >= MAX_PREFIX_COUNT:
        return NULL
    entry = <prefix_entry *>calloc(1, sizeof(prefix_entry) + length)
    if entry == NULL:
        return NULL
    memcpy(entry.prefix, key, length)
    entry.length = length
    entry.next = bucket[0]
    bucket[0] = entry
    p.count += 1
    return entry


cdef void stats_prefix_add_get(stats_prefixes *p, const char *key, size_t nkey, bint hit) noexcept nogil:
    cdef prefix_entry *entry
    pthread_mutex_lock(&p.lock)
    entry = do_find(p, key, nkey)
    if entry != NULL:
        entry.gets += 1
        entry.hits += hit
    pthread_mutex_unlock(&p.lock)


cdef void stats_prefix_add_set(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil:
    cdef prefix_entry *entry
    pthread_mutex_lock(&p.lock)
    entry = do_find(p, key, nkey)
    if entry != NULL:
        entry.sets += 1
    pthread_mutex_unlock(&p.lock)


cdef void stats_prefix_add_delete(stats_prefixes *p, const char *key, size_t nkey) noexcept nogil:
    cdef prefix_entry *entry
    pthread_mutex_lock(&p.lock)
    entry = do_find(p, key, nkey)
    if entry != NULL:
        entry.deletes += 1
    pthread_mutex_unlock(&p.lock)


cdef char *stats_prefix_dump(stats_prefixes *p, size_t *length) noexcept nogil:
    cdef prefix_entry *entry
    cdef char *text
    cdef int i
    cdef size_t room = 8
    cdef size_t used = 0
    pthread_mutex_lock(&p.lock)
    for i in range(PREFIX_BUCKETS):
        entry = p.buckets[i]
        while entry != NULL:
            room += entry.length + LINE_ROOM
            entry = entry.next
    text = <char *>malloc(room)
    if text != NULL:
        for i in range(PREFIX_BUCKETS):
            entry = p.buckets[i]
            while entry != NULL:
                memcpy(text + used, b"PREFIX ", 7)
                memcpy(text + used + 7, entry.prefix, entry.length)
                used += 7 + entry.length
                used += <size_t>snprintf(text + used, LINE_ROOM, b" get %llu hit %llu set %llu del %llu\r\n",
                                         <unsigned long long>entry.gets, <unsigned long long>entry.hits,
                                         <unsigned long long>entry.sets, <unsigned long long>entry.deletes)
                entry = entry.next
        memcpy(text + used, b"END\r\n", 5)
        length[0] = used + 5
    pthread_mutex_unlock(&p.lock)
    return text
