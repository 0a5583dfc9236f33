cdef enum:
    MEGABYTE = 1 << 20


cdef bint _is_same(const struct_stat *a, const struct_stat *b) noexcept nogil:
    """Whether this is the same file, whatever its names."""
    return a.st_dev == b.st_dev and a.st_ino == b.st_ino


cdef bint is_given(flash *f, unsigned int count, const struct_stat *status) noexcept nogil:
    cdef struct_stat other
    cdef unsigned int i
    for i in range(count):
        if fstat(f.fds[i], &other) == 0 and _is_same(&other, status):
            return True
    return False


cdef const char *_wrong_kind(const struct_stat *status) noexcept nogil:
    if S_ISREG(status.st_mode) or S_ISBLK(status.st_mode):
        return NULL
    if S_ISDIR(status.st_mode):
        return b"is a directory: name a file in it"
    if S_ISFIFO(status.st_mode):
        return b"is a FIFO: name a file or a block device"
    if S_ISSOCK(status.st_mode):
        return b"is a socket: name a file or a block device"
    return b"is a character device: name a file or a block device"


cdef const char *_open_file(flash *f, unsigned int number) noexcept nogil:
    """Opens a file. Returns the fault, or NULL."""
    cdef const char *file = f.config.paths[number].file
    cdef const char *wrong = NULL
    cdef struct_stat status
    cdef int flags = O_CREAT | O_NOFOLLOW
    # Even the opening of some other device, such as a watchdog, has effects.
    if stat(file, &status) == 0:
        wrong = _wrong_kind(&status)
        # Names in /dev/disk are symbolic links. O_EXCL refuses a device with a mounted file system.
        flags = O_EXCL if S_ISBLK(status.st_mode) else O_NOFOLLOW
    if wrong != NULL:
        return wrong
    f.fds[number] = open(file, flags | O_RDWR | O_CLOEXEC, <unsigned int>0o600)
    if f.fds[number] >= 0:
        return NULL
    # Whoever can write to a folder of others could else send the values into any file of the daemon's user.
    if errno == ELOOP:
        return b"is a symbolic link: name the file itself"
    if errno == EBUSY:
        return b"is mounted, or in use by another program"
    return strerror(errno)


cdef bint _is_memory_file(flash *f, const struct_stat *status) noexcept nogil:
    """Whether a file is the memory file, or FILE.flash."""
    cdef char kept[KEPT_PATH]
    cdef struct_stat other
    if f.config.memory_file == NULL:
        return False
    if stat(f.config.memory_file, &other) == 0 and _is_same(&other, status):
        return True
    return kept_file(f, b"", kept) and stat(kept, &other) == 0 and _is_same(&other, status)


cdef bint _may_empty(int fd, const struct_stat *status) noexcept nogil:
    """Whether a file has been made for values, so that nobody misses what is in it.

    Files of this daemon begin with a label. Files of memcached begin with any bytes, but memcached writes whole buffers
    only: the length is a number of megabytes, as ext_wbuf_size is. Users bring such files along, so the daemon takes
    them, and refuses other lengths. A memory file has such a length, too, and a magic like the label's.
    """
    cdef char start[8]
    if not S_ISREG(status.st_mode) or status.st_size == 0:
        return True
    if pread(fd, start, sizeof(start), 0) == sizeof(start) and memcmp(start, LABEL_MAGIC, 3) == 0:
        return memcmp(start, LABEL_MAGIC, sizeof(start)) == 0
    return status.st_size % MEGABYTE == 0


cdef bint _has_room(flash *f, unsigned int number, const struct_stat *status) noexcept nogil:
    """Whether a device has room for all pages. A file grows, or the line about a full file system comes."""
    return not S_ISBLK(status.st_mode) or lseek(f.fds[number], 0, SEEK_END) >= <int64_t>(
        f.config.paths[number].pages * f.config.page_size)


cdef const char *_fault(flash *f, unsigned int number) noexcept nogil:
    """Locks an open file. Returns the reason not to use the file, or NULL."""
    cdef struct_stat status
    cdef const char *wrong
    if fstat(f.fds[number], &status) != 0:
        return strerror(errno)
    wrong = _wrong_kind(&status)
    if wrong != NULL:
        return wrong
    if not _has_room(f, number, &status):
        return b"is a device with less room than the size given for it: give a size that fits"
    # Before the lock: the memory file's is of another kind, so the two would not meet.
    if _is_memory_file(f, &status):
        return b"is the memory file (-e), or belongs to it: name another file"
    if is_given(f, number, &status):
        return b"is given twice"
    if status.st_uid != 0 and status.st_uid != geteuid():
        return b"belongs to another user: name another file, or start the daemon as its owner (-u)"
    if not lock_file(f.fds[number]):
        return b"is in use by another process"
    if not _may_empty(f.fds[number], &status):
        return b"is not a file of ext_path: remove it, or name another file"
    return NULL


cdef bint files_open(flash *f, char *why, size_t size) noexcept nogil:
    cdef const char *wrong
    cdef unsigned int i
    for i in range(f.config.npaths):
        wrong = _open_file(f, i)
        if wrong == NULL:
            wrong = _fault(f, i)
        if wrong != NULL:
            snprintf(why, size, b"ext_path: %.300s: %s", f.config.paths[i].file, wrong)
            return False
    return True


cdef void files_warn(flash *f) noexcept nogil:
    cdef struct_stat status
    cdef unsigned int i
    for i in range(f.config.npaths):
        # memcached makes files with mode 644.
        if fstat(f.fds[i], &status) == 0 and S_ISREG(status.st_mode) and status.st_mode & 0o077:
            fprintf(stderr, b"ext_path: %s is open to other users, and so are its values: chmod 600\n",
                    f.config.paths[i].file)
