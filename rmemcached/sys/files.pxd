"""Files: reads and writes at a place, space on the device, locks; folders."""

from libc.stdint cimport int64_t
from posix.stat cimport struct_stat
from posix.uio cimport iovec

cdef extern from *:
    """
    #include <dirent.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdlib.h>
    #include <sys/stat.h>
    #include <sys/uio.h>
    #include <unistd.h>
    /* Python's headers define _GNU_SOURCE. */
    static inline int rmc_allocate_file(int fd, int64_t offset, int64_t length)
    {
        int done;
        do
            done = fallocate(fd, 0, (off_t) offset, (off_t) length);
        while (done != 0 && errno == EINTR);
        return done == 0 ? 0 : errno;
    }
    static inline int rmc_lock_file(int fd)
    {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        return fcntl(fd, F_OFD_SETLK, &whole) == 0;
    }
    """
    # Reserves space on the device for a part of a file: later writes there fail for no lack of space. 0 or an errno.
    int allocate_file "rmc_allocate_file"(int fd, int64_t offset, int64_t length) nogil
    # Locks a file for writing, until its description is closed. False: another process has a lock, memcached included.
    bint lock_file "rmc_lock_file"(int fd) nogil
    enum:
        RWF_NOWAIT               # for preadv2: fails with EAGAIN rather than wait for the device
    ssize_t preadv(int fd, const iovec *iov, int count, int64_t offset) nogil
    ssize_t preadv2(int fd, const iovec *iov, int count, int64_t offset, int flags) nogil
    ssize_t pwrite(int fd, const void *data, size_t length, int64_t offset) nogil
    # Makes a file of mode 600, with an ending in the place of XXXXXX that nobody can guess.
    int mkostemp(char *name, int flags) nogil
    ctypedef struct DIR:
        pass
    struct dirent:
        char *d_name
    DIR *opendir(const char *folder) nogil
    dirent *readdir(DIR *folder) nogil
    int dirfd(DIR *folder) nogil
    int closedir(DIR *folder) nogil
    int fstatat(int folder, const char *name, struct_stat *status, int flags) nogil
    int unlinkat(int folder, const char *name, int flags) nogil

cdef extern from "<fcntl.h>" nogil:
    enum:
        AT_SYMLINK_NOFOLLOW
        O_CREAT
