cdef enum:
    KEY_MARK = 8                 # octets of MARK

cdef const char *MARK = b"rmc-key:"


cdef bint derive(const tls_context *t, const uint8_t *name, uint8_t *secret) noexcept nogil:
    cdef unsigned int length = 0
    return openssl.HMAC(openssl.EVP_sha256(), t.secret, TLS_KEY_LENGTH, name, TLS_NAME_LENGTH, secret,
                        &length) != NULL and length == TLS_KEY_LENGTH


cdef bint tls_make_key(const tls_context *t, tls_key *out) noexcept nogil:
    cdef ssize_t random = TLS_NAME_LENGTH - KEY_MARK
    memcpy(out.name, MARK, KEY_MARK)
    return getrandom(out.name + KEY_MARK, <size_t>random, 0) == random and derive(t, out.name, out.secret)


cdef SSL_SESSION *key_session(SSL *ssl, const uint8_t *secret) noexcept nogil:
    """The session that OpenSSL resumes in place of a handshake with certificates. NULL: out of memory."""
    cdef unsigned char[2] number = [0x13, 0x01]    # TLS_AES_128_GCM_SHA256; another with SHA-256 may be chosen
    cdef SSL_SESSION *session = openssl.SSL_SESSION_new()
    if session == NULL:
        return NULL
    if (openssl.SSL_SESSION_set1_master_key(session, secret, TLS_KEY_LENGTH) == 1
            and openssl.SSL_SESSION_set_cipher(session, openssl.SSL_CIPHER_find(ssl, number)) == 1
            and openssl.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1):
        return session
    openssl.SSL_SESSION_free(session)
    return NULL


cdef int find_key(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) noexcept nogil:
    cdef tls_session *x = <tls_session *>openssl.SSL_get_ex_data(ssl, OUR_DATA)
    cdef uint8_t secret[TLS_KEY_LENGTH]
    session[0] = NULL
    if length != TLS_NAME_LENGTH or memcmp(name, MARK, KEY_MARK) != 0:
        # The name is a session ticket.
        return 1
    x.keyed = True
    if openssl.SSL_set_num_tickets(ssl, 0) == 1 and derive(x.context, name, secret):
        session[0] = key_session(ssl, secret)
    explicit_bzero(secret, sizeof(secret))
    return session[0] != NULL


cdef int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **name, size_t *length,
                 SSL_SESSION **session) noexcept nogil:
    cdef const tls_session *x = <const tls_session *>openssl.SSL_get_ex_data(ssl, OUR_DATA)
    name[0] = <const unsigned char *>x.key.name
    length[0] = TLS_NAME_LENGTH
    session[0] = key_session(ssl, x.key.secret)
    return session[0] != NULL
