"""Checks of a debug build: the locks and threads required of callers, and objects left behind.

A build with RMEMCACHED_DEBUG=1, or for a sanitizer, has no NDEBUG. Without NDEBUG a failed assertion writes one line
with file, line, function and condition, and aborts. With NDEBUG the compiler checks the types of the arguments, and the
program never evaluates them. But Cython evaluates `and` and `or` before the macro, even with NDEBUG: so a condition
with `and` or `or` must not call a function.

- ``assert_held(&mutex)``: the calling thread has locked the mutex.
- ``assert_write_held(&lock)``: the calling thread has locked the read-write lock for writing.
- ``assert_read_held(&lock)``: any thread has locked the read-write lock. The C library does not record readers.
- ``assert_owner(id)``: the id is the calling thread's ``thread_id()``, or 0 (no owner yet).
- ``assert_that(condition)``: anything else.

A C unit with ordered locks takes the locks with ``lock_ranked`` and similar functions. A rank is a number below
RMC_RANKS: a thread may wait for a lock only while it holds none of the same or a higher rank.

- ``lock_ranked(&mutex, rank)``, ``unlock_ranked(&mutex, rank)``.
- ``lock_next_ranked(&mutex, rank)``: locks a further mutex of the same rank, in an order defined by the unit.
- ``trylock_ranked(&mutex, rank)``: allowed in any order, since the call does not wait. Returns whether the lock was
  free.
- ``lock_read_ranked(&lock, rank)``, ``lock_write_ranked(&lock, rank)``, ``unlock_rw_ranked(&lock, rank)``: for
  read-write locks.
- ``assert_no_locks()``: the calling thread holds none of the unit's ranked locks.

In a build without checks these are plain calls of pthread.

Live objects are counted by kind, for the whole process: all modules share the counters. Tests read them with
`live_objects()` in debug.pyx.

Only glibc's locks name their owner; with another C library the assertions about locks check nothing.
"""

from libc.stdint cimport int64_t, uint32_t

from rmemcached.sys.atomics cimport fetch_add, fetch_sub
from rmemcached.sys.linux cimport pthread_mutex_t, pthread_rwlock_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    /* The id is not kept in a variable of the thread: after fork the child has a new id. */
    #define rmc_thread_id() ((uint32_t) syscall(SYS_gettid))

    #ifdef NDEBUG
    #define RMC_DEBUG 0
    #define rmc_check(condition, text) ((void) sizeof(condition))
    #else
    #define RMC_DEBUG 1
    #define rmc_check(condition, text)                                                                       \
        do {                                                                                                 \
            if (!(condition)) {                                                                              \
                fprintf(stderr, "rmemcached: %s:%d: %s: " text "\\n", __FILE__, __LINE__, __func__);          \
                abort();                                                                                     \
            }                                                                                                \
        } while (0)
    #endif

    #ifdef __GLIBC__
    #define rmc_mutex_owner(lock) ((uint32_t) __atomic_load_n(&(lock)->__data.__owner, __ATOMIC_RELAXED))
    #define rmc_rwlock_writer(lock) ((uint32_t) __atomic_load_n(&(lock)->__data.__cur_writer, __ATOMIC_RELAXED))
    #define rmc_rwlock_used(lock) (__atomic_load_n(&(lock)->__data.__readers, __ATOMIC_RELAXED) != 0)
    #else
    #define rmc_mutex_owner(lock) rmc_thread_id()
    #define rmc_rwlock_writer(lock) rmc_thread_id()
    #define rmc_rwlock_used(lock) 1
    #endif

    #define rmc_assert_held(lock) \
        rmc_check(rmc_mutex_owner(lock) == rmc_thread_id(), "the caller does not hold the lock " #lock)
    #define rmc_assert_write_held(lock) \
        rmc_check(rmc_rwlock_writer(lock) == rmc_thread_id(), "the caller does not hold for writing " #lock)
    #define rmc_assert_read_held(lock) rmc_check(rmc_rwlock_used(lock), "nobody holds " #lock)
    #define rmc_assert_owner(id) \
        rmc_check((id) == 0 || (id) == rmc_thread_id(), "not called by the thread that owns " #id)
    #define rmc_assert_that(condition) rmc_check(condition, "does not hold: " #condition)

    #ifdef NDEBUG
    #define rmc_lock_ranked(lock, rank) pthread_mutex_lock(lock)
    #define rmc_lock_next_ranked(lock, rank) pthread_mutex_lock(lock)
    #define rmc_trylock_ranked(lock, rank) (pthread_mutex_trylock(lock) == 0)
    #define rmc_unlock_ranked(lock, rank) pthread_mutex_unlock(lock)
    #define rmc_lock_read_ranked(lock, rank) pthread_rwlock_rdlock(lock)
    #define rmc_lock_write_ranked(lock, rank) pthread_rwlock_wrlock(lock)
    #define rmc_unlock_rw_ranked(lock, rank) pthread_rwlock_unlock(lock)
    #define rmc_assert_no_locks() ((void) 0)
    #else
    #define RMC_RANKS 16
    /* How many locks of each rank the thread holds in this C unit. */
    static __thread uint32_t rmc_ranks[RMC_RANKS] __attribute__((unused));

    static inline int rmc_holds_from(int rank)
    {
        while (rank < RMC_RANKS)
            if (rmc_ranks[rank++] != 0)
                return 1;
        return 0;
    }

    #define rmc_lock_above(take, lock, rank, free)                                                           \
        do {                                                                                                 \
            rmc_check(!rmc_holds_from(free), "against the lock order: " #lock);                              \
            take(lock);                                                                                      \
            rmc_ranks[rank]++;                                                                               \
        } while (0)
    #define rmc_lock_ranked(lock, rank) rmc_lock_above(pthread_mutex_lock, lock, rank, rank)
    #define rmc_lock_next_ranked(lock, rank) rmc_lock_above(pthread_mutex_lock, lock, rank, (rank) + 1)
    #define rmc_lock_read_ranked(lock, rank) rmc_lock_above(pthread_rwlock_rdlock, lock, rank, rank)
    #define rmc_lock_write_ranked(lock, rank) rmc_lock_above(pthread_rwlock_wrlock, lock, rank, rank)
    #define rmc_trylock_ranked(lock, rank) (pthread_mutex_trylock(lock) == 0 && ++rmc_ranks[rank] != 0)
    #define rmc_unlock_ranked(lock, rank)                                                                    \
        do {                                                                                                 \
            rmc_assert_held(lock);                                                                           \
            rmc_ranks[rank]--;                                                                               \
            pthread_mutex_unlock(lock);                                                                      \
        } while (0)
    #define rmc_unlock_rw_ranked(lock, rank)                                                                 \
        do {                                                                                                 \
            rmc_assert_read_held(lock);                                                                      \
            rmc_ranks[rank]--;                                                                               \
            pthread_rwlock_unlock(lock);                                                                     \
        } while (0)
    #define rmc_assert_no_locks() rmc_check(!rmc_holds_from(0), "the caller holds a lock")
    #endif
    """
    bint DEBUG_BUILD "RMC_DEBUG"
    uint32_t thread_id "rmc_thread_id"() nogil
    void assert_held "rmc_assert_held"(void *mutex) nogil
    void assert_write_held "rmc_assert_write_held"(void *lock) nogil
    void assert_read_held "rmc_assert_read_held"(void *lock) nogil
    void assert_owner "rmc_assert_owner"(uint32_t id) nogil
    void assert_that "rmc_assert_that"(bint condition) nogil
    void lock_ranked "rmc_lock_ranked"(pthread_mutex_t *mutex, int rank) nogil
    void lock_next_ranked "rmc_lock_next_ranked"(pthread_mutex_t *mutex, int rank) nogil
    bint trylock_ranked "rmc_trylock_ranked"(pthread_mutex_t *mutex, int rank) nogil
    void unlock_ranked "rmc_unlock_ranked"(pthread_mutex_t *mutex, int rank) nogil
    void lock_read_ranked "rmc_lock_read_ranked"(pthread_rwlock_t *lock, int rank) nogil
    void lock_write_ranked "rmc_lock_write_ranked"(pthread_rwlock_t *lock, int rank) nogil
    void unlock_rw_ranked "rmc_unlock_rw_ranked"(pthread_rwlock_t *lock, int rank) nogil
    void assert_no_locks "rmc_assert_no_locks"() nogil

cdef enum live_kind:
    # verbs
    LIVE_CONTEXT
    LIVE_PD
    LIVE_MR
    LIVE_CHANNEL
    LIVE_CQ
    LIVE_SRQ
    LIVE_QP
    # store
    LIVE_STORE
    LIVE_ITEM_REF            # item references held by callers of the store
    # protocol, rdma, server
    LIVE_RESPONSE
    LIVE_CONN
    LIVE_RDMA_DEVICE
    LIVE_RDMA_CONN
    LIVE_LANE
    LIVE_PIN                 # items kept for clients' views
    LIVE_WORKER
    LIVE_SERVER_CONN         # sockets, and connections of rdma_cm, of a worker
    LIVE_UDP_SOCKET
    # client
    LIVE_CLIENT_CONN
    LIVE_CLIENT_LANE
    LIVE_CLIENT_BUFFER
    LIVE_KINDS

cdef int64_t live_counts[LIVE_KINDS]

cdef inline void live_add(live_kind kind) noexcept nogil:
    """Counts a new object. Any thread."""
    if DEBUG_BUILD:
        fetch_add(&live_counts[<int>kind], 1)

cdef inline void live_sub(live_kind kind) noexcept nogil:
    """Counts an object as gone. Any thread."""
    if DEBUG_BUILD:
        fetch_sub(&live_counts[<int>kind], 1)
