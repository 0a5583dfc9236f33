"""TLS for the streams of connections (see tls.pxd)."""

from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.logger cimport LOG_CONNEVENTS, LOG_TEXT_MAX, log_text, log_wants
from rmemcached.sys.atomics cimport fetch_add
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport (
    EAGAIN, EINTR, ENOMEM, EPROTO, MSG_MORE, MSG_NOSIGNAL, PRIO_PROCESS, RTLD_LOCAL, RTLD_NOW, close, dlclose, dlopen,
    dlsym, errno, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_t, pthread_cond_wait, pthread_create, pthread_join, pthread_key_create, pthread_key_t,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_setname_np,
    pthread_setspecific, pthread_t, recv, send, set_errno, setpriority, strerror,
)

include "tls/openssl.pyx"
include "tls/context.pyx"
include "tls/session.pyx"
include "tls/handshakes.pyx"
