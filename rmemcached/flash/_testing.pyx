"""The engine of external storage for tests/flash: pages, write buffers and records, and the thread that writes buffers,
without writer and compactor.
"""

import os

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.uio cimport iovec

from rmemcached.flash.flash cimport (
    RECORD_HEAD, SPACE_OK, flash, flash_config, flash_create, flash_destroy, flash_get_page, flash_get_stats,
    flash_record, flash_source, flash_space, flash_stats, flash_stop, flash_write_errors, io_start, page_evict,
    page_stats, read_all, record_fits, record_length, record_write, source_find, source_release, space_take,
    space_written, value_exists, value_gone,
)
from rmemcached.store.store cimport (
    ITEM_data, item, item_alloc, item_hdr, item_remove, store, store_config, store_create, store_destroy,
)


cdef item_hdr _place(place):
    cdef item_hdr where
    where.page_id, where.page_version, where.offset = place
    return where


cdef class Engine:
    cdef flash *f
    cdef store *s
    cdef object files

    def __init__(self, paths, page_size, wbuf_size):
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
        config.io_threads = 1
        config.io_depth = 1
        self.f = flash_create(&config, why, sizeof(why))
        if self.f == NULL:
            raise OSError((<bytes>why).decode())
        memset(&settings, 0, sizeof(settings))
        settings.maxbytes = 64 << 20
        settings.item_size_max = 1 << 20
        settings.slab_chunk_size_max = 1 << 19
        settings.chunk_size = 48
        settings.factor = 1.25
        settings.use_cas = True
        settings.nthreads = 1
        self.s = store_create(&settings, &problem)
        if self.s == NULL or not io_start(self.f):
            raise OSError("the store cannot be made")
        self.f.store = self.s

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
        cdef const char *data = value
        memcpy(ITEM_data(it), data, <size_t>len(value))
        taken = space_take(self.f, bucket, record_length(it), may_drop, &space) == SPACE_OK
        if taken:
            record_write(space.to, it, &space.where)
            space_written(self.f, &space)
        item_remove(self.s, it)
        return (space.where.page_id, space.where.page_version, space.where.offset) if taken else None

    def get(self, place, bytes key, length):
        """Reads a record's value. None: the value is gone, cannot be read, or is wrong."""
        cdef flash_source source
        cdef item_hdr where = _place(place)
        cdef char head[RECORD_HEAD]
        cdef iovec iov[2]
        cdef item *it = self.new_item(key, length)
        cdef size_t size = sizeof(flash_record) + it.nkey
        whole = source_find(self.f, &where, record_length(it), &source)
        if whole and source.data != NULL:
            memcpy(head, source.data, size)
            memcpy(ITEM_data(it), source.data + size, <size_t>it.nbytes)
        elif whole:
            iov[0].iov_base = head
            iov[0].iov_len = size
            iov[1].iov_base = ITEM_data(it)
            iov[1].iov_len = <size_t>it.nbytes
            whole = read_all(source.page.fd, iov, 2, source.page.offset + where.offset)
        if source.page != NULL:
            source_release(self.f, &source)
        found = (<const char *>ITEM_data(it))[:length] if whole and record_fits(head, it, &where) else None
        item_remove(self.s, it)
        return found

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
        page_evict(self.f, page, version)

    def stats(self):
        cdef flash_stats st
        flash_get_stats(self.f, &st)
        return st

    def page(self, number):
        cdef page_stats st
        flash_get_page(self.f, number, &st)
        return st

    def write_errors(self):
        return flash_write_errors(self.f)
