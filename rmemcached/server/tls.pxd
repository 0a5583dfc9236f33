"""TLS for the streams of connections, by OpenSSL 3 (-Z).

A connection's stream (server/stream) gets a TLS session in place of the plain socket. The session decrypts a value into
its item, and encrypts replies from the items' memory. Handshakes run in a pool of threads; all else runs in the thread
with the connection.

The module is one C unit; its parts are in tls/, and each has a header, included below.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from rmemcached.logger cimport logger
from rmemcached.server.stream cimport stream, stream_calls
from rmemcached.sys.linux cimport pthread_mutex_t

include "tls/openssl.pxd"
include "tls/context.pxd"
include "tls/session.pxd"
include "tls/handshakes.pxd"
