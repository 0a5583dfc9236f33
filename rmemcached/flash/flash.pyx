"""External storage: flash.pxd has the interface, layout.pxd the whole."""

from libc.errno cimport EAGAIN, EBUSY, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ELOOP, ENOENT, ENOMEM, ENOSPC, ENOSYS, errno
from libc.stdint cimport uintptr_t
from libc.stdio cimport SEEK_END, fprintf, rename, snprintf, stderr
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset, strlen, strncmp, strrchr
from posix.stat cimport S_ISBLK, S_ISDIR, S_ISFIFO, S_ISREG, S_ISSOCK, fstat, stat, struct_stat
from posix.unistd cimport geteuid, lseek, pread, unlink

from rmemcached.logger cimport LOG_EVICTIONS, LOG_SYSEVENTS, LOG_TEXT_MAX, log_text, log_wants, uri_encode
from rmemcached.protocol.conn cimport (
    EXTERNAL_GONE, EXTERNAL_NO_MEMORY, EXTERNAL_THERE, EXTERNAL_WAITS, resp_missed, resp_wait_calls,
)
from rmemcached.store.store cimport (
    COLD_LRU, ITEM_CHUNKED, ITEM_FETCHED, ITEM_FREQUENCY, ITEM_HDR, LRU_MASK, MAX_NUMBER_OF_SLAB_CLASSES,
    SLAB_PAGE_SIZE, ITEM_clsid, ITEM_data, ITEM_get_hdr, ITEM_has, ITEM_key, ITEM_queue, class_room, do_header_move,
    do_header_successor, do_item_remove, do_victim_to_header, header_buffer, header_drop, header_find_locked,
    header_is_hot, header_lock, header_recache, item_exptime, item_iov, item_remove, item_time, item_unlock,
    store_class_of, store_class_room, store_free_pages, store_get_config, store_hash, store_memory_pressure,
    store_pool_least, store_take_victim, store_time, victim_release,
)
from rmemcached.sys.atomics cimport counter_add, fetch_add, load_acquire, relaxed_load, relaxed_store, store_release
from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.files cimport (
    AT_SYMLINK_NOFOLLOW, DIR, O_CREAT, RWF_NOWAIT, allocate_file, closedir, dirent, dirfd, fstatat, lock_file,
    mkostemp, opendir, preadv, preadv2, pwrite, readdir, unlinkat,
)
from rmemcached.sys.io_uring cimport (
    IORING_ENTER_GETEVENTS, IORING_FEAT_NODROP, IORING_FEAT_SINGLE_MMAP, IORING_FEAT_SUBMIT_STABLE, IORING_OFF_SQ_RING,
    IORING_OFF_SQES, IORING_OP_READV, io_uring_cqe, io_uring_enter, io_uring_setup, io_uring_sqe,
)
from rmemcached.sys.linux cimport (
    CLOCK_MONOTONIC, EFD_CLOEXEC, MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, MS_SYNC, O_CLOEXEC,
    O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDWR, PROT_READ, PROT_WRITE, close, eventfd, eventfd_signal, ftruncate,
    getrandom, mmap, msync, munmap, nanosleep, open, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init,
    pthread_cond_signal, pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_destroy, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_join, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, qsort, start_quiet_thread, strerror, timespec,
)

cdef extern from "isa-l.h":
    unsigned int crc32_iscsi(unsigned char *buffer, int length, unsigned int crc) noexcept nogil

cdef extern from *:
    """
    #define RMC_FLASH_CRC_START 0xffffffffU
    """
    const uint32_t CRC_START "RMC_FLASH_CRC_START"

# In the order of the headers in flash.pxd.
include "record.pyx"
include "kept.pyx"
include "pages.pyx"
include "queue.pyx"
include "ring.pyx"
include "io.pyx"
include "fetch.pyx"
include "compactor.pyx"
include "files.pyx"
include "restart.pyx"
include "writer.pyx"
include "life.pyx"
