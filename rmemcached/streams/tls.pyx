"""TLS for streams (see tls.pxd)."""

from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport fetch_add
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.linux cimport (
    EAGAIN, EINTR, ENOMEM, EPROTO, MSG_MORE, MSG_NOSIGNAL, RTLD_LOCAL, RTLD_NOW, close, dlclose, dlopen, dlsym, errno,
    getrandom, pthread_key_create, pthread_key_t, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, pthread_setspecific, recv, send, set_errno, strerror,
)
from rmemcached.sys.wipe cimport explicit_bzero

include "tls/openssl.pyx"
include "tls/context.pyx"
include "tls/keys.pyx"
include "tls/session.pyx"
