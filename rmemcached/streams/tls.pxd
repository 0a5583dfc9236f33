"""TLS for streams, by OpenSSL 3: of the daemon's connections (-Z), and of both ends of soft_iw beside TLS.

A stream (streams/stream) gets a TLS session in place of the plain socket. The session decrypts a value into its item,
and encrypts replies from the items' memory. All runs in the thread with the stream; a handshake is a function to be
called until it is done, by the daemon in threads of their own (server/handshakes).

The module is one C unit; its parts are in tls/, and each has a header, included below.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rmemcached.streams.stream cimport stream, stream_calls
from rmemcached.sys.linux cimport pthread_mutex_t

include "tls/openssl.pxd"
include "tls/context.pxd"
include "tls/keys.pxd"
include "tls/session.pxd"
