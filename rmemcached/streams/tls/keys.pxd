# Keys: TLS 1.3 between the ends of an earlier connection, without certificates: external PSK (RFC 8446, 4.2.11).
#
# A client asks for a key on a connection with TLS, and makes a second connection by the key. The handshake proves to
# each end that its peer is the first connection's, under any rules for certificates. The handshake includes an exchange
# of Diffie and Hellman, so a key in wrong hands opens no recorded stream.
#
# The daemon keeps no list: a key follows from its name and from the context's secret, which ends with the daemon. A key
# stays good while the daemon runs, but its sessions (tls_session.keyed) are for streams alone, and a stream's token is
# used once. Sessions with a key get no session ticket.

cdef enum:
    TLS_NAME_LENGTH = 24         # octets: 8 to tell keys from session tickets, 16 at random

cdef struct tls_key:
    uint8_t[TLS_NAME_LENGTH] name
    uint8_t[TLS_KEY_LENGTH] secret

# OpenSSL's functions for the key of a handshake, of the daemon's end and the client's.
cdef int find_key(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) noexcept nogil
cdef int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **name, size_t *length,
                 SSL_SESSION **session) noexcept nogil
