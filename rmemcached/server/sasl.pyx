"""Side threads for SASL, and libsasl2's callbacks (see sasl.pxd)."""

import os
import sys

from rmemcached.server.saslconf import INSTEAD
from rmemcached.server.sockets import ServerError

from libc.stddef cimport size_t
from libc.stdio cimport FILE, fclose, fopen, fprintf, snprintf, stderr
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strdup, strlen
from posix.stdio cimport getline

from rmemcached.protocol.conn cimport (
    SASL_AUTH, SASL_AUTHENTICATED, SASL_CHALLENGE, SASL_DELIVERED, SASL_DENIED, SASL_IDLE, SASL_QUEUED, SASL_WORKING,
    conn, sasl_command,
)
from rmemcached.server.sasl_library cimport (
    SASL_CB_GETCONFPATH, SASL_CB_GETOPT, SASL_CB_LIST_END, SASL_CB_LOG, SASL_CB_SERVER_USERDB_CHECKPASS, SASL_CONTINUE,
    SASL_LOG_ERR, SASL_LOG_NONE, SASL_LOG_PASS, SASL_LOG_WARN, SASL_NOAUTHZ, SASL_NOMECH, SASL_OK, sasl_bind,
    sasl_callback, sasl_library,
)
from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.debug cimport assert_held, assert_that
from rmemcached.sys.linux cimport (
    CLOCK_REALTIME, clock_gettime, errno, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init,
    pthread_cond_signal, pthread_cond_t, pthread_cond_timedwait, pthread_cond_wait, pthread_detach,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_t,
    start_thread, strerror, timespec,
)
from rmemcached.sys.wipe cimport explicit_bzero

cdef enum:
    SIDE_THREADS = 16            # at most: so many mechanisms wait at the same time
    STOP_SECONDS = 1             # for side threads to end
    CALLBACKS = 5
    HEAD_MAX = 128               # bytes of a line's beginning on stderr, with a mechanism's name
    LINE_MAX = 2048              # bytes of a line

cdef struct sasl_pool:
    # constant
    sasl_hooks hooks
    sasl_deliver_fn deliver
    sasl_library library
    sasl_callback callbacks[CALLBACKS]
    const uint64_t *verbose
    char *host                   # malloc'd, as the next four: part of user names without a realm. NULL: libsasl2's own
    char *folder                 # of memcached.conf; NULL: there is none
    char *passwords              # MEMCACHED_SASL_PWDB; NULL: there is none
    char *names                  # of the mechanisms
    bint initialized             # libsasl2 wants its `done`
    pthread_mutex_t lock
    pthread_cond_t work          # the queue has a session, or `stopping`
    pthread_cond_t ended         # threads has changed
    # under lock
    sasl_session *head
    sasl_session **tail
    unsigned int threads
    unsigned int idle            # threads in `work`
    bint stopping


# ---- libsasl2's callbacks; context is the pool -----------------------------------------------------------------------

cdef bint same_bytes(const char *a, const char *b, size_t length) noexcept nogil:
    """memcmp whose duration does not depend on the place of the difference."""
    cdef unsigned char difference = 0
    cdef size_t i
    for i in range(length):
        difference |= <unsigned char>a[i] ^ <unsigned char>b[i]
    return difference == 0


cdef bint has_password(const char *line, size_t length, const char *user, const char *password,
                       size_t npassword) noexcept nogil:
    """Whether the line is of this user with this password: user:password, and perhaps a colon with more behind it."""
    cdef size_t nuser = strlen(user)
    cdef size_t rest
    while length and (line[length - 1] == c'\n' or line[length - 1] == c'\r'):
        length -= 1
    if length <= nuser or line[nuser] != c':' or not same_bytes(line, user, nuser):
        return False
    rest = length - nuser - 1
    return (rest == npassword or (rest > npassword and line[nuser + 1 + npassword] == c':')) and same_bytes(
        line + nuser + 1, password, npassword)


cdef int check_password(void *library_conn, void *context, const char *user, const char *password,
                        unsigned int npassword, void *properties) noexcept nogil:
    """SASL_CB_SERVER_USERDB_CHECKPASS: looks into the file of MEMCACHED_SASL_PWDB. libsasl2 then asks its own users."""
    cdef sasl_pool *pool = <sasl_pool *>context
    cdef FILE *file = fopen(pool.passwords, b"re")
    cdef char *line = NULL
    cdef size_t size = 0
    cdef ssize_t n
    cdef bint found = False
    if file == NULL:
        if relaxed_load(pool.verbose):
            fprintf(stderr, b"SASL: %s: %s\n", pool.passwords, strerror(errno))
        return SASL_NOAUTHZ
    while True:
        n = getline(&line, &size, file)
        if n < 0:
            break
        found |= has_password(line, <size_t>n, user, password, npassword)
    if line != NULL:
        explicit_bzero(line, size)
    free(line)
    fclose(file)
    return SASL_OK if found else SASL_NOAUTHZ


cdef char *escape(const char *text, char *out, const char *end) noexcept nogil:
    """Writes the text so that a terminal and a reader of lines see no more than letters: \\x1b for a byte that is none.
    Returns the end of the text; a text that does not fit is cut. `end` is the end of the room."""
    cdef const char *digits = b"0123456789abcdef"
    cdef unsigned char byte
    while text[0] and end - out >= 4:
        byte = <unsigned char>text[0]
        if 0x20 <= byte <= 0x7e:
            out[0] = text[0]
            out += 1
        else:
            out[0], out[1], out[2], out[3] = c'\\', c'x', digits[byte >> 4], digits[byte & 15]
            out += 4
        text += 1
    return out


cdef void print_escaped(const char *head, const char *text) noexcept nogil:
    """A line on stderr: both texts may have a client's bytes."""
    cdef char line[LINE_MAX]
    cdef char *at = escape(head, line, line + LINE_MAX)
    at = escape(b": ", at, line + LINE_MAX)
    at = escape(text, at, line + LINE_MAX)
    fprintf(stderr, b"%.*s\n", <int>(at - line), line)


cdef int log_line(void *context, int level, const char *message) noexcept nogil:
    """SASL_CB_LOG. As in memcached, errors are always written, warnings with -v, and all else with -vv; but never
    passwords."""
    cdef sasl_pool *pool = <sasl_pool *>context
    cdef char head[HEAD_MAX]
    cdef uint64_t wanted = 0 if level == SASL_LOG_ERR else 1 if level <= SASL_LOG_WARN else 2
    if level != SASL_LOG_NONE and level < SASL_LOG_PASS and relaxed_load(pool.verbose) >= wanted:
        snprintf(head, sizeof(head), b"SASL (severity %d)", level)
        print_escaped(head, message)
    return SASL_OK


cdef int conf_path(void *context, const char **path) noexcept nogil:
    """SASL_CB_GETCONFPATH"""
    cdef sasl_pool *pool = <sasl_pool *>context
    cdef const char *nowhere = b"/nonexistent"
    path[0] = <const char *>pool.folder if pool.folder != NULL else nowhere
    return SASL_OK


cdef int get_option(void *context, const char *plugin, const char *option, const char **result,
                    unsigned int *length) noexcept nogil:
    """SASL_CB_GETOPT, without memcached.conf: only PLAIN can ask MEMCACHED_SASL_PWDB."""
    cdef const char *name = b"mech_list"
    cdef const char *plain = b"PLAIN"
    if strlen(option) != strlen(name) or not same_bytes(option, name, strlen(name)):
        return SASL_NOMECH
    result[0] = plain
    if length != NULL:
        length[0] = <unsigned int>strlen(plain)
    return SASL_OK


ctypedef int (*callback_fn)() noexcept nogil


cdef void set_callbacks(sasl_pool *pool) noexcept nogil:
    cdef sasl_callback *at = pool.callbacks
    at[0].id = SASL_CB_LOG
    at[0].proc = <callback_fn>log_line
    at[1].id = SASL_CB_GETCONFPATH
    at[1].proc = <callback_fn>conf_path
    at += 2
    if pool.passwords != NULL:
        at.id = SASL_CB_SERVER_USERDB_CHECKPASS
        at.proc = <callback_fn>check_password
        at += 1
    if pool.folder == NULL:
        at.id = SASL_CB_GETOPT
        at.proc = <callback_fn>get_option
        at += 1
    at.id = SASL_CB_LIST_END
    while at != pool.callbacks:
        at -= 1
        at.context = pool


# ---- a session's work ------------------------------------------------------------------------------------------------

cdef void session_free(sasl_pool *pool, sasl_session *s) noexcept nogil:
    if s.mechanism != NULL:
        pool.library.dispose(&s.mechanism)
    forget_request(s)
    free(s)


cdef void forget_request(sasl_session *s) noexcept nogil:
    """Frees the client's data, which may have a password."""
    if s.request != NULL:
        explicit_bzero(s.request, s.nname + 1 + s.nrequest)
        free(s.request)
        s.request = NULL


cdef int ask_library(sasl_pool *pool, sasl_session *s) noexcept nogil:
    """Does the session's command. May wait."""
    cdef int result = SASL_OK
    cdef const char *data = s.request + s.nname + 1 if s.nrequest else NULL
    s.challenge = NULL
    s.nchallenge = 0
    if s.command != SASL_AUTH:
        return pool.library.server_step(s.mechanism, data, s.nrequest, &s.challenge, &s.nchallenge)
    if s.mechanism != NULL:
        pool.library.dispose(&s.mechanism)
    result = pool.library.server_new(b"memcached", pool.host, NULL, NULL, NULL, NULL, 0, &s.mechanism)
    if result != SASL_OK:
        return result
    return pool.library.server_start(s.mechanism, s.request, data, s.nrequest, &s.challenge, &s.nchallenge)


cdef void work(sasl_pool *pool, sasl_session *s) noexcept nogil:
    cdef char head[HEAD_MAX]
    cdef int result = ask_library(pool, s)
    if result == SASL_CONTINUE:
        s.outcome = SASL_CHALLENGE
    else:
        s.outcome = SASL_AUTHENTICATED if result == SASL_OK else SASL_DENIED
        if result != SASL_OK and relaxed_load(pool.verbose):
            snprintf(head, sizeof(head), b"SASL: %s refuses a client (%d)", s.request, result)
            print_escaped(head, pool.library.errdetail(s.mechanism) if s.mechanism != NULL else
                          pool.library.errstring(result, NULL, NULL))
        if s.mechanism != NULL:
            pool.library.dispose(&s.mechanism)
    forget_request(s)


# ---- side threads ----------------------------------------------------------------------------------------------------

cdef void enqueue_locked(sasl_pool *pool, sasl_session *s) noexcept nogil:
    assert_held(&pool.lock)
    s.place = SASL_QUEUED
    s.next = NULL
    pool.tail[0] = s
    pool.tail = &s.next


cdef sasl_session *dequeue_locked(sasl_pool *pool) noexcept nogil:
    """The first session of the queue; NULL: there is none."""
    cdef sasl_session *s = pool.head
    assert_held(&pool.lock)
    if s != NULL:
        pool.head = s.next
        if pool.head == NULL:
            pool.tail = &pool.head
    return s


cdef void serve_locked(sasl_pool *pool, sasl_session *s) noexcept nogil:
    """Does a session's command without the lock, and delivers or frees the session."""
    cdef bint gone = s.c == NULL
    assert_held(&pool.lock)
    s.place = SASL_WORKING
    if pool.head != NULL:
        # This thread may wait long.
        wake_locked(pool)
    pthread_mutex_unlock(&pool.lock)
    if not gone:
        work(pool, s)
    pthread_mutex_lock(&pool.lock)
    if s.c == NULL:
        pthread_mutex_unlock(&pool.lock)
        session_free(pool, s)
        pthread_mutex_lock(&pool.lock)
    elif pool.stopping:
        s.place = SASL_IDLE
    else:
        s.place = SASL_DELIVERED
        pool.deliver(s)


cdef void *side_main(void *arg) noexcept nogil:
    cdef sasl_pool *pool = <sasl_pool *>arg
    cdef sasl_session *s
    pthread_mutex_lock(&pool.lock)
    while not pool.stopping:
        s = dequeue_locked(pool)
        if s != NULL:
            serve_locked(pool, s)
        else:
            pool.idle += 1
            pthread_cond_wait(&pool.work, &pool.lock)
            pool.idle -= 1
    pool.threads -= 1
    pthread_cond_signal(&pool.ended)
    pthread_mutex_unlock(&pool.lock)
    return NULL


cdef int add_thread_locked(sasl_pool *pool) noexcept nogil:
    cdef pthread_t id
    cdef int err
    assert_held(&pool.lock)
    err = start_thread(&id, b"mc-sasl", side_main, pool)
    if err == 0:
        pool.threads += 1
        pthread_detach(id)
    return err


cdef void wake_locked(sasl_pool *pool) noexcept nogil:
    """Lets a thread take the queue's sessions: an idle thread, or a new thread."""
    assert_held(&pool.lock)
    if pool.idle:
        pthread_cond_signal(&pool.work)
    elif pool.threads < SIDE_THREADS:
        # Without memory for one more thread, those there are go on.
        add_thread_locked(pool)


# ---- sasl_hooks: any worker ------------------------------------------------------------------------------------------

cdef bint hook_begin(void *arg, conn *c, sasl_command command, const char *name, size_t nname, const char *data,
                     size_t length) noexcept nogil:
    cdef sasl_pool *pool = <sasl_pool *>arg
    cdef sasl_session *s = c.sasl
    cdef char *request = <char *>malloc(nname + 1 + length)
    if s == NULL and request != NULL:
        s = <sasl_session *>calloc(1, sizeof(sasl_session))
    if s == NULL or request == NULL:
        free(request)
        return False
    if c.sasl == NULL:
        s.c = c
        s.thread = c.thread
        c.sasl = s
    assert_that(s.place == SASL_IDLE)
    memcpy(request, name, nname)
    request[nname] = 0
    memcpy(request + nname + 1, data, length)
    s.request = request
    s.nname = <unsigned int>nname
    s.nrequest = <unsigned int>length
    s.command = command
    pthread_mutex_lock(&pool.lock)
    enqueue_locked(pool, s)
    wake_locked(pool)
    pthread_mutex_unlock(&pool.lock)
    return True


cdef bint hook_take(void *arg, sasl_session *s) noexcept nogil:
    cdef sasl_pool *pool = <sasl_pool *>arg
    pthread_mutex_lock(&pool.lock)
    s.place = SASL_IDLE
    pthread_mutex_unlock(&pool.lock)
    if s.c != NULL:
        return True
    hook_end(pool, s)
    return False


cdef void hook_end(void *arg, sasl_session *s) noexcept nogil:
    cdef sasl_pool *pool = <sasl_pool *>arg
    cdef bint here
    pthread_mutex_lock(&pool.lock)
    s.c = NULL
    here = s.place == SASL_IDLE and (s.mechanism == NULL or pool.stopping)
    if s.place == SASL_IDLE and not here:
        # A mechanism may wait at its end, too.
        enqueue_locked(pool, s)
        wake_locked(pool)
    pthread_mutex_unlock(&pool.lock)
    if here:
        session_free(pool, s)


# ---- beginning and end -----------------------------------------------------------------------------------------------

cdef void pool_free(sasl_pool *pool) noexcept nogil:
    if pool.initialized:
        pool.library.done()
    free(pool.host)
    free(pool.folder)
    free(pool.passwords)
    free(pool.names)
    pthread_cond_destroy(&pool.work)
    pthread_cond_destroy(&pool.ended)
    pthread_mutex_destroy(&pool.lock)
    free(pool)


cdef char *copy_of(text) except? NULL:
    """malloc'd; NULL for None."""
    cdef char *copy
    if text is None:
        return NULL
    encoded = os.fsencode(text)
    copy = strdup(encoded)
    if copy == NULL:
        raise MemoryError()
    return copy


cdef object list_mechanisms(sasl_pool *pool):
    """Fills pool.names. Returns why there are no mechanisms, or None."""
    cdef void *mechanism = NULL
    cdef const char *names = NULL
    cdef unsigned int length = 0
    cdef int result = pool.library.server_new(b"memcached", pool.host, NULL, NULL, NULL, NULL, 0, &mechanism)
    why = None
    if result == SASL_OK:
        result = pool.library.listmech(mechanism, NULL, b"", b" ", b"", &names, &length, NULL)
    if result == SASL_OK and length:
        pool.names = strdup(names)
        if pool.names == NULL:
            raise MemoryError()
        pool.hooks.mechanisms = pool.names
        pool.hooks.nmechanisms = length
    else:
        why = (<bytes>pool.library.errstring(result, NULL, NULL)).decode(errors="replace")
    if mechanism != NULL:
        pool.library.dispose(&mechanism)
    return why


cdef void open_library(sasl_pool *pool, folder) except *:
    """Loads libsasl2 and its plugins. Raises ServerError."""
    cdef int result
    place = f"{folder}/memcached.conf" if folder is not None else "MEMCACHED_SASL_PWDB without a memcached.conf"
    if not sasl_bind(&pool.library):
        raise ServerError(
            f"SASL: no usable libsasl2.so.2 is installed (Debian: libsasl2-2, libsasl2-modules) {INSTEAD}",
            os.EX_UNAVAILABLE)
    result = pool.library.server_init(pool.callbacks, b"memcached")
    if result != SASL_OK:
        why = (<bytes>pool.library.errstring(result, NULL, NULL)).decode(errors="replace")
        raise ServerError(f"SASL: libsasl2 does not start with {place}: {why} {INSTEAD}", os.EX_CONFIG)
    pool.initialized = True
    why = list_mechanisms(pool)
    if why is not None:
        raise ServerError(
            f"SASL: no mechanism is available: none of mech_list in {place} is installed (Debian: libsasl2-modules):"
            f" {why} {INSTEAD}", os.EX_CONFIG)
    if b"ANONYMOUS" in pool.names.split():
        print(f"WARNING: SASL: the mechanism ANONYMOUS lets everybody in: leave it out of mech_list in {place}",
              file=sys.stderr)


cdef sasl_pool *sasl_create(folder, passwords, const uint64_t *verbose, sasl_deliver_fn deliver) except NULL:
    cdef sasl_pool *pool = <sasl_pool *>calloc(1, sizeof(sasl_pool))
    if pool == NULL:
        raise MemoryError()
    pthread_mutex_init(&pool.lock, NULL)
    pthread_cond_init(&pool.work, NULL)
    pthread_cond_init(&pool.ended, NULL)
    pool.tail = &pool.head
    pool.verbose = verbose
    pool.deliver = deliver
    pool.hooks.arg = pool
    pool.hooks.begin = hook_begin
    pool.hooks.take = hook_take
    pool.hooks.end = hook_end
    try:
        pool.host = copy_of(os.uname().nodename or None)
        pool.folder = copy_of(folder)
        pool.passwords = copy_of(passwords)
        set_callbacks(pool)
        open_library(pool, folder)
    except BaseException:
        pool_free(pool)
        raise
    return pool


cdef const sasl_hooks *sasl_get_hooks(const sasl_pool *pool) noexcept nogil:
    return &pool.hooks


cdef int sasl_start(sasl_pool *pool) noexcept nogil:
    cdef int err
    pthread_mutex_lock(&pool.lock)
    err = add_thread_locked(pool)
    pthread_mutex_unlock(&pool.lock)
    return err


cdef void sasl_stop(sasl_pool *pool) noexcept nogil:
    cdef timespec until
    cdef sasl_session *s
    cdef sasl_session *left = NULL
    pthread_mutex_lock(&pool.lock)
    pool.stopping = True
    while pool.head != NULL:
        s = dequeue_locked(pool)
        s.place = SASL_IDLE
        if s.c == NULL:
            s.next = left
            left = s
    pthread_cond_broadcast(&pool.work)
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_sec += STOP_SECONDS
    while pool.threads and pthread_cond_timedwait(&pool.ended, &pool.lock, &until) == 0:
        pass
    pthread_mutex_unlock(&pool.lock)
    while left != NULL:
        s = left
        left = s.next
        session_free(pool, s)


cdef void sasl_destroy(sasl_pool *pool) noexcept nogil:
    cdef bint held
    pthread_mutex_lock(&pool.lock)
    held = pool.threads != 0
    pthread_mutex_unlock(&pool.lock)
    if not held:
        pool_free(pool)
