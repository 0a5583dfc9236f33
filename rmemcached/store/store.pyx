"""The item store: store.pxd has the interface, layout.pxd the design."""

import os

from libc.errno cimport EINVAL, ENOSPC, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.stat cimport S_ISREG, fstat, lstat, struct_stat
from posix.time cimport nanosleep
from posix.unistd cimport dup, geteuid, pread, read, unlink

from rmemcached.direct cimport (
    DIRECT_CLASS_BITS, DIRECT_FLAT, DIRECT_HEADER, DIRECT_LENGTH_BITS, DIRECT_LIFE, DIRECT_MAGIC, DIRECT_PAGE_BITS,
    DIRECT_PLACE_MOST, DIRECT_READ, DIRECT_S3FIFO, DIRECT_SEGMENTED, DIRECT_SLOTS, DIRECT_VERSION, direct_bucket_of,
    direct_bytes, direct_cas, direct_chunk, direct_chunks, direct_item, direct_mix, direct_most, direct_next,
    direct_place, direct_power, direct_seal, direct_seal_at, direct_slot, direct_tag, direct_times,
)
from rmemcached.logger cimport (
    LOG_EVICTIONS, LOG_EXPIRED, LOG_FETCHERS, LOG_FLUSHED, LOG_FOUND, LOG_MUTATIONS, LOG_NOT_FOUND, LOG_SYSEVENTS,
    LOG_TEXT_MAX, log_eviction, log_fetch_status, log_item, log_item_get, log_item_store, log_text, log_wants,
    logger_none,
)
from rmemcached.sys.atomics cimport (
    exchange, fetch_add, fetch_sub, full_fence, load_acquire, prefetch, relaxed_load, relaxed_store,
    relaxed_store_pointer, store_release, write_fence,
)
from rmemcached.sys.clock cimport coarse_ms, now_ns, now_seconds, ns_timespec
from rmemcached.sys.debug cimport (
    LIVE_ITEM_REF, LIVE_STORE, assert_held, assert_no_locks, assert_owner, assert_that, live_add, live_sub,
    lock_next_ranked, lock_ranked, thread_id, trylock_ranked, unlock_ranked,
)
from rmemcached.sys.linux cimport (
    CLOCK_MONOTONIC, EAGAIN, F_ADD_SEALS, F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, HUGE_PAGE,
    LOCK_EX, LOCK_NB, MADV_COLLAPSE, MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_REMOVE, MAP_ANONYMOUS,
    MAP_FAILED, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, MFD_ALLOW_SEALING, MFD_CLOEXEC,
    MS_SYNC, O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR, PROT_NONE, PROT_READ, PROT_WRITE,
    RLIMIT_AS, RLIM_INFINITY, c_time, close, fallocate, fcntl, flock, fstatfs, ftruncate, getrandom, getrlimit,
    has_locked_byte, lock_byte, lock_for_life, madvise, memfd_create, mincore, mmap, mprotect, msync, munmap, open,
    populate, populate_write, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_destroy, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_join, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, read_only, rlimit, sched_yield, snprintf,
    start_quiet_thread, strerror, struct_statfs,
)

# In the order of the headers in store.pxd.
include "hash.pyx"
include "threads.pyx"
include "tell.pyx"
include "memory_file.pyx"
include "clock.pyx"
include "foreign.pyx"
include "arena.pyx"
include "huge.pyx"
include "reserve.pyx"
include "slabs.pyx"
include "assoc.pyx"
include "direct.pyx"
include "ghost.pyx"
include "change.pyx"
include "link.pyx"
include "reassign.pyx"
include "lru.pyx"
include "data.pyx"
include "items.pyx"
include "commands.pyx"
include "headers.pyx"
include "crawler.pyx"
include "stats.pyx"
include "maintainer.pyx"
include "automove.pyx"
include "mover.pyx"
include "recover.pyx"
include "adopt.pyx"
include "cachedump.pyx"
include "life.pyx"
