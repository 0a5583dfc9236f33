"""See _errors.pxd."""

import resource

from libc.errno cimport ENOMEM
from libc.string cimport strerror

from rmemcached.verbs.soft cimport soft_provider


cdef object os_error(str what, int error):
    return OSError(error, f"{what}: {strerror(error).decode()}")


cdef object registration_error(const verbs_provider *provider, size_t length, int error):
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if error != ENOMEM or soft == resource.RLIM_INFINITY or provider == soft_provider():
        return os_error("memory region", error)
    return OSError(error, f"{(length + 1023) // 1024} KB could not be locked for the device: ulimit -l is"
                          f" {soft // 1024} KB; raise it (systemd: LimitMEMLOCK=infinity)")
