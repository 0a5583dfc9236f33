# A TLS session, as a stream (streams/stream). The owner of the stream calls the functions.
#
# OpenSSL sees a BIO in place of the socket. Reading, the BIO tells an empty socket from a spent budget. Writing, the
# BIO tells the kernel whether more records follow at once (MSG_MORE). If the socket takes only a part of a record,
# OpenSSL keeps the rest. With the kernel's TLS (ssl_kernel_tls) OpenSSL uses the socket itself, without the BIO.

cdef enum:
    TLS_RECORD = 16 * 1024       # bytes of a record's contents, at most

cdef enum:
    OUR_DATA = 0                 # the index of our pointer in an SSL, and in an SSL_CTX

cdef enum handshake_result:
    HANDSHAKE_DONE
    HANDSHAKE_READS              # waits for input
    HANDSHAKE_WRITES             # waits for room in the socket
    HANDSHAKE_FAILED             # counted and logged: the connection is to be ended

cdef struct tls_session:         # stream.state; its owner's
    # constant
    tls_context *context
    tls_mode mode
    const tls_key *key           # of a client's end, until the handshake is done
    #
    stream *stream
    char *told                   # of a client's end, until the handshake is done: TLS_REASON_MAX bytes for the reason
    int owed                     # bytes of a record taken by a send, of which the socket has not taken the end
    SSL *ssl                     # NULL: the handshake has not begun
    uint8_t reads                # reads of the socket left in this call
    uint8_t renewals             # of the peer's keys, since its last data
    # bool
    uint8_t ready                # the handshake is done
    uint8_t more                 # tls_send runs, and further records follow this one
    uint8_t broken               # after an error nothing more may be sent
    uint8_t touched              # the peer has sent something
    uint8_t ended                # the peer has sent the end of its stream
    uint8_t spent                # the last read found the call's budget used up, not an empty socket
    uint8_t keyed                # the peer has a key (tls/keys), no certificate: the session is for a stream alone
    # of the pool (server/handshakes) while the session is there
    tls_session *next
    void *owner
    handshake_result result

# The table of a stream with TLS, after the handshake.
cdef stream_calls tls_stream

# The kind of the BIOs, made once. NULL: out of memory. One thread at a time.
cdef BIO_METHOD *session_method() noexcept nogil
# A message of the handshake has come. After the handshake this is a renewal of the peer's keys, or an attempt at one:
# beyond RENEWALS without data, the session reads nothing more.
cdef void session_renewed(SSL *ssl) noexcept nogil
