# OpenSSL's libssl, loaded by openssl_load(): a process without TLS does not need the library.
#
# The table has OpenSSL's own functions under their own names, of libssl and libcrypto. OpenSSL keeps error codes in a
# queue of the calling thread: a function of this module that meets an error empties the queue.

cdef extern from "<openssl/ssl.h>" nogil:
    """
    #ifndef SSL_OP_ENABLE_KTLS  /* headers of OpenSSL 1.1; the library is OpenSSL 3 */
    #define SSL_OP_ENABLE_KTLS (UINT64_C(1) << 3)
    #endif
    #ifndef SSL_OP_IGNORE_UNEXPECTED_EOF
    #define SSL_OP_IGNORE_UNEXPECTED_EOF (UINT64_C(1) << 7)
    #endif
    """
    ctypedef struct SSL
    ctypedef struct SSL_CTX
    ctypedef struct SSL_METHOD
    ctypedef struct SSL_SESSION
    ctypedef struct SSL_CIPHER
    ctypedef struct EVP_MD
    ctypedef struct BIO
    ctypedef struct BIO_METHOD
    ctypedef struct X509_STORE_CTX
    ctypedef struct X509_NAMES "STACK_OF(X509_NAME)"
    enum:
        SSL_ERROR_SSL
        SSL_ERROR_WANT_READ
        SSL_ERROR_WANT_WRITE
        SSL_ERROR_SYSCALL
        SSL_ERROR_ZERO_RETURN
        SSL_FILETYPE_PEM
        SSL_VERIFY_NONE
        SSL_VERIFY_PEER
        SSL_VERIFY_FAIL_IF_NO_PEER_CERT
        SSL_VERIFY_CLIENT_ONCE
        SSL_SESS_CACHE_OFF
        SSL_SESS_CACHE_SERVER
        SSL_CTRL_MODE
        SSL_CTRL_SET_READ_AHEAD
        SSL_CTRL_SET_SESS_CACHE_MODE
        SSL_CTRL_SET_MIN_PROTO_VERSION
        SSL_MODE_ENABLE_PARTIAL_WRITE
        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
        SSL_MODE_RELEASE_BUFFERS
        SSL_RECEIVED_SHUTDOWN
        SSL3_RT_ALERT
        SSL3_RT_HANDSHAKE
        TLS1_VERSION
        TLS1_1_VERSION
        TLS1_2_VERSION
        TLS1_3_VERSION
        BIO_TYPE_SOURCE_SINK
        BIO_CTRL_FLUSH
        BIO_CTRL_EOF
        BIO_FLAGS_READ
        BIO_FLAGS_WRITE
        BIO_FLAGS_RWS
        BIO_FLAGS_SHOULD_RETRY
    uint64_t SSL_OP_NO_RENEGOTIATION
    uint64_t SSL_OP_ENABLE_KTLS
    uint64_t SSL_OP_IGNORE_UNEXPECTED_EOF

ctypedef int (*bio_write_fn)(BIO *bio, const char *data, int length) noexcept nogil
ctypedef int (*bio_read_fn)(BIO *bio, char *out, int room) noexcept nogil
ctypedef long (*bio_ctrl_fn)(BIO *bio, int command, long number, void *pointer) noexcept nogil
ctypedef int (*verify_fn)(int ok, X509_STORE_CTX *store) noexcept nogil
ctypedef int (*new_session_fn)(SSL *ssl, SSL_SESSION *session) noexcept nogil
ctypedef void (*message_fn)(int written, int version, int kind, const void *data, size_t length, SSL *ssl,
                            void *arg) noexcept nogil
ctypedef int (*find_key_fn)(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) noexcept nogil
ctypedef int (*use_key_fn)(SSL *ssl, const EVP_MD *md, const unsigned char **name, size_t *length,
                           SSL_SESSION **session) noexcept nogil
ctypedef int (*password_fn)(char *out, int size, int writing, void *arg) noexcept nogil

cdef struct openssl_calls:
    const SSL_METHOD *(*TLS_server_method)() noexcept nogil
    const SSL_METHOD *(*TLS_client_method)() noexcept nogil
    SSL_CTX *(*SSL_CTX_new)(const SSL_METHOD *method) noexcept nogil
    void (*SSL_CTX_free)(SSL_CTX *ctx) noexcept nogil
    int (*SSL_CTX_up_ref)(SSL_CTX *ctx) noexcept nogil
    long (*SSL_CTX_ctrl)(SSL_CTX *ctx, int command, long number, void *pointer) noexcept nogil
    uint64_t (*SSL_CTX_set_options)(SSL_CTX *ctx, uint64_t options) noexcept nogil
    int (*SSL_CTX_use_certificate_chain_file)(SSL_CTX *ctx, const char *file) noexcept nogil
    int (*SSL_CTX_use_PrivateKey_file)(SSL_CTX *ctx, const char *file, int format) noexcept nogil
    int (*SSL_CTX_check_private_key)(const SSL_CTX *ctx) noexcept nogil
    int (*SSL_CTX_load_verify_locations)(SSL_CTX *ctx, const char *file, const char *folder) noexcept nogil
    X509_NAMES *(*SSL_load_client_CA_file)(const char *file) noexcept nogil
    void (*SSL_CTX_set_client_CA_list)(SSL_CTX *ctx, X509_NAMES *names) noexcept nogil
    void (*SSL_CTX_set_verify)(SSL_CTX *ctx, int mode, verify_fn callback) noexcept nogil
    int (*SSL_CTX_set_cipher_list)(SSL_CTX *ctx, const char *text) noexcept nogil
    int (*SSL_CTX_set_ciphersuites)(SSL_CTX *ctx, const char *text) noexcept nogil
    void (*SSL_CTX_set_psk_find_session_callback)(SSL_CTX *ctx, find_key_fn callback) noexcept nogil
    void (*SSL_CTX_set_psk_use_session_callback)(SSL_CTX *ctx, use_key_fn callback) noexcept nogil
    void (*SSL_CTX_sess_set_new_cb)(SSL_CTX *ctx, new_session_fn callback) noexcept nogil
    void (*SSL_CTX_set_msg_callback)(SSL_CTX *ctx, message_fn callback) noexcept nogil
    void (*SSL_CTX_set_default_passwd_cb)(SSL_CTX *ctx, password_fn callback) noexcept nogil
    int (*SSL_CTX_set_ex_data)(SSL_CTX *ctx, int index, void *data) noexcept nogil
    void *(*SSL_CTX_get_ex_data)(const SSL_CTX *ctx, int index) noexcept nogil
    SSL_CTX *(*SSL_get_SSL_CTX)(const SSL *ssl) noexcept nogil
    SSL *(*SSL_new)(SSL_CTX *ctx) noexcept nogil
    void (*SSL_free)(SSL *ssl) noexcept nogil
    int (*SSL_set_ex_data)(SSL *ssl, int index, void *data) noexcept nogil
    void *(*SSL_get_ex_data)(const SSL *ssl, int index) noexcept nogil
    int (*SSL_get_verify_mode)(const SSL *ssl) noexcept nogil
    int (*SSL_set_session_id_context)(SSL *ssl, const unsigned char *name, unsigned int length) noexcept nogil
    void (*SSL_set_verify)(SSL *ssl, int mode, verify_fn callback) noexcept nogil
    void (*SSL_set_bio)(SSL *ssl, BIO *reading, BIO *writing) noexcept nogil
    int (*SSL_set_fd)(SSL *ssl, int fd) noexcept nogil
    void (*SSL_set_accept_state)(SSL *ssl) noexcept nogil
    void (*SSL_set_connect_state)(SSL *ssl) noexcept nogil
    int (*SSL_set_num_tickets)(SSL *ssl, size_t count) noexcept nogil
    int (*SSL_session_reused)(const SSL *ssl) noexcept nogil
    int (*SSL_do_handshake)(SSL *ssl) noexcept nogil
    int (*SSL_read)(SSL *ssl, void *buffer, int room) noexcept nogil
    int (*SSL_write)(SSL *ssl, const void *data, int length) noexcept nogil
    int (*SSL_pending)(const SSL *ssl) noexcept nogil
    int (*SSL_has_pending)(const SSL *ssl) noexcept nogil
    int (*SSL_in_init)(const SSL *ssl) noexcept nogil
    int (*SSL_get_error)(const SSL *ssl, int result) noexcept nogil
    void (*SSL_set_shutdown)(SSL *ssl, int mode) noexcept nogil
    int (*SSL_shutdown)(SSL *ssl) noexcept nogil
    const SSL_CIPHER *(*SSL_CIPHER_find)(SSL *ssl, const unsigned char *number) noexcept nogil
    SSL_SESSION *(*SSL_SESSION_new)() noexcept nogil
    void (*SSL_SESSION_free)(SSL_SESSION *session) noexcept nogil
    int (*SSL_SESSION_set1_master_key)(SSL_SESSION *session, const unsigned char *key, size_t length) noexcept nogil
    int (*SSL_SESSION_set_cipher)(SSL_SESSION *session, const SSL_CIPHER *cipher) noexcept nogil
    int (*SSL_SESSION_set_protocol_version)(SSL_SESSION *session, int version) noexcept nogil
    const EVP_MD *(*EVP_sha256)() noexcept nogil
    unsigned char *(*HMAC)(const EVP_MD *md, const void *key, int key_length, const unsigned char *data, size_t length,
                           unsigned char *out, unsigned int *out_length) noexcept nogil
    int (*BIO_get_new_index)() noexcept nogil
    BIO_METHOD *(*BIO_meth_new)(int type, const char *name) noexcept nogil
    int (*BIO_meth_set_write)(BIO_METHOD *method, bio_write_fn write) noexcept nogil
    int (*BIO_meth_set_read)(BIO_METHOD *method, bio_read_fn read) noexcept nogil
    int (*BIO_meth_set_ctrl)(BIO_METHOD *method, bio_ctrl_fn ctrl) noexcept nogil
    BIO *(*BIO_new)(const BIO_METHOD *method) noexcept nogil
    void (*BIO_set_data)(BIO *bio, void *data) noexcept nogil
    void *(*BIO_get_data)(BIO *bio) noexcept nogil
    void (*BIO_set_init)(BIO *bio, int init) noexcept nogil
    void (*BIO_set_flags)(BIO *bio, int flags) noexcept nogil
    void (*BIO_clear_flags)(BIO *bio, int flags) noexcept nogil
    unsigned long (*ERR_get_error)() noexcept nogil
    void (*ERR_error_string_n)(unsigned long error, char *out, size_t size) noexcept nogil
    void (*ERR_clear_error)() noexcept nogil

# The functions, constant after openssl_load.
cdef openssl_calls openssl

# Loads the library. NULL, or a constant line with the reason. One thread at a time, before any call of the table.
cdef const char *openssl_load() noexcept nogil
