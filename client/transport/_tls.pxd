"""TLS of a second connection: by a key from the lifeline, where the client's tls_context has checked the server.

The second connection moves its octets in C, where no ssl.SSLContext can be used. So OpenSSL is called here without any
settings of its own (rmemcached/streams/tls): whoever has the key is the lifeline's peer.
"""

from rmemcached.streams.stream cimport stream

# Makes a stream, whose fd is set, one with TLS: does the handshake. timeout: seconds for each wait, or None. Raises
# OSError, TimeoutError, MemcacheServerError: the server has given no key. The stream stays the caller's in any case.
cdef int begin_tls(stream *s, bytes key, timeout) except -1
