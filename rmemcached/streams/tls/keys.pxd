# Keys: TLS 1.3 between two ends that have met already, without certificates (RFC 8446, section 4.2.11: external PSK).
#
# A client with a connection in TLS asks there for a key, and makes a second connection with it. The handshake proves to
# each end that its peer is the first connection's, whatever the first connection's rules for certificates are. The
# exchange of Diffie and Hellman goes with it, so a key that becomes known later opens no recorded stream.
#
# The daemon keeps no list: a key follows from its name, and from the context's secret, which ends with the daemon. So a
# key may be used for as long as the daemon runs, but the session is good for a stream (tls_session.keyed) alone, and the
# stream's token is used once. No session ticket is given to it.

cdef enum:
    TLS_NAME_LENGTH = 24         # octets: 8 that tell keys from session tickets, 16 at random

cdef struct tls_key:
    uint8_t[TLS_NAME_LENGTH] name
    uint8_t[TLS_KEY_LENGTH] secret

# Makes a key. False: the system has no random numbers. Any thread.
cdef bint tls_make_key(const tls_context *t, tls_key *out) noexcept nogil
# OpenSSL's functions for the key of a handshake, of the daemon's end and the client's.
cdef int find_key(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) noexcept nogil
cdef int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **name, size_t *length,
                 SSL_SESSION **session) noexcept nogil
