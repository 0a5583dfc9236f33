"""TLS for streams, by OpenSSL 3: of the daemon's connections (-Z), and of both ends of soft_iw beside TLS.

A stream (streams/stream) gets a TLS session in place of the plain socket. The session decrypts a value into its item,
and encrypts replies from the items' memory. All runs in the thread with the stream; a handshake is a function to be
called until it is done, by the daemon in threads of their own (server/handshakes).

The module is one C unit; its parts are in tls/, and each has a header, included below. The functions for the rest of
the project follow.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rmemcached.streams.stream cimport stream, stream_calls
from rmemcached.sys.linux cimport pthread_mutex_t

include "tls/openssl.pxd"
include "tls/context.pxd"
include "tls/keys.pxd"
include "tls/session.pxd"

# --- contexts ---
# OpenSSL's number for a name of memcached's option: ssl_verify_mode 0 to 3, ssl_min_version 0 to 3.
cdef int tls_verify_mode(unsigned int number) noexcept nogil
cdef int tls_version(unsigned int number) noexcept nogil
# memcached's name of a version, of OpenSSL's number.
cdef const char *tls_version_name(int version) noexcept nogil

# Loads OpenSSL, and reads the certificates. NULL: the line in `why` (TLS_TEXT_MAX bytes) has the reason. Threads call
# tls_create and the next two one after the other.
cdef tls_context *tls_create(const tls_options *options, char *why) noexcept nogil
# Loads OpenSSL, for the client's ends of streams with keys. NULL: as above.
cdef tls_context *tls_create_client(char *why) noexcept nogil
# Frees the context, after the end of all connections.
cdef void tls_destroy(tls_context *t) noexcept nogil
# Reads the certificates again, for new connections. False: the old certificates stay, and `why` has the reason. Any
# thread.
cdef bint tls_refresh(tls_context *t, char *why) noexcept nogil
# Seconds since the certificates were read. Any thread.
cdef uint64_t tls_certificate_age(tls_context *t) noexcept nogil

# --- keys ---
# Makes a key. False: the system has no random numbers. Any thread.
cdef bint tls_make_key(const tls_context *t, tls_key *out) noexcept nogil

# --- sessions ---
# Makes a stream, whose fd is set, one with TLS. False: out of memory. After the handshake the caller may use the calls
# of the stream; before, only `end`.
cdef bint tls_begin(tls_context *t, tls_mode mode, stream *s) noexcept nogil
# Takes the session off a stream whose handshake has not begun. The socket stays open.
cdef void tls_abandon(stream *s) noexcept nogil
# Goes on with the handshake, until OpenSSL waits for the peer. Takes as long as a signature: some milliseconds.
cdef handshake_result tls_handshake(tls_session *x) noexcept nogil
