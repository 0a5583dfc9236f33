"""The pool of threads for TLS handshakes (see handshakes.pxd)."""

from libc.stdlib cimport calloc, free

from rmemcached.streams.tls cimport tls_handshake
from rmemcached.sys.linux cimport (
    PRIO_PROCESS, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_t, pthread_cond_wait, pthread_join, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_t, setpriority, start_thread,
)

cdef enum:
    HANDSHAKE_NICE = 10          # below the workers

cdef struct handshakes:
    # constant after handshakes_start
    handshake_done_fn done
    unsigned int nthreads
    unsigned int started
    pthread_t *threads
    # under lock
    pthread_mutex_t lock
    pthread_cond_t work          # something is in the queue, or `stop` is set
    tls_session *head
    tls_session **tail
    bint stop


cdef void *handshake_main(void *arg) noexcept nogil:
    """The main function of a thread of the pool."""
    cdef handshakes *h = <handshakes *>arg
    cdef tls_session *x
    setpriority(PRIO_PROCESS, 0, HANDSHAKE_NICE)
    pthread_mutex_lock(&h.lock)
    while True:
        while h.head == NULL and not h.stop:
            pthread_cond_wait(&h.work, &h.lock)
        if h.stop:
            pthread_mutex_unlock(&h.lock)
            return NULL
        x = h.head
        h.head = x.next
        if h.head == NULL:
            h.tail = &h.head
        pthread_mutex_unlock(&h.lock)
        x.result = tls_handshake(x)
        h.done(x.owner)
        pthread_mutex_lock(&h.lock)


cdef handshakes *handshakes_create(unsigned int threads, handshake_done_fn done) noexcept nogil:
    cdef handshakes *h = <handshakes *>calloc(1, sizeof(handshakes))
    if h == NULL:
        return NULL
    h.threads = <pthread_t *>calloc(threads, sizeof(pthread_t))
    if h.threads == NULL:
        free(h)
        return NULL
    h.done = done
    h.nthreads = threads
    h.tail = &h.head
    pthread_mutex_init(&h.lock, NULL)
    pthread_cond_init(&h.work, NULL)
    return h


cdef int handshakes_start(handshakes *h) noexcept nogil:
    cdef int err = 0
    while err == 0 and h.started < h.nthreads:
        err = start_thread(&h.threads[h.started], b"mc-tls", handshake_main, h)
        h.started += err == 0
    return err


cdef void handshakes_destroy(handshakes *h) noexcept nogil:
    cdef unsigned int i
    pthread_mutex_lock(&h.lock)
    h.stop = True
    pthread_cond_broadcast(&h.work)
    pthread_mutex_unlock(&h.lock)
    for i in range(h.started):
        pthread_join(h.threads[i], NULL)
    pthread_cond_destroy(&h.work)
    pthread_mutex_destroy(&h.lock)
    free(h.threads)
    free(h)


cdef void handshakes_add(handshakes *h, tls_session *x, void *owner) noexcept nogil:
    x.owner = owner
    x.next = NULL
    pthread_mutex_lock(&h.lock)
    h.tail[0] = x
    h.tail = &x.next
    pthread_cond_signal(&h.work)
    pthread_mutex_unlock(&h.lock)
