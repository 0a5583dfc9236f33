cdef enum:
    SECOND = 1000000000          # ns

cdef const char *KEY_CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"    # a key is for SHA-256
cdef tls_options client_options  # of all clients' contexts


cdef int tls_verify_mode(unsigned int number) noexcept nogil:
    cdef int[4] modes = [
        SSL_VERIFY_NONE, SSL_VERIFY_PEER, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
        SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT | SSL_VERIFY_CLIENT_ONCE,
    ]
    return modes[number & 3]


cdef int tls_version(unsigned int number) noexcept nogil:
    cdef int[4] versions = [TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION]
    return versions[number & 3]


cdef const char *tls_version_name(int version) noexcept nogil:
    cdef const char *names[4]
    cdef int i
    names[0], names[1], names[2], names[3] = b"tlsv1.0", b"tlsv1.1", b"tlsv1.2", b"tlsv1.3"
    for i in range(4):
        if version == tls_version(<unsigned int>i):
            return names[i]
    return b"unknown"


cdef void tls_take_error(char *out) noexcept nogil:
    cdef unsigned long error = openssl.ERR_get_error()
    out[0] = 0
    if error:
        openssl.ERR_error_string_n(error, out, TLS_REASON_MAX)
    openssl.ERR_clear_error()


cdef int no_password(char *out, int size, int writing, void *arg) noexcept nogil:
    """OpenSSL's password_fn: a running daemon asks nobody for the password of a key."""
    return -1


cdef int count_session(SSL *ssl, SSL_SESSION *session) noexcept nogil:
    """OpenSSL's new_session_fn. 0: OpenSSL keeps its reference."""
    cdef tls_context *t = <tls_context *>openssl.SSL_CTX_get_ex_data(openssl.SSL_get_SSL_CTX(ssl), OUR_DATA)
    fetch_add(&t.new_sessions, 1)
    return 0


cdef void message_passed(int written, int version, int kind, const void *data, size_t length, SSL *ssl,
                         void *arg) noexcept nogil:
    """OpenSSL's message_fn, called once for each whole message: of a handshake, or another. After the handshake, the
    peer's messages of this kind renew keys. An attempt at renegotiation is no such message, but has an alert as the
    answer."""
    if kind == SSL3_RT_ALERT if written else kind == SSL3_RT_HANDSHAKE:
        session_renewed(ssl)


cdef bint load_files(SSL_CTX *ctx, const tls_options *o, char *why) noexcept nogil:
    """Reads certificates and key into the SSL_CTX. False: `why` has memcached's words for the reason."""
    cdef char reason[TLS_REASON_MAX]
    openssl.ERR_clear_error()
    if openssl.SSL_CTX_use_certificate_chain_file(ctx, o.chain_cert) != 1:
        tls_take_error(reason)
        snprintf(why, TLS_TEXT_MAX, b"Error loading the certificate chain: %s : %s", o.chain_cert, reason)
    elif openssl.SSL_CTX_use_PrivateKey_file(ctx, o.key, o.key_format) != 1:
        tls_take_error(reason)
        snprintf(why, TLS_TEXT_MAX, b"Error loading the key: %s : %s", o.key, reason)
    elif openssl.SSL_CTX_check_private_key(ctx) != 1:
        tls_take_error(reason)
        snprintf(why, TLS_TEXT_MAX, b"Error validating the certificate: %s", reason)
    elif o.ca_cert != NULL and openssl.SSL_CTX_load_verify_locations(ctx, o.ca_cert, NULL) != 1:
        tls_take_error(reason)
        snprintf(why, TLS_TEXT_MAX, b"Error loading the CA certificate: %s : %s", o.ca_cert, reason)
    else:
        if o.ca_cert != NULL:
            openssl.SSL_CTX_set_client_CA_list(ctx, openssl.SSL_load_client_CA_file(o.ca_cert))
        openssl.ERR_clear_error()
        return True
    return False


cdef void set_modes(SSL_CTX *ctx, tls_context *t) noexcept nogil:
    cdef const tls_options *o = t.options
    cdef uint64_t options = SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF
    if o.kernel:
        options |= SSL_OP_ENABLE_KTLS
    openssl.SSL_CTX_set_options(ctx, options)
    # An idle connection keeps no buffers. A record is retried from wherever the reply lies then.
    openssl.SSL_CTX_ctrl(ctx, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE
                         | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, NULL)
    # One read of the socket takes a whole record, and more. The kernel's TLS decrypts as many bytes as were requested.
    openssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_READ_AHEAD, not o.kernel, NULL)
    openssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, o.min_version, NULL)
    openssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_SESS_CACHE_MODE,
                         SSL_SESS_CACHE_SERVER if o.session_cache else SSL_SESS_CACHE_OFF, NULL)
    openssl.SSL_CTX_set_ex_data(ctx, OUR_DATA, t)
    if o.session_cache:
        openssl.SSL_CTX_sess_set_new_cb(ctx, count_session)
    openssl.SSL_CTX_set_msg_callback(ctx, message_passed)
    openssl.SSL_CTX_set_verify(ctx, o.verify_mode, NULL)


cdef SSL_CTX *make_client_ctx(tls_context *t) noexcept nogil:
    """NULL: out of memory. There is no certificate to trust, so a handshake without the key fails."""
    cdef SSL_CTX *ctx = openssl.SSL_CTX_new(openssl.TLS_client_method())
    if ctx != NULL:
        set_modes(ctx, t)
        openssl.SSL_CTX_set_ciphersuites(ctx, KEY_CIPHERS)
        openssl.SSL_CTX_set_psk_use_session_callback(ctx, use_key)
    openssl.ERR_clear_error()
    return ctx


cdef SSL_CTX *make_ctx(tls_context *t, bint asking, char *why) noexcept nogil:
    """A new SSL_CTX. asking: OpenSSL may ask the terminal for the password of the key."""
    cdef const tls_options *o = t.options
    cdef SSL_CTX *ctx = openssl.SSL_CTX_new(openssl.TLS_server_method())
    if ctx == NULL:
        snprintf(why, TLS_TEXT_MAX, b"Error: out of memory")
        return NULL
    set_modes(ctx, t)
    openssl.SSL_CTX_set_psk_find_session_callback(ctx, find_key)
    if not asking:
        openssl.SSL_CTX_set_default_passwd_cb(ctx, no_password)
    if load_files(ctx, o, why):
        if o.ciphers == NULL or openssl.SSL_CTX_set_cipher_list(ctx, o.ciphers) == 1:
            return ctx
        openssl.ERR_clear_error()
        snprintf(why, TLS_TEXT_MAX, b"Error setting the provided cipher(s): %s", o.ciphers)
    openssl.SSL_CTX_free(ctx)
    return NULL


cdef tls_context *create(const tls_options *options, bint client, char *why) noexcept nogil:
    cdef const char *problem = openssl_load()
    cdef tls_context *t
    if problem != NULL:
        snprintf(why, TLS_TEXT_MAX, b"%s", problem)
        return NULL
    snprintf(why, TLS_TEXT_MAX, b"Error: out of memory")
    t = <tls_context *>calloc(1, sizeof(tls_context))
    if t == NULL:
        return NULL
    t.options = options
    t.client = client
    t.method = session_method()
    pthread_mutex_init(&t.lock, NULL)
    pthread_mutex_init(&t.refresh, NULL)
    if getrandom(t.secret, TLS_KEY_LENGTH, 0) != TLS_KEY_LENGTH:
        snprintf(why, TLS_TEXT_MAX, b"Error: the system has no random numbers")
    elif t.method != NULL:
        t.current = make_client_ctx(t) if client else make_ctx(t, True, why)
    t.refreshed = now_ns()
    if t.current == NULL:
        tls_destroy(t)
        return NULL
    return t


cdef tls_context *tls_create(const tls_options *options, char *why) noexcept nogil:
    return create(options, False, why)


cdef tls_context *tls_create_client(char *why) noexcept nogil:
    client_options.verify_mode = SSL_VERIFY_PEER
    client_options.min_version = TLS1_3_VERSION
    client_options.wbuf_size = TLS_RECORD
    return create(&client_options, True, why)


cdef void tls_destroy(tls_context *t) noexcept nogil:
    if t.current != NULL:
        openssl.SSL_CTX_free(t.current)
    pthread_mutex_destroy(&t.lock)
    pthread_mutex_destroy(&t.refresh)
    explicit_bzero(t.secret, sizeof(t.secret))
    free(t)


cdef bint tls_refresh(tls_context *t, char *why) noexcept nogil:
    cdef SSL_CTX *fresh
    cdef SSL_CTX *old = NULL
    pthread_mutex_lock(&t.refresh)
    fresh = make_ctx(t, False, why)
    if fresh != NULL:
        pthread_mutex_lock(&t.lock)
        old = t.current
        t.current = fresh
        t.refreshed = now_ns()
        pthread_mutex_unlock(&t.lock)
    pthread_mutex_unlock(&t.refresh)
    if old != NULL:
        openssl.SSL_CTX_free(old)
    return fresh != NULL


cdef uint64_t tls_certificate_age(tls_context *t) noexcept nogil:
    cdef int64_t refreshed
    pthread_mutex_lock(&t.lock)
    refreshed = t.refreshed
    pthread_mutex_unlock(&t.lock)
    return <uint64_t>((now_ns() - refreshed) // SECOND)


cdef bint name_sessions(SSL *ssl) noexcept nogil:
    """Names the SSL's sessions by the demands on the client's certificate: OpenSSL resumes a session only under its
    first name, and looks at no certificate then. So a session from a lenient listener opens no strict listener. False:
    out of memory."""
    cdef unsigned char[2] name = [c'v', <unsigned char>openssl.SSL_get_verify_mode(ssl)]
    return openssl.SSL_set_session_id_context(ssl, name, sizeof(name)) == 1


cdef SSL *tls_new_ssl(tls_context *t, tls_mode mode) noexcept nogil:
    cdef SSL_CTX *ctx
    cdef SSL *ssl
    pthread_mutex_lock(&t.lock)
    ctx = t.current
    openssl.SSL_CTX_up_ref(ctx)
    pthread_mutex_unlock(&t.lock)
    ssl = openssl.SSL_new(ctx)
    openssl.SSL_CTX_free(ctx)
    if ssl == NULL:
        openssl.ERR_clear_error()
        return NULL
    if t.client:
        openssl.SSL_set_connect_state(ssl)
        return ssl
    if mode == TLS_WITHOUT_PEER:
        openssl.SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL)
    elif mode == TLS_WITH_PEER:
        openssl.SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL)
    if not name_sessions(ssl):
        openssl.SSL_free(ssl)
        openssl.ERR_clear_error()
        return NULL
    openssl.SSL_set_accept_state(ssl)
    return ssl
