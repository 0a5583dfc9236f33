"""Finds libsasl2's functions by dlsym, as rmemcached.verbs.system finds libibverbs' functions."""

from libc.stdlib cimport free, malloc

from rmemcached.sys.linux cimport (
    RTLD_LOCAL, RTLD_NOW, dlclose, dlopen, dlsym, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_t, pthread_mutex_unlock,
)


cdef void *mutex_make() noexcept nogil:
    cdef pthread_mutex_t *mutex = <pthread_mutex_t *>malloc(sizeof(pthread_mutex_t))
    if mutex != NULL:
        pthread_mutex_init(mutex, NULL)
    return mutex


cdef int mutex_lock(void *mutex) noexcept nogil:
    return pthread_mutex_lock(<pthread_mutex_t *>mutex)


cdef int mutex_unlock(void *mutex) noexcept nogil:
    return pthread_mutex_unlock(<pthread_mutex_t *>mutex)


cdef void mutex_free(void *mutex) noexcept nogil:
    pthread_mutex_destroy(<pthread_mutex_t *>mutex)
    free(mutex)


cdef bint find(void *library, const char *name, void **out) noexcept nogil:
    out[0] = dlsym(library, name)
    return out[0] != NULL


cdef bint sasl_bind(sasl_library *table) noexcept nogil:
    cdef void *library = dlopen(b"libsasl2.so.2", RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        return False
    if not (
        find(library, b"sasl_server_init", <void **>&table.server_init)
        and find(library, b"sasl_server_new", <void **>&table.server_new)
        and find(library, b"sasl_listmech", <void **>&table.listmech)
        and find(library, b"sasl_server_start", <void **>&table.server_start)
        and find(library, b"sasl_server_step", <void **>&table.server_step)
        and find(library, b"sasl_errdetail", <void **>&table.errdetail)
        and find(library, b"sasl_errstring", <void **>&table.errstring)
        and find(library, b"sasl_dispose", <void **>&table.dispose)
        and find(library, b"sasl_done", <void **>&table.done)
        and find(library, b"sasl_set_mutex", <void **>&table.set_mutex)
    ):
        dlclose(library)
        return False
    table.set_mutex(mutex_make, mutex_lock, mutex_unlock, mutex_free)
    return True
