# Certificates and options, as OpenSSL's SSL_CTX.
#
# New certificates make a new SSL_CTX. It replaces the old SSL_CTX only when everything in it is valid; connections keep
# the SSL_CTX with which they began. Sessions of an old SSL_CTX cannot be resumed: a client whose CA was withdrawn does
# not come back by an old session.

cdef enum:
    TLS_KEY_LENGTH = 32          # octets: of HMAC with SHA-256
    TLS_TEXT_MAX = 4096 + 320    # bytes of an error line, its NUL included: memcached's limit
    TLS_REASON_MAX = 256         # ... of OpenSSL's part

cdef enum tls_mode:              # of a listening socket
    TLS_OFF                      # no TLS; also that of a client's end
    TLS_ON                       # client certificates by ssl_verify_mode
    TLS_WITHOUT_PEER             # no client certificates (btls:)
    TLS_WITH_PEER                # a client certificate is required (mtls:)

# The options. Constant; the Settings object owns the text and outlives the context.
cdef struct tls_options:
    bint enabled                 # -Z
    const char *chain_cert       # files; NULL: not given
    const char *key
    const char *ca_cert
    const char *ciphers          # NULL: OpenSSL's
    int verify_mode              # OpenSSL's SSL_VERIFY_* bits
    int key_format               # OpenSSL's SSL_FILETYPE_*
    int min_version              # OpenSSL's number
    uint64_t wbuf_size           # bytes of replies gathered before they are encrypted
    bint session_cache
    bint kernel

cdef struct tls_session          # complete in tls/session

# Tells of the error of a session, in OpenSSL's words or the system's.
ctypedef void (*tls_tell_fn)(void *arg, const tls_session *x, const char *reason) noexcept nogil

cdef struct tls_context:
    # constant
    const tls_options *options
    tls_tell_fn tell             # NULL: nobody is told. Set, with its arg, before the first session
    void *tell_arg
    bint client                  # of a client's ends, which have keys in place of certificates
    uint8_t[TLS_KEY_LENGTH] secret   # from which the keys follow (tls/keys)
    BIO_METHOD *method           # of sockets (tls/session)
    pthread_mutex_t refresh      # held while files are read and become `current`: the last reading stays. Before lock
    # under lock
    pthread_mutex_t lock
    SSL_CTX *current
    int64_t refreshed            # when `current` was made: now_ns()
    # atomic
    uint64_t handshake_errors
    uint64_t proto_errors        # errors after the handshake
    uint64_t new_sessions        # handshakes without resumption; counted with session_cache

# Makes the SSL of a new connection. NULL: out of memory. Any thread.
cdef SSL *tls_new_ssl(tls_context *t, tls_mode mode) noexcept nogil
# Takes OpenSSL's first error of this thread and empties the queue. out: TLS_REASON_MAX bytes.
cdef void tls_take_error(char *out) noexcept nogil
