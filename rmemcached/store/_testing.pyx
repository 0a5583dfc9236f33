"""The store for Python, as needed by tests and experiments. Not an interface for programs."""

import os
import re

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.uio cimport iovec

from rmemcached.store cimport store as st
from rmemcached.store._testing_stress cimport race_run, stress_plan, stress_result, stress_run
from rmemcached.store.check cimport store_check
from rmemcached.store.store cimport item, move_begin, move_finish, rel_time_t, store, store_config, store_secrets
from rmemcached.sys.atomics cimport relaxed_load, relaxed_store
from rmemcached.sys.debug cimport LIVE_ITEM_REF, live_sub
from rmemcached.sys.linux cimport sem_init, sem_post, sem_t, sem_wait, snprintf

OPS = {
    "add": st.NREAD_ADD,
    "set": st.NREAD_SET,
    "replace": st.NREAD_REPLACE,
    "append": st.NREAD_APPEND,
    "prepend": st.NREAD_PREPEND,
    "cas": st.NREAD_CAS,
    "appendviv": st.NREAD_APPENDVIV,
    "prependviv": st.NREAD_PREPENDVIV,
}
STORED = {
    st.NOT_STORED: "NOT_STORED",
    st.STORED: "STORED",
    st.EXISTS: "EXISTS",
    st.NOT_FOUND: "NOT_FOUND",
    st.TOO_LARGE: "TOO_LARGE",
    st.NO_MEMORY: "NO_MEMORY",
}
CRAWLER = {
    st.CRAWLER_OK: "OK",
    st.CRAWLER_RUNNING: "RUNNING",
    st.CRAWLER_BADCLASS: "BADCLASS",
    st.CRAWLER_NOTSTARTED: "NOTSTARTED",
    st.CRAWLER_ERROR: "ERROR",
}
REASSIGN = {
    st.REASSIGN_OK: "OK",
    st.REASSIGN_RUNNING: "RUNNING",
    st.REASSIGN_BADCLASS: "BADCLASS",
    st.REASSIGN_NOSPARE: "NOSPARE",
    st.REASSIGN_SRC_DST_SAME: "SAME",
}
DELTA = {
    st.OK: "OK",
    st.NON_NUMERIC: "NON_NUMERIC",
    st.EOM: "EOM",
    st.DELTA_ITEM_NOT_FOUND: "NOT_FOUND",
    st.DELTA_ITEM_CAS_MISMATCH: "CAS_MISMATCH",
}


def all_direct():
    """Whether RMEMCACHED_TEST_OPTIONS has all stores read directly. The last value counts: the marker without_direct
    adds a value."""
    values = re.findall(r"rdma_direct(?:=(\w+))?(?!\w)", os.environ.get("RMEMCACHED_TEST_OPTIONS", ""))
    return values != [] and values.pop() in ("", "all")


cdef struct extent_log:
    size_t count
    void *addr[64]
    size_t length[64]


cdef void _log_extent(void *arg, void *addr, size_t length) noexcept nogil:
    cdef extent_log *log = <extent_log *>arg
    if log.count < 64:
        log.addr[log.count] = addr
        log.length[log.count] = length
    log.count += 1


cdef class Item:
    """A reference to an item, given back by release() or with the object."""

    cdef item *it
    cdef Store owner

    def __init__(self):
        raise TypeError("items come from a Store")

    @staticmethod
    cdef Item new(Store owner, item *it):
        cdef Item self = Item.__new__(Item)
        self.it = it
        self.owner = owner
        return self

    def __dealloc__(self):
        self.release()

    cpdef release(self):
        if self.it != NULL:
            if self.owner.s != NULL:
                st.item_remove(self.owner.s, self.it)
            else:
                # The store has freed the item already.
                live_sub(LIVE_ITEM_REF)
        self.it = NULL

    def iov(self, size_t offset=0, length=None, int max_iov=4096):
        """(offset in the arena, length) of each run of data bytes."""
        cdef iovec *iov = <iovec *>malloc(max_iov * sizeof(iovec))
        cdef int i, n
        cdef char *base = self.owner.s.slabs.arena
        n = st.item_iov(self.it, offset, self.it.nbytes if length is None else length, iov, max_iov)
        runs = [(<char *>iov[i].iov_base - base, iov[i].iov_len) for i in range(n)]
        free(iov)
        return runs

    def data(self, size_t offset=0, length=None):
        """Data bytes, the final CR LF included."""
        cdef char *base = self.owner.s.slabs.arena
        cdef size_t start, n
        parts = []
        for start, n in self.iov(offset, length):
            parts.append((base + start)[:n])
        return b"".join(parts)

    def write(self, bytes value):
        """Writes the data bytes from the start, as a receiver of the payload does."""
        cdef char *base = self.owner.s.slabs.arena
        cdef size_t start, n, done = 0
        for start, n in self.iov(0, len(value)):
            memcpy(base + start, <const char *>value + done, n)
            done += n

    def store(self, op="set", uint64_t cas=0, bint stale=False, uint64_t new_cas=0):
        """Stores this item. Returns (result, CAS value, data length after append and prepend)."""
        cdef st.stored_item stored = st.stored_item(0, 0)
        cdef st.store_item_type result
        cdef st.store_op c_op = OPS[op]
        st.ITEM_set_cas(self.it, cas)
        with nogil:
            result = st.store_item(self.owner.s, self.it, c_op, new_cas, stale, &stored)
        return STORED[result], stored.cas, stored.nbytes

    def leak(self):
        """Forgets the reference: the store keeps counting it."""
        live_sub(LIVE_ITEM_REF)
        self.it = NULL

    def unlink(self):
        """Unlinks the item stored under this item's key."""
        st.item_unlink(self.owner.s, st.ITEM_key(self.it), self.it.nkey)

    def set_flag(self, int flag):
        cdef uint32_t hv = st.store_hash(st.ITEM_key(self.it), self.it.nkey)
        st.item_lock(self.owner.s, hv)
        st.do_item_set_flags(self.owner.s, self.it, flag)
        st.item_unlock(self.owner.s, hv)

    @property
    def value(self):
        return self.data(0, self.it.nbytes - 2)

    @property
    def key(self):
        return st.ITEM_key(self.it)[:self.it.nkey]

    @property
    def flags(self):
        return st.ITEM_client_flags(self.it)

    @property
    def cas(self):
        return st.ITEM_get_cas(self.it)

    @property
    def refcount(self):
        return <uint16_t>relaxed_load(&self.it.refcount)

    @property
    def it_flags(self):
        return <uint16_t>relaxed_load(&self.it.it_flags)

    @property
    def clsid(self):
        return st.ITEM_clsid(self.it)

    @property
    def queue(self):
        return ("HOT", "WARM", "COLD", "TEMP")[st.ITEM_queue(self.it) >> 6]

    @property
    def ntotal(self):
        return st.ITEM_ntotal(self.it)

    @property
    def nbytes(self):
        return self.it.nbytes

    @property
    def exptime(self):
        return st.item_exptime(self.it)

    @property
    def time(self):
        return st.item_time(self.it)


cdef struct dump_log:
    char *text          # the dumped keys
    size_t used
    size_t size
    size_t items
    size_t limit        # items after which the reader goes away
    sem_t reader        # posted for every flush that may pass, with a slow reader
    unsigned int slow   # atomic
    sem_t waiting       # posted by every flush that begins to wait
    sem_t finished
    bint complete


cdef bint _dump_item(void *arg, item *it) noexcept nogil:
    cdef dump_log *log = <dump_log *>arg
    cdef char *grown
    if log.size - log.used < <size_t>it.nkey + 1:
        log.size = log.size * 2 + 4096
        grown = <char *>realloc(log.text, log.size)
        if grown == NULL:
            return False
        log.text = grown
    memcpy(log.text + log.used, st.ITEM_key(it), it.nkey)
    log.text[log.used + it.nkey] = c'\n'
    log.used += it.nkey + 1
    log.items += 1
    return True


cdef bint _dump_flush(void *arg) noexcept nogil:
    cdef dump_log *log = <dump_log *>arg
    if relaxed_load(&log.slow):
        sem_post(&log.waiting)
        sem_wait(&log.reader)
    return log.items < log.limit


cdef void _dump_done(void *arg, bint complete) noexcept nogil:
    cdef dump_log *log = <dump_log *>arg
    log.complete = complete
    sem_post(&log.finished)


cdef class Dump:
    """A dump by the crawler. limit: items after which the reader goes away. slow: the reader waits for proceed()."""

    cdef dump_log log
    cdef bint started
    cdef readonly str result

    def __init__(self, Store owner, bytes classes, size_t limit=1 << 62, bint slow=False):
        cdef st.crawler_client client
        cdef st.crawler_result_type result
        self.log.limit = limit
        self.log.slow = slow
        sem_init(&self.log.reader, 0, 0)
        sem_init(&self.log.waiting, 0, 0)
        sem_init(&self.log.finished, 0, 0)
        client.arg = &self.log
        client.item_found = _dump_item
        client.flush = _dump_flush
        client.done = _dump_done
        result = st.lru_crawler_dump(owner.s, classes, len(classes), &client)
        self.started = result == st.CRAWLER_OK
        self.result = CRAWLER[result]

    def __dealloc__(self):
        if self.started:
            # The crawler uses self.log until the dump's end.
            self._proceed()
            with nogil:
                sem_wait(&self.log.finished)
        free(self.log.text)

    def waiting(self):
        """Returns when the crawler waits for the reader."""
        with nogil:
            sem_wait(&self.log.waiting)

    cdef void _proceed(self):
        relaxed_store(&self.log.slow, 0)
        sem_post(&self.log.reader)

    def proceed(self):
        """Ends the reader's slowness: the crawler goes on."""
        self._proceed()

    def found(self):
        """All dumped keys, when the dump is over."""
        with nogil:
            sem_wait(&self.log.finished)
        sem_post(&self.log.finished)
        return self.log.text[:self.log.used].splitlines()

    @property
    def complete(self):
        self.found()
        return self.log.complete


cdef class Store:
    """A store of its own, with memcached's defaults. Keys and values are bytes; a context manager.

    s3fifo=None: S3-FIFO if RMEMCACHED_TEST_OPTIONS asks for it, but not in flat mode.
    """

    cdef store *s
    cdef extent_log extent_log
    cdef object given
    cdef bytes memory_file

    def __init__(self, uint64_t maxbytes=64 << 20, *, uint64_t item_size_max=1 << 20,
                 uint32_t slab_chunk_size_max=1 << 19, uint32_t chunk_size=48, double factor=1.25, bint use_cas=True,
                 bint evict_to_free=True, unsigned int hashpower_init=16, unsigned int nthreads=4,
                 bint hash_expand=True, bint lru_crawler=False, bint lru_maintainer=False, bint lru_segmented=True,
                 s3fifo=None, unsigned int hot_lru_pct=20, unsigned int warm_lru_pct=40, double hot_max_factor=0.2,
                 double warm_max_factor=2.0, bint temp_lru=False, unsigned int temporary_ttl=61,
                 unsigned int tail_repair_time=0, bint slab_reassign=False, unsigned int slab_automove=0,
                 unsigned int slab_automove_window=3, double slab_automove_ratio=0.8, bint preallocate=False,
                 slab_sizes=(), bint track_sizes=False, uint64_t initial_malloced=0, direct=None,
                 bint direct_remote=False, uint32_t direct_linger=60, bint huge_pages=True, memory_file=None,
                 int restart=st.RESTART_ALWAYS):
        cdef store_config config
        cdef const char *error = NULL
        memset(&config, 0, sizeof(config))
        config.maxbytes = maxbytes
        config.item_size_max = item_size_max
        config.slab_chunk_size_max = slab_chunk_size_max
        config.chunk_size = chunk_size
        config.factor = factor
        config.use_cas = use_cas
        config.evict_to_free = evict_to_free
        config.hashpower_init = hashpower_init
        config.nthreads = nthreads
        config.hash_expand = hash_expand
        config.lru_crawler = lru_crawler
        config.lru_maintainer = lru_maintainer
        config.lru_segmented = lru_segmented
        if s3fifo is None:
            s3fifo = lru_segmented and "lru_algorithm=s3fifo" in os.environ.get("RMEMCACHED_TEST_OPTIONS", "")
        config.s3fifo = s3fifo
        config.hot_lru_pct = hot_lru_pct
        config.warm_lru_pct = warm_lru_pct
        config.hot_max_factor = hot_max_factor
        config.warm_max_factor = warm_max_factor
        config.temp_lru = temp_lru
        config.temporary_ttl = temporary_ttl
        config.tail_repair_time = tail_repair_time
        config.slab_reassign = slab_reassign
        config.slab_automove = slab_automove
        config.slab_automove_window = slab_automove_window
        config.slab_automove_ratio = slab_automove_ratio
        config.preallocate = preallocate
        for i, size in enumerate(slab_sizes):
            config.slab_sizes[i] = size
        config.track_sizes = track_sizes
        config.initial_malloced = initial_malloced
        config.direct = direct is None or direct or direct_remote
        config.direct_remote = direct_remote
        config.direct_linger = direct_linger
        config.huge_pages = huge_pages
        config.extent_added = _log_extent
        config.extent_arg = &self.extent_log
        self.memory_file = os.fsencode(memory_file or "")
        config.memory_file = <const char *>self.memory_file if memory_file else NULL
        config.restart = <st.restart_policy>restart
        self.s = st.store_create(&config, &error)
        if self.s == NULL:
            raise ValueError(error.decode())
        if direct or direct_remote or (direct is None and all_direct()):
            self.direct_give()

    def __dealloc__(self):
        st.store_destroy(self.s)
        self.s = NULL

    def close(self):
        st.store_destroy(self.s)
        self.s = NULL

    def cachedump(self, unsigned int clsid):
        """The lines of `stats cachedump`: the items of a class, the last used first."""
        cdef size_t length
        cdef char *text = st.store_cachedump(self.s, clsid, 0, &length)
        lines = text[:length]
        free(text)
        return lines

    @property
    def restored(self):
        """(items, dropped, expired) of the memory file at the start."""
        return self.s.recovered.items, self.s.recovered.dropped, self.s.recovered.expired

    @property
    def note(self):
        return os.fsdecode(st.store_note(self.s))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- items ---

    def alloc(self, bytes key, size_t nbytes, uint32_t flags=0, rel_time_t exptime=0):
        """A new item with nbytes of data, CR LF included, or None."""
        cdef item *it = st.item_alloc(self.s, key, len(key), flags, exptime, nbytes)
        return None if it == NULL else Item.new(self, it)

    def store(self, op, bytes key, bytes value, uint32_t flags=0, int64_t exptime=0, *, uint64_t cas=0,
              bint stale=False, uint64_t new_cas=0):
        """Stores a value. Returns (result, CAS value, data length); the result of a failed allocation is TOO_LARGE or
        NO_MEMORY."""
        cdef Item it = self.alloc(key, len(value) + 2, flags, st.realtime(self.s, exptime))
        if it is None:
            ok = st.item_size_ok(self.s, len(key), flags, len(value) + 2)
            return ("NO_MEMORY" if ok else "TOO_LARGE"), 0, 0
        it.write(value)
        result = it.store(op, cas, stale, new_cas)
        it.release()
        return result

    def set(self, bytes key, bytes value, uint32_t flags=0, int64_t exptime=0):
        return self.store("set", key, value, flags, exptime)[0]

    def item(self, bytes key, bint update=True):
        """A reference to the item, or None."""
        cdef item *it = st.item_get(self.s, key, len(key), update)
        return None if it == NULL else Item.new(self, it)

    def get(self, bytes key, bint update=True):
        """The value, or None."""
        cdef Item it = self.item(key, update)
        if it is None:
            return None
        value = it.value
        it.release()
        return value

    def touch(self, bytes key, int64_t exptime):
        cdef item *it = st.item_touch(self.s, key, len(key), st.realtime(self.s, exptime))
        return None if it == NULL else Item.new(self, it)

    def delete(self, bytes key):
        cdef Item it = self.item(key, False)
        if it is None:
            return False
        it.unlink()
        return True

    def delta(self, bytes key, uint64_t delta, bint incr=True, uint64_t cas=0):
        """Adds to a number, or subtracts. Returns (result, text, CAS value)."""
        cdef char buf[st.INCR_MAX_STORAGE_LEN]
        cdef st.delta_result_type result
        buf[0] = 0
        result = st.add_delta(self.s, key, len(key), incr, delta, buf, &cas)
        return DELTA[result], <bytes>buf, cas

    def size_ok(self, size_t nkey, uint32_t flags, size_t nbytes):
        return st.item_size_ok(self.s, nkey, flags, nbytes)

    # --- time ---

    def tick(self, unsigned int times=1):
        with nogil:
            for _ in range(times):
                st.store_tick(self.s)

    def advance(self, unsigned int seconds, unsigned int times=1):
        """Moves the clock so many times. Returns how often the clock has gone back meanwhile."""
        cdef st.rel_time_t now, last = st.store_time(self.s)
        cdef unsigned int back = 0
        with nogil:
            for _ in range(times):
                st.store_advance(self.s, seconds)
                now = st.store_time(self.s)
                back += now < last
                last = now
        return back

    def realtime(self, int64_t exptime):
        return st.realtime(self.s, exptime)

    def flush_all(self, int64_t exptime=0):
        st.store_flush_all(self.s, exptime)

    @property
    def time(self):
        return st.store_time(self.s)

    @property
    def process_started(self):
        return st.store_process_started(self.s)

    def stop_threads(self):
        with nogil:
            st.store_stop_threads(self.s)

    # --- the LRU ---

    def tune(self, unsigned int hot_pct, unsigned int warm_pct, double hot_factor, double warm_factor):
        st.lru_tune(self.s, hot_pct, warm_pct, hot_factor, warm_factor)

    def set_segmented(self, bint segmented):
        st.lru_set_segmented(self.s, segmented)

    def set_temp_ttl(self, int ttl):
        st.lru_set_temp_ttl(self.s, ttl)

    def maintain(self):
        """Makes a turn of the maintainer."""
        with nogil:
            st.lru_maintain(self.s)

    # --- the crawler ---

    def crawl(self, bytes classes):
        """Starts a crawl for expired items."""
        return CRAWLER[st.lru_crawler_crawl(self.s, classes, len(classes))]

    def dump(self, bytes classes, **how):
        """Starts a dump of all keys."""
        return Dump(self, classes, **how)

    def crawler(self, bint enable):
        """Starts or ends the crawler thread; False: the thread could not be started."""
        if enable:
            return st.lru_crawler_enable(self.s)
        st.lru_crawler_disable(self.s)
        return True

    def crawler_sleep(self, uint32_t usec):
        st.lru_crawler_set_sleep(self.s, usec)

    def crawler_tocrawl(self, uint32_t items):
        st.lru_crawler_set_tocrawl(self.s, items)

    # --- slab pages ---

    def reassign(self, int src, int dst, bint allow_evictions=True):
        """Asks the page mover for a page of class src to go to class dst."""
        cdef st.reassign_result result
        with nogil:
            result = st.slabs_reassign(self.s, src, dst, allow_evictions)
        return REASSIGN[result]

    def begin_move(self, unsigned int src, unsigned int dst):
        """Makes the first step of a move, in place of the page mover, whose thread has ended. False: there is no page
        to spare."""
        cdef st.move_request request
        request.src = src
        request.dst = dst
        request.allow_evictions = False
        return move_begin(self.s, &request)

    def finish_move(self, unsigned int src, unsigned int dst):
        """Makes the second step of the move begun by begin_move."""
        cdef st.move_request request
        request.src = src
        request.dst = dst
        request.allow_evictions = False
        move_finish(self.s, &request)

    def set_automove(self, unsigned int level):
        st.slabs_set_automove(self.s, level)

    def set_automove_ratio(self, double ratio):
        st.slabs_set_automove_ratio(self.s, ratio)

    def set_automove_window(self, unsigned int runs):
        st.slabs_set_automove_window(self.s, runs)

    def set_memory_limit(self, uint64_t maxbytes):
        return st.store_set_memory_limit(self.s, maxbytes)

    def pin_memory(self):
        st.store_pin_memory(self.s)

    def sizes(self):
        """{size: items} of `stats sizes`."""
        return {st.SIZES_GRANULARITY * i: st.store_sizes(self.s, i) for i in range(st.store_sizes_buckets(self.s))
                if st.store_sizes(self.s, i)}

    # --- inner state ---

    @property
    def has_crawler(self):
        return bool(relaxed_load(&st.store_get_config(self.s).lru_crawler))

    def stats(self):
        cdef st.store_stats stats
        st.store_get_stats(self.s, &stats)
        return stats

    def reset_stats(self):
        st.store_reset_stats(self.s)

    def class_stats(self, unsigned int clsid):
        cdef st.class_stats stats
        return stats if st.store_get_class_stats(self.s, clsid, &stats) else None

    @property
    def largest_class(self):
        return st.store_largest_class(self.s)

    def class_of(self, size_t ntotal):
        return st.store_class_of(self.s, ntotal)

    def arena(self):
        """(address, length) of the reserved range."""
        return <size_t>self.s.slabs.arena, self.s.slabs.arena_length

    def extents(self):
        """(address, length) of each announced extent."""
        cdef size_t i
        return [(<size_t>self.extent_log.addr[i], self.extent_log.length[i]) for i in range(self.extent_log.count)]

    def check(self, bint at_rest=True):
        """Raises AssertionError when the store's structures are inconsistent."""
        cdef const char *error
        with nogil:
            error = store_check(self.s, at_rest)
        if error != NULL:
            raise AssertionError(error.decode())

    # --- many threads ---

    def stress(self, int threads, uint64_t ops, uint64_t seed=1, *, uint64_t keys=1000, size_t max_value=100000,
               bint clock=False, bint move=False, bint even=False):
        """Random commands of all kinds in threads without the GIL; the threads verify every value read.

        clock: one thread also moves the clock and flushes. move: another thread has slab pages moved all the time.
        even: values of all sizes, and no reference outlives its command. Returns the number of events of each kind.
        Raises AssertionError with an error found by a thread.
        """
        cdef stress_plan plan = stress_plan(threads, ops, seed, keys, max_value, clock, move, even)
        cdef stress_result result
        cdef const char *error
        with nogil:
            error = stress_run(self.s, &plan, &result)
        if error != NULL:
            raise AssertionError(error.decode())
        return result

    def direct_give(self):
        """Gives a client the memory: the descriptors of index and arena. Returns when the index has all items."""
        cdef int index_fd, arena_fd
        if not st.store_direct_give(self.s, &index_fd, &arena_fd):
            raise OSError("there is no memory for clients")
        while self.direct_stats()["building"]:
            os.sched_yield()
        self.given = (index_fd, arena_fd)
        return self.given

    def direct_return(self):
        st.store_direct_return(self.s)

    def direct_fds(self):
        """The descriptors given last."""
        return self.given

    def direct_stats(self):
        cdef st.direct_stats stats
        st.store_direct_stats(self.s, &stats)
        return stats

    def direct_end(self):
        st.store_direct_end(self.s)

    def used(self, uint32_t hv, uint64_t place):
        """Notes a client's direct read of the item at this place (item_note_read). Returns False if the item is gone.
        """
        return st.item_note_read(self.s, hv, place)

    def race(self, int threads, uint64_t ops, bytes key, bint use_cas):
        """Each thread adds 1 to the number at key ops times: by incr, or by get and cas. Returns the retries."""
        cdef uint64_t retries = 0
        cdef const char *error
        cdef const char *c_key = key
        cdef size_t nkey = len(key)
        with nogil:
            error = race_run(self.s, threads, ops, c_key, nkey, use_cas, &retries)
        if error != NULL:
            raise AssertionError(error.decode())
        return retries


def hash_of(bytes key):
    """The hash value of a key."""
    return st.store_hash(key, len(key))


def hash_secret():
    """The secrets of the hash function."""
    return (<const char *>&store_secrets)[:sizeof(store_secrets)]


def set_hash_secret(bytes secret):
    """Gives the hash function new secrets. There must be no store."""
    if len(secret) != sizeof(store_secrets):
        raise ValueError("a secret of another length")
    memcpy(&store_secrets, <const char *>secret, sizeof(store_secrets))
    store_secrets.low |= 1


def colliding_keys(int count, int bits):
    """Keys of 16 bytes whose hash values end in so many zero bits."""
    cdef char key[17]
    cdef uint64_t i = 0
    cdef uint32_t mask = (<uint32_t>1 << bits) - 1
    keys = []
    while len(keys) < count:
        snprintf(key, sizeof(key), "%016llx", <unsigned long long>i)
        if st.store_hash(key, 16) & mask == 0:
            keys.append(key[:16])
        i += 1
    return keys
