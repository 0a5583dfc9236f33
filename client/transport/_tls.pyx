"""See _tls.pxd."""

import select
import threading
from errno import EPROTO

from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy

from rmemcached.streams.tls cimport (
    HANDSHAKE_DONE,
    HANDSHAKE_FAILED,
    HANDSHAKE_READS,
    TLS_OFF,
    TLS_REASON_MAX,
    TLS_TEXT_MAX,
    handshake_result,
    tls_begin,
    tls_context,
    tls_create_client,
    tls_handshake,
    tls_key,
    tls_session,
)
from rmemcached.sys.wipe cimport explicit_bzero

from rmemcached.client.exceptions import MemcacheServerError, TransportUnavailable

cdef tls_context *context = NULL    # of all second connections; made once, under `making`
cdef object making = threading.RLock()


def load_tls():
    """Loads OpenSSL. Raises TransportUnavailable."""
    global context
    cdef char why[TLS_TEXT_MAX]
    with making:
        if context == NULL:
            context = tls_create_client(why)
        if context == NULL:
            raise TransportUnavailable(why.decode(errors="replace"))


cdef int begin_tls(stream *s, bytes key, timeout) except -1:
    cdef tls_key known
    cdef char reason[TLS_REASON_MAX]
    cdef tls_session *x
    if len(key) != sizeof(tls_key):
        raise MemcacheServerError("the server's answer to the RDMA exchange has no key for TLS")
    if not tls_begin(context, TLS_OFF, s):
        raise MemoryError
    memcpy(&known, PyBytes_AS_STRING(key), sizeof(tls_key))
    reason[0] = 0
    x = <tls_session *>s.state
    x.key = &known
    x.told = reason
    try:
        shake_hands(x, reason, timeout)
    finally:
        x.key = NULL
        x.told = NULL
        explicit_bzero(&known, sizeof(known))
    return 0


cdef int shake_hands(tls_session *x, const char *reason, timeout) except -1:
    cdef handshake_result result
    waiting = select.poll()
    while True:
        with nogil:
            result = tls_handshake(x)
        if result == HANDSHAKE_DONE:
            return 0
        if result == HANDSHAKE_FAILED:
            text = reason.decode(errors="replace") or "the server closed the connection"
            raise OSError(EPROTO, f"TLS of the second connection: {text}")
        waiting.register(x.stream.fd, select.POLLIN if result == HANDSHAKE_READS else select.POLLOUT)
        if not waiting.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError("timed out")
