cdef extern from *:
    """
    /* The calling thread's buffer: short replies gathered for a record. */
    static __thread char *rmc_tls_buffer;
    """
    char *thread_buffer "rmc_tls_buffer"

cdef enum:
    READS = 2                    # of the socket in a receive, for each read of OpenSSL's: head and rest of a record
    RECORDS_IN = 64              # records taken in a receive
    RENEWALS = 4                 # of the peer's keys without data in between: more is an attack on the worker's time

cdef BIO_METHOD *socket_method = NULL    # constant after session_method
cdef pthread_key_t buffer_key            # ends a thread's buffer with the thread


# ---- the BIO ---------------------------------------------------------------------------------------------------------

cdef int bio_write(BIO *bio, const char *data, int length) noexcept nogil:
    cdef tls_session *x = <tls_session *>openssl.BIO_get_data(bio)
    cdef ssize_t n
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY)
    n = send(x.stream.fd, data, <size_t>length, MSG_NOSIGNAL | MSG_MORE if x.more else MSG_NOSIGNAL)
    if n < 0 and (errno == EAGAIN or errno == EINTR):
        openssl.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY)
    return <int>n


cdef int bio_read(BIO *bio, char *out, int room) noexcept nogil:
    cdef tls_session *x = <tls_session *>openssl.BIO_get_data(bio)
    cdef ssize_t n
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY)
    if x.ready and x.reads == 0:
        x.spent = True
        openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        return -1
    x.reads -= x.ready
    n = recv(x.stream.fd, out, <size_t>room, 0)
    if n < 0 and (errno == EAGAIN or errno == EINTR):
        x.spent = errno == EINTR
        openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
    x.ended = n == 0
    x.touched |= n > 0
    return <int>n


cdef long bio_ctrl(BIO *bio, int command, long number, void *pointer) noexcept nogil:
    if command == BIO_CTRL_EOF:
        return (<tls_session *>openssl.BIO_get_data(bio)).ended
    return command == BIO_CTRL_FLUSH


cdef void free_buffer(void *buffer) noexcept nogil:
    """Called at the end of a thread with a buffer."""
    free(buffer)


cdef BIO_METHOD *session_method() noexcept nogil:
    global socket_method
    if socket_method == NULL and pthread_key_create(&buffer_key, free_buffer) == 0:
        socket_method = openssl.BIO_meth_new(openssl.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, b"rmemcached socket")
        if socket_method != NULL:
            openssl.BIO_meth_set_write(socket_method, bio_write)
            openssl.BIO_meth_set_read(socket_method, bio_read)
            openssl.BIO_meth_set_ctrl(socket_method, bio_ctrl)
    return socket_method


cdef inline char *own_buffer() noexcept nogil:
    """The thread's buffer, of TLS_RECORD bytes. NULL: out of memory."""
    global thread_buffer
    if thread_buffer == NULL:
        thread_buffer = <char *>malloc(TLS_RECORD)
        pthread_setspecific(buffer_key, thread_buffer)
    return thread_buffer


# ---- errors ----------------------------------------------------------------------------------------------------------

cdef void report(tls_session *x, uint64_t *counter, int error, int system_error) noexcept nogil:
    """Counts and tells an error of OpenSSL. An error of the socket is not counted."""
    cdef char reason[TLS_REASON_MAX]
    tls_take_error(reason)
    if reason[0] == 0:
        snprintf(reason, TLS_REASON_MAX, b"%s", strerror(system_error))
    x.broken = True
    if error != SSL_ERROR_SYSCALL or counter == &x.context.handshake_errors:
        fetch_add(counter, 1)
    if x.told != NULL:
        memcpy(x.told, reason, TLS_REASON_MAX)
    if x.context.tell != NULL:
        x.context.tell(x.context.tell_arg, x, reason)


# ---- the handshake ---------------------------------------------------------------------------------------------------

cdef void session_renewed(SSL *ssl) noexcept nogil:
    cdef tls_session *x = <tls_session *>openssl.SSL_get_ex_data(ssl, OUR_DATA)
    if not x.ready or x.renewals > RENEWALS:
        return
    x.renewals += 1
    x.stream.renewed += 1
    if x.renewals > RENEWALS:
        # OpenSSL may hold many more renewals, read from the socket already. This stops it before the next one.
        openssl.SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN)


cdef bint open_ssl(tls_session *x) noexcept nogil:
    cdef SSL *ssl = tls_new_ssl(x.context, x.mode)
    cdef BIO *bio = NULL
    if ssl == NULL:
        return False
    if x.context.options.kernel:
        openssl.SSL_set_fd(ssl, x.stream.fd)
    else:
        bio = openssl.BIO_new(x.context.method)
        if bio == NULL:
            openssl.SSL_free(ssl)
            return False
        openssl.BIO_set_data(bio, x)
        openssl.BIO_set_init(bio, 1)
        openssl.SSL_set_bio(ssl, bio, bio)
    openssl.SSL_set_ex_data(ssl, OUR_DATA, x)
    x.ssl = ssl
    return True


cdef handshake_result tls_handshake(tls_session *x) noexcept nogil:
    cdef int n, error, system_error
    if x.ssl == NULL and not open_ssl(x):
        fetch_add(&x.context.handshake_errors, 1)
        return HANDSHAKE_FAILED
    set_errno(0)
    openssl.ERR_clear_error()
    n = openssl.SSL_do_handshake(x.ssl)
    system_error = errno
    if n == 1 and x.keyed and not openssl.SSL_session_reused(x.ssl):
        # The peer has named a key, but has not used the key.
        n = -1
        system_error = EPROTO
    if n == 1:
        x.ready = True
        # Data may have come with the end of the handshake.
        x.stream.held = openssl.SSL_has_pending(x.ssl)
        return HANDSHAKE_DONE
    error = openssl.SSL_get_error(x.ssl, n)
    if error == SSL_ERROR_WANT_READ:
        openssl.ERR_clear_error()
        return HANDSHAKE_READS
    if error == SSL_ERROR_WANT_WRITE:
        openssl.ERR_clear_error()
        return HANDSHAKE_WRITES
    if x.ended and not x.touched:
        # Somebody has looked whether the port is open.
        openssl.ERR_clear_error()
    else:
        report(x, &x.context.handshake_errors, error, system_error)
    return HANDSHAKE_FAILED


cdef bint tls_begin(tls_context *t, tls_mode mode, stream *s) noexcept nogil:
    cdef tls_session *x = <tls_session *>calloc(1, sizeof(tls_session))
    if x == NULL:
        return False
    x.context = t
    x.mode = mode
    x.stream = s
    s.calls = &tls_stream
    s.state = x
    return True


cdef void tls_abandon(stream *s) noexcept nogil:
    free(s.state)
    s.state = NULL


# ---- input -----------------------------------------------------------------------------------------------------------

cdef ssize_t receive_failed(tls_session *x, int n, int system_error) noexcept nogil:
    """The result of a receive after a read of OpenSSL's without data."""
    cdef int error = openssl.SSL_get_error(x.ssl, n)
    if x.renewals > RENEWALS:
        report(x, &x.context.proto_errors, SSL_ERROR_SSL, EPROTO)
        set_errno(EPROTO)
        return -1
    if error == SSL_ERROR_ZERO_RETURN:
        return 0
    if error == SSL_ERROR_WANT_READ or error == SSL_ERROR_WANT_WRITE:
        # An answer of OpenSSL's own, to a renewal of keys, may wait for room in the socket.
        x.stream.blocked = error == SSL_ERROR_WANT_WRITE
        openssl.ERR_clear_error()
        set_errno(EAGAIN)
        return -1
    report(x, &x.context.proto_errors, error, system_error)
    set_errno(EPROTO)
    return -1


cdef inline size_t most_room(const tls_session *x, size_t room) noexcept nogil:
    """How many bytes to read at once. With the kernel's TLS OpenSSL reads the socket itself, but not for held bytes."""
    if x.stream.held_only and x.context.options.kernel:
        room = min(room, <size_t>openssl.SSL_pending(x.ssl))
    return min(room, <size_t>TLS_RECORD)


cdef ssize_t tls_receive_into(stream *s, const iovec *iov, int count) noexcept nogil:
    """stream_calls.receive_into. Takes all records at hand, RECORDS_IN at most, and fewer if keys are renewed between
    them."""
    cdef tls_session *x = <tls_session *>s.state
    cdef size_t total = 0
    cdef size_t at = 0
    cdef size_t room
    cdef ssize_t end
    cdef int n
    cdef int i = 0
    cdef int renewals = 0
    s.held = s.blocked = False
    s.renewed = 0
    if x.broken:
        set_errno(EPROTO)
        return -1
    for _ in range(RECORDS_IN):
        room = most_room(x, iov[i].iov_len - at)
        if room == 0:
            break
        x.reads = 0 if s.held_only else READS
        x.spent = False
        set_errno(0)
        openssl.ERR_clear_error()
        n = openssl.SSL_read(x.ssl, <char *>iov[i].iov_base + at, <int>room)
        if n <= 0:
            end = receive_failed(x, n, errno)
            # The next receive meets the end, or the error, again.
            s.held = (x.spent and not s.held_only) or (total != 0 and (end == 0 or errno != EAGAIN or s.blocked))
            return <ssize_t>total if total else end
        renewals += x.renewals
        x.renewals = 0
        total += <size_t>n
        at += <size_t>n
        if at == iov[i].iov_len:
            at = 0
            i += 1
        if i == count or renewals >= RENEWALS:
            break
        if not openssl.SSL_has_pending(x.ssl):
            return <ssize_t>total
    s.held = openssl.SSL_has_pending(x.ssl)
    if total == 0:
        set_errno(EAGAIN)
        return -1
    return <ssize_t>total


cdef ssize_t tls_receive(stream *s, void *buffer, size_t room) noexcept nogil:
    """stream_calls.receive"""
    cdef iovec piece
    piece.iov_base = buffer
    piece.iov_len = room
    return tls_receive_into(s, &piece, 1)


# ---- output ----------------------------------------------------------------------------------------------------------

cdef char[TLS_RECORD] nothing

cdef struct output:              # what tls_send has to encrypt
    const iovec *iov
    int count
    size_t at                    # bytes taken of iov[0]


cdef inline void advance(output *o, size_t n) noexcept nogil:
    o.at += n
    while o.count and o.at >= o.iov[0].iov_len:
        o.at -= o.iov[0].iov_len
        o.iov += 1
        o.count -= 1


cdef size_t look(const output *o, char *gather, size_t room, const void **chunk) noexcept nogil:
    """Finds the contents of the next record: a whole record in its place, or shorter pieces gathered. Returns their
    length; 0: nothing is left."""
    cdef output rest = o[0]
    cdef size_t used = 0
    cdef size_t n
    if rest.count and rest.iov[0].iov_len - rest.at >= TLS_RECORD:
        chunk[0] = <char *>rest.iov[0].iov_base + rest.at
        return TLS_RECORD
    chunk[0] = gather
    while rest.count and used < room:
        n = min(rest.iov[0].iov_len - rest.at, room - used)
        memcpy(gather + used, <char *>rest.iov[0].iov_base + rest.at, n)
        used += n
        advance(&rest, n)
    return used


cdef int encrypt(tls_session *x, const void *chunk, size_t length) noexcept nogil:
    """Sends a record. Returns the bytes in it; 0: the socket is full; -1: errno. OpenSSL keeps a record that the socket
    has not taken whole, and the next call, with the same bytes or more, sends the rest."""
    cdef int n, error, system_error
    openssl.ERR_clear_error()
    n = openssl.SSL_write(x.ssl, chunk, <int>length)
    system_error = errno
    if n > 0:
        return n
    error = openssl.SSL_get_error(x.ssl, n)
    if error == SSL_ERROR_WANT_WRITE:
        openssl.ERR_clear_error()
        return 0
    if error == SSL_ERROR_WANT_READ:
        # The peer has sent a part of a handshake's message, behind which OpenSSL sends nothing before the rest. The
        # socket has room: a wait for room would end at once, again and again.
        error, system_error = SSL_ERROR_SSL, EPROTO
    report(x, &x.context.proto_errors, error, system_error)
    set_errno(EPROTO)
    return -1


cdef bint send_owed(tls_session *x) noexcept nogil:
    """Sends the rest of a record that a send has taken (stream.keeps). False: errno."""
    cdef int n = 1
    if x.owed:
        # OpenSSL looks at the length alone: it has encrypted the record.
        n = encrypt(x, nothing, <size_t>x.owed)
    if n > 0:
        x.owed = 0
        x.stream.owes = False
    elif n == 0:
        set_errno(EAGAIN)
    return n > 0


cdef ssize_t tls_send(stream *s, const iovec *iov, int count) noexcept nogil:
    """stream_calls.send. Encrypts from the items' memory, a record for each system call; the kernel joins the
    records."""
    cdef tls_session *x = <tls_session *>s.state
    cdef output o = output(iov, count, 0)
    cdef const void *chunk
    cdef size_t sent = 0
    cdef size_t total = 0
    cdef size_t length
    cdef size_t room = min(<size_t>x.context.options.wbuf_size, <size_t>TLS_RECORD)
    cdef char *gather = own_buffer()
    cdef int n = 0
    if x.broken or gather == NULL:
        set_errno(EPROTO if x.broken else ENOMEM)
        return -1
    if not send_owed(x):
        return -1
    for n in range(count):
        total += iov[n].iov_len
    while sent < total:
        length = look(&o, gather, room, &chunk)
        x.more = sent + length < total
        n = encrypt(x, chunk, length)
        # The socket may be full of an answer to a renewal of keys, which goes first: then nothing is taken.
        if n == 0 and s.keeps and not openssl.SSL_in_init(x.ssl):
            x.owed = <int>length
            s.owes = True
            sent += length
        if n <= 0:
            break
        sent += <size_t>n
        advance(&o, <size_t>n)
    x.more = False
    if sent or total == 0:
        return <ssize_t>sent
    if n == 0:
        set_errno(EAGAIN)
    return -1


# ---- the end ---------------------------------------------------------------------------------------------------------

cdef void tls_end(stream *s) noexcept nogil:
    """stream_calls.end"""
    cdef tls_session *x = <tls_session *>s.state
    if x.ssl != NULL:
        openssl.ERR_clear_error()
        if x.ready and not x.broken:
            openssl.SSL_shutdown(x.ssl)
        openssl.ERR_clear_error()
        openssl.SSL_free(x.ssl)
    free(x)
    s.state = NULL
    close(s.fd)
    s.fd = -1


cdef void tls_moved(stream *s) noexcept nogil:
    """stream_calls.moved"""
    (<tls_session *>s.state).stream = s


tls_stream = stream_calls(
    receive=tls_receive, receive_into=tls_receive_into, send=tls_send, end=tls_end, moved=tls_moved)
