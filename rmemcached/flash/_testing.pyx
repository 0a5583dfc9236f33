"""The engine of external storage for tests/flash: pages, write buffers and records, and the thread that writes buffers,
without writer and compactor.
"""

import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.uio cimport iovec

from rmemcached.flash.flash cimport (
    IO_THREADS, IO_URING, RECORD_HEAD, SPACE_OK, flash, flash_config, flash_create, flash_destroy, flash_get_page,
    flash_get_stats, flash_record, flash_request, flash_request_calls, flash_source, flash_space, flash_stats,
    flash_stop, io_start, io_submit, page_evict, page_stats, record_fits, record_length, record_write, source_close,
    source_find, source_open, source_release, space_take, space_written, value_exists, value_gone,
)
from rmemcached.store.store cimport (
    item, item_alloc, item_hdr, item_iov, item_remove, store, store_config, store_create, store_destroy,
)
from rmemcached.sys.atomics cimport fetch_add, fetch_sub
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport sem_init, sem_post, sem_t, sem_wait

cdef enum:
    READS_MOST = 8192            # at a time


cdef struct read_counts:         # of an Engine; atomic
    uint64_t begun
    uint64_t bytes               # of values under way
    uint64_t peak                # of bytes
    int64_t ns                   # of get_many, from the first submission to the last end
    sem_t ended

cdef struct test_read:
    flash_request request        # first
    flash *f                     # constant, as are store, counts, where
    store *s
    read_counts *counts
    item_hdr where
    flash_source source
    item *value                  # by begin: memory is taken there
    const char *key
    size_t nkey
    size_t length
    char head[RECORD_HEAD]
    bint copied


cdef void _fill(item *it, const char *data, size_t length) noexcept nogil:
    """Puts the data into the item, chained or not."""
    cdef iovec iov
    cdef size_t offset = 0
    while offset < length:
        item_iov(it, offset, length - offset, &iov, 1)
        memcpy(iov.iov_base, data + offset, iov.iov_len)
        offset += iov.iov_len


cdef bint _read_begin(flash_request *r) noexcept nogil:
    cdef test_read *t = <test_read *>r
    cdef uint64_t now
    fetch_add(&t.counts.begun, 1)
    t.value = item_alloc(t.s, t.key, t.nkey, 0, 0, t.length + 2)
    if t.value == NULL:
        return False
    now = fetch_add(&t.counts.bytes, r.bytes) + r.bytes
    # With several readers the peak may be a little low.
    if now > t.counts.peak:
        t.counts.peak = now
    source_open(t.f, &t.where, &t.source)
    if t.source.data != NULL:
        memcpy(t.head, t.source.data, sizeof(flash_record) + t.nkey)
        _fill(t.value, t.source.data + sizeof(flash_record) + t.nkey, <size_t>t.value.nbytes)
        t.copied = True
    return not t.copied


cdef int _read_extents(flash_request *r, iovec *iov, int most) noexcept nogil:
    cdef test_read *t = <test_read *>r
    cdef uint64_t size = sizeof(flash_record) + t.nkey
    cdef uint64_t done = r.bytes - r.left
    cdef int n = 0
    if done < size:
        iov[0].iov_base = t.head + done
        iov[0].iov_len = size - done
        done = size
        n = 1
    return n + item_iov(t.value, done - size, <size_t>(r.bytes - done), iov + n, most - n)


cdef void _read_end(flash_request *r) noexcept nogil:
    cdef test_read *t = <test_read *>r
    if t.value != NULL:
        fetch_sub(&t.counts.bytes, r.bytes)
        if not (t.copied or r.left == 0) or not record_fits(t.head, t.value, &t.where):
            item_remove(t.s, t.value)
            t.value = NULL
    source_release(t.f, &t.source)
    sem_post(&t.counts.ended)


cdef flash_request_calls test_calls = flash_request_calls(_read_begin, _read_extents, _read_end)


cdef item_hdr _place(place):
    cdef item_hdr where
    where.page_id, where.page_version, where.offset = place
    return where


cdef class Engine:
    cdef flash *f
    cdef store *s
    cdef object files
    cdef read_counts counts

    def __init__(self, paths, page_size, wbuf_size, threads=1, io="threads", memory=64 << 20):
        cdef flash_config config
        cdef store_config settings
        cdef const char *problem = NULL
        cdef char why[256]
        self.files = [os.fsencode(path) for path, _, _ in paths]
        memset(&config, 0, sizeof(config))
        config.npaths = <unsigned int>len(paths)
        for number, (_, pages, bucket) in enumerate(paths):
            config.paths[<size_t>number].file = self.files[number]
            config.paths[<size_t>number].pages = pages
            config.paths[<size_t>number].bucket = bucket
        config.page_size = page_size
        config.wbuf_size = wbuf_size
        config.io_threads = threads
        config.io = IO_URING if io == "uring" else IO_THREADS
        config.io_depth = 1
        self.f = flash_create(&config, why, sizeof(why))
        if self.f == NULL:
            raise OSError((<bytes>why).decode())
        memset(&settings, 0, sizeof(settings))
        settings.maxbytes = memory
        settings.item_size_max = 2 << 20
        settings.slab_chunk_size_max = 1 << 19
        settings.chunk_size = 48
        settings.factor = 1.25
        settings.use_cas = True
        settings.nthreads = 1
        self.s = store_create(&settings, &problem)
        if self.s == NULL:
            raise OSError("the store cannot be made")
        self.f.store = self.s
        if not io_start(self.f):
            raise OSError("no thread")
        sem_init(&self.counts.ended, 0, 0)

    def close(self):
        if self.f != NULL:
            with nogil:
                flash_stop(self.f)
            store_destroy(self.s)
            flash_destroy(self.f)
            self.f = NULL

    cdef item *new_item(self, bytes key, length) except NULL:
        cdef item *it = item_alloc(self.s, key, <size_t>len(key), 0, 0, <size_t>length + 2)
        if it == NULL:
            raise MemoryError
        return it

    def put(self, bytes key, bytes value, bucket=0, may_drop=True):
        """Writes a record. Returns its place; None: there is no space now."""
        cdef flash_space space
        cdef item *it = self.new_item(key, len(value))
        _fill(it, value, <size_t>len(value))
        taken = space_take(self.f, bucket, record_length(it), may_drop, &space) == SPACE_OK
        if taken:
            record_write(space.to, it, &space.where)
            space_written(self.f, &space)
        item_remove(self.s, it)
        return (space.where.page_id, space.where.page_version, space.where.offset) if taken else None

    def get(self, place, bytes key, length):
        """Reads a record's value. None: the value is gone, cannot be read, or is wrong."""
        return self.get_many([place], key, length)[0]

    def get_many(self, places, bytes key, length, stop=False):
        """Reads values of a key and a length at the same time. stop: ends the threads meanwhile."""
        cdef test_read *reads = <test_read *>calloc(READS_MOST, sizeof(test_read))
        cdef test_read *t
        cdef size_t i
        cdef size_t count = <size_t>len(places)
        cdef size_t submitted = 0
        cdef bint stops = stop
        assert count <= READS_MOST
        for i in range(count):
            t = &reads[i]
            t.f = self.f
            t.s = self.s
            t.counts = &self.counts
            t.where = _place(places[i])
            t.key = key
            t.nkey = <size_t>len(key)
            t.length = length
            t.request.calls = &test_calls
            t.request.bytes = t.request.left = sizeof(flash_record) + t.nkey + t.length + 2
            if source_find(self.f, &t.where, <unsigned int>t.request.bytes, &t.source):
                source_close(self.f, &t.source)
                t.request.fd = t.source.page.fd
                t.request.place = t.source.page.offset + t.where.offset
        self.counts.ns -= now_ns()
        with nogil:
            for i in range(count):
                if reads[i].source.page != NULL:
                    io_submit(self.f, &reads[i].request)
                    submitted += 1
            if stops:
                flash_stop(self.f)
            while submitted:
                submitted -= sem_wait(&self.counts.ended) == 0
        self.counts.ns += now_ns()
        found = []
        for i in range(count):
            found.append(self.take_value(reads[i].value))
        free(reads)
        return found

    cdef object take_value(self, item *it):
        cdef iovec iov
        cdef size_t offset = 0
        if it == NULL:
            return None
        parts = []
        while offset < <size_t>it.nbytes:
            item_iov(it, offset, <size_t>it.nbytes - offset, &iov, 1)
            parts.append((<const char *>iov.iov_base)[:iov.iov_len])
            offset += iov.iov_len
        value = b"".join(parts)[:it.nbytes - 2]
        item_remove(self.s, it)
        return value

    def reads(self):
        """How many reads have begun, the most bytes of values under way at a time, and the nanoseconds of all reads."""
        return self.counts.begun, self.counts.peak, self.counts.ns

    def keep(self, place, bytes key, length):
        """Keeps a value's page, as a read under way. The result is for `release`; 0: the value is gone."""
        cdef flash_source *source = <flash_source *>calloc(1, sizeof(flash_source))
        cdef item_hdr where = _place(place)
        cdef item *it = self.new_item(key, length)
        found = source_find(self.f, &where, record_length(it), source)
        item_remove(self.s, it)
        if not found:
            free(source)
            return 0
        return <uintptr_t>source

    def release(self, kept):
        cdef flash_source *source = <flash_source *><uintptr_t>kept
        source_release(self.f, source)
        free(source)

    def gone(self, place, bytes key, length):
        cdef item_hdr where = _place(place)
        cdef item *it = self.new_item(key, length)
        value_gone(self.f, &where, record_length(it))
        item_remove(self.s, it)

    def exists(self, place):
        cdef item_hdr where = _place(place)
        return value_exists(self.f, &where)

    def evict(self, page, version):
        page_evict(self.f, page, version, False)

    def stats(self):
        cdef flash_stats st
        flash_get_stats(self.f, &st)
        return st

    def page(self, number):
        cdef page_stats st
        flash_get_page(self.f, number, &st)
        return st
