cdef enum:
    NEW_ENDING = 10              # characters of NEW

cdef const char *KEPT_MAGIC = b"RMCPAGES"
cdef const char *NEW = b".newXXXXXX"     # for mkostemp

cdef struct file_label:
    char magic[8]
    uint64_t number

cdef struct last_run:            # FILE.flash of the last daemon
    int fd                       # -1: there is none, or its values are lost
    kept_head head
    kept_page *pages


# ---- files -----------------------------------------------------------------------------------------------------------

cdef const char *_problem_with(flash *f, const char *file, const char *what) noexcept nogil:
    snprintf(f.restart.problem, sizeof(f.restart.problem), b"ext_path: cannot %s %.300s: %s", what, file,
             strerror(errno))
    return f.restart.problem


cdef void _lost(flash *f, const char *format, const char *file) noexcept nogil:
    """Notes the first reason for lost values."""
    if f.restart.why[0] == 0:
        snprintf(f.restart.why, sizeof(f.restart.why), format, file)


cdef uint64_t _label_of(int fd) noexcept nogil:
    """The number of a file's label; 0: none."""
    cdef file_label label
    if pread(fd, &label, sizeof(label), 0) != sizeof(label) or memcmp(label.magic, LABEL_MAGIC, 8) != 0:
        return 0
    return label.number


cdef bint _empty_file(int fd) noexcept nogil:
    """Takes all values, and the label, away from a file or device. False: errno says why."""
    cdef char nothing[LABEL]
    if ftruncate(fd, 0) == 0:
        return True
    # A device has always the same length: its label goes.
    memset(nothing, 0, sizeof(nothing))
    return errno == EINVAL and pwrite(fd, nothing, sizeof(nothing), 0) == sizeof(nothing)


cdef bint _label(flash *f, unsigned int path) noexcept nogil:
    """Empties a file, and writes a new label."""
    cdef file_label label
    if not _empty_file(f.fds[path]) or getrandom(&label.number, sizeof(label.number), 0) != sizeof(label.number):
        return False
    memcpy(label.magic, LABEL_MAGIC, sizeof(label.magic))
    f.restart.labels[path] = label.number
    return pwrite(f.fds[path], &label, sizeof(label), 0) == sizeof(label)


# ---- the last run ----------------------------------------------------------------------------------------------------

cdef bint _is_ours(flash *f, int fd, const char *file) noexcept nogil:
    """Whether only this user writes the file."""
    cdef struct_stat status
    if fstat(fd, &status) == 0 and S_ISREG(status.st_mode) and status.st_uid == geteuid() \
            and not status.st_mode & 0o077:
        return True
    snprintf(f.restart.problem, sizeof(f.restart.problem), b"ext_path: %.300s belongs to another user, or is open to "
             b"others: remove it", file)
    return False


cdef bint _read_last(flash *f, last_run *last) noexcept nogil:
    """Reads the head and the table. False: damaged, or of another memory file."""
    cdef size_t length
    if pread(last.fd, &last.head, sizeof(kept_head), 0) != sizeof(kept_head) \
            or memcmp(last.head.magic, KEPT_MAGIC, 8) != 0 or last.head.version != KEPT_VERSION \
            or last.head.check != kept_check(&last.head) or last.head.memory_file != f.restart.memory_file \
            or last.head.page_count > PAGES:
        return False
    length = last.head.page_count * sizeof(kept_page)
    last.pages = <kept_page *>malloc(length)
    return last.pages != NULL and pread(last.fd, last.pages, length, KEPT_BLOCK) == <ssize_t>length


cdef bint _open_last(flash *f, bint fresh, last_run *last) noexcept nogil:
    """Opens FILE.flash. False: the problem is noted."""
    cdef char file[KEPT_PATH]
    last.pages = NULL
    last.fd = -1
    if not kept_file(f, b"", file):
        return False
    last.fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    if last.fd < 0:
        if errno != ENOENT:
            _problem_with(f, file, b"open")
            return False
        _lost(f, b"%.300s is missing", file)
        return True
    if not _is_ours(f, last.fd, file):
        close(last.fd)
        return False
    if not fresh and not _read_last(f, last):
        _lost(f, b"%.300s is damaged, or of another memory file", file)
    elif not fresh and (last.head.page_size != f.config.page_size or last.head.wbuf_size != f.config.wbuf_size):
        _lost(f, b"%s has changed", b"ext_page_size or ext_wbuf_size")
    elif not fresh:
        return True
    close(last.fd)
    last.fd = -1
    return True


cdef bint restart_check(flash *f, char *why, size_t size) noexcept nogil:
    cdef last_run last
    if _open_last(f, True, &last):
        return True
    snprintf(why, size, b"%s", f.restart.problem)
    return False


cdef bint restart_without(flash *f, char *why, size_t size) noexcept nogil:
    cdef unsigned int i
    for i in range(f.config.npaths):
        # On a full device the file stays empty, and needs no label.
        if not _label(f, i) and errno != ENOSPC and errno != EDQUOT:
            snprintf(why, size, b"ext_path: %.300s: %s", f.config.paths[i].file, strerror(errno))
            return False
    return True


cdef void _match_files(flash *f, const last_run *last, int *paths) noexcept nogil:
    """Finds the present path of each file of the last run; -1: none."""
    cdef unsigned int i, j
    cdef bint missing = False
    for i in range(<unsigned int>PATHS):
        paths[i] = -1
        for j in range(f.config.npaths if last.head.labels[i] else 0):
            if f.restart.labels[j] == last.head.labels[i] and not f.restart.kept[j]:
                paths[i] = <int>j
                f.restart.kept[j] = True
                break
        missing = missing or (last.head.labels[i] != 0 and paths[i] < 0)
    for j in range(f.config.npaths if missing else 0):
        if not f.restart.kept[j]:
            _lost(f, b"%.300s is not a file of the last run", f.config.paths[j].file)


cdef void _restore_page(flash *f, flash_page *p, const kept_page *kept) noexcept nogil:
    """Gives a page its values of the last run, if the page is sound."""
    cdef struct_stat status
    if p.version != 0 or kept.version >= f.version or kept.bucket >= BUCKETS or kept.allocated > f.config.page_size \
            or kept.allocated % f.config.wbuf_size != 0:
        return
    # Without allocate_file the last buffer ends with its last value.
    if fstat(p.fd, &status) != 0 or (S_ISREG(status.st_mode) and <uint64_t>status.st_size + f.config.wbuf_size
                                     < p.offset + kept.allocated):
        _lost(f, b"%.300s has been cut short", page_file(f, p))
        return
    p.version = kept.version
    p.bucket = kept.bucket
    p.allocated = kept.allocated
    # Until restart_end the page stays, also without values.
    p.refs = 1
    f.restart.versions[f.restart.count] = <uint64_t>p.version << 16 | p.id
    f.restart.count += 1


cdef int _by_number(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t *>a)[0]
    cdef uint64_t y = (<const uint64_t *>b)[0]
    return (x > y) - (x < y)


cdef flash_page *_page_of_version(flash *f, uint32_t version) noexcept nogil:
    cdef unsigned int low = 0
    cdef unsigned int high = f.restart.count
    cdef unsigned int middle
    cdef flash_page *p
    while low < high:
        middle = (low + high) // 2
        if f.restart.versions[middle] >> 16 < version:
            low = middle + 1
        else:
            high = middle
    if low == f.restart.count:
        return NULL
    p = &f.pages[f.restart.versions[low] & 0xffff]
    return p if p.version == version else NULL


cdef void _restore_pages(flash *f, const last_run *last, uint32_t *ids) noexcept nogil:
    """ids: room for a number for each page."""
    cdef int paths[PATHS]
    cdef uint64_t first[PATHS]
    cdef const kept_page *kept
    cdef uint64_t pages = 0
    cdef unsigned int i
    _match_files(f, last, paths)
    for i in range(f.config.npaths):
        first[i] = pages
        pages += f.config.paths[i].pages
    for i in range(f.page_count):
        ids[first[f.pages[i].path] + f.pages[i].offset // f.config.page_size] = i
    f.version = max(last.head.next_version, <uint32_t>1)
    for i in range(last.head.page_count):
        kept = &last.pages[i]
        if kept.version == 0 or kept.path >= PATHS:
            continue
        if paths[kept.path] < 0 or kept.number >= f.config.paths[paths[kept.path]].pages:
            _lost(f, b"%s", b"a file of the last run is not given, or with a smaller size")
        else:
            _restore_page(f, &f.pages[ids[first[paths[kept.path]] + kept.number]], kept)
    qsort(f.restart.versions, f.restart.count, sizeof(uint64_t), _by_number)


# ---- buffers ---------------------------------------------------------------------------------------------------------

cdef void _mark_holes(flash *f, flash_wbuf *wbuf) noexcept nogil:
    """Makes holes of half-written records: their threads were killed."""
    cdef uint32_t at = label_room(f, wbuf.page, wbuf.offset)
    cdef flash_record *record
    cdef item_hdr where
    where.page_version = wbuf.page.version
    while at + sizeof(flash_record) < wbuf.used:
        record = <flash_record *>(wbuf.buf + at)
        if record.length == 0 or record.length > wbuf.used - at:
            break
        where.offset = wbuf.offset + at
        if not record_is_whole(wbuf.buf + at, wbuf.used - at, &where):
            record.nkey = 0
        at += record_space(record.length)
    wbuf.used = min(at, wbuf.used)


cdef bint _write_buffers(flash *f, const last_run *last, char *buf) noexcept nogil:
    """Writes the buffers not on the device yet. buf: room for a buffer. False: a page's values are lost."""
    cdef const kept_wbuf *kept
    cdef flash_wbuf wbuf
    cdef uint64_t at
    cdef unsigned int i
    cdef bint done = True
    memset(&wbuf, 0, sizeof(wbuf))
    for i in range(<unsigned int>WBUFS):
        kept = &last.head.wbufs[i]
        wbuf.page = _page_of_version(f, kept.version)
        wbuf.offset = kept.offset
        wbuf.used = kept.used
        wbuf.buf = buf
        if wbuf.page == NULL or kept.offset % f.config.wbuf_size != 0 or kept.used > f.config.wbuf_size \
                or kept.offset + f.config.wbuf_size > wbuf.page.allocated:
            continue
        at = kept_buffers_at(last.head.page_count) + i * f.config.wbuf_size
        if pread(last.fd, buf, kept.used, <int64_t>at) == <ssize_t>kept.used:
            _mark_holes(f, &wbuf)
            if write_wbuf(f, &wbuf) == 0:
                continue
        wbuf.page.version = 0
        done = False
        _lost(f, b"%.300s cannot be written", page_file(f, wbuf.page))
    return done


cdef bint _give_up_buffers(last_run *last) noexcept nogil:
    """Gives the space of written buffers, and the spare, back: for the next FILE.flash."""
    memset(last.head.wbufs, 0, sizeof(last.head.wbufs))
    return pwrite(last.fd, &last.head, sizeof(kept_head), 0) == sizeof(kept_head) \
        and ftruncate(last.fd, <int64_t>kept_buffers_at(last.head.page_count)) == 0


# ---- the hooks -------------------------------------------------------------------------------------------------------

cdef void _forget_all(flash *f) noexcept nogil:
    """As before the first page: the store may begin more than once."""
    cdef unsigned int i
    for i in range(f.page_count):
        f.pages[i].version = f.pages[i].refs = 0
        f.pages[i].objects = f.pages[i].bytes = f.pages[i].allocated = 0
        f.pages[i].active = False
    memset(f.active, 0, sizeof(f.active))
    memset(f.files, 0, sizeof(f.files))
    for i in range(f.config.npaths):
        f.files[i].resting_tail = &f.files[i].resting
    f.version = 1
    f.stats.objects_used = f.stats.bytes_used = 0
    free(f.restart.versions)
    memset(&f.restart, 0, sizeof(f.restart))


cdef const char *restart_begin(void *arg, uint64_t memory_file, bint fresh) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef last_run last
    cdef unsigned int i
    # Room first for the numbers of the pages, then for a buffer.
    cdef void *room = malloc(max(f.config.wbuf_size, f.page_count * sizeof(uint32_t)))
    _forget_all(f)
    f.restart.memory_file = memory_file
    f.restart.versions = <uint64_t *>calloc(f.page_count, sizeof(uint64_t))
    for i in range(f.config.npaths):
        f.restart.labels[i] = _label_of(f.fds[i])
    if room == NULL or f.restart.versions == NULL:
        snprintf(f.restart.problem, sizeof(f.restart.problem), b"ext_path: out of memory")
    elif _open_last(f, fresh, &last):
        if last.fd >= 0:
            _restore_pages(f, &last, <uint32_t *>room)
            if _write_buffers(f, &last, <char *>room):
                _give_up_buffers(&last)
            close(last.fd)
        free(last.pages)
    free(room)
    return f.restart.problem if f.restart.problem[0] else NULL


cdef bint restart_header(void *arg, item *it) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef item_hdr where = ITEM_get_hdr(it)
    cdef uint32_t length = record_length(it)
    cdef uint32_t in_buffer = where.offset % <uint32_t>f.config.wbuf_size
    cdef flash_page *p = NULL
    pthread_mutex_lock(&f.lock)
    if where.page_id < f.page_count and where.page_version != 0:
        p = &f.pages[where.page_id]
    if p == NULL or p.version != where.page_version:
        # The options have another order now, or the daemon was killed in the middle of a move.
        p = _page_of_version(f, where.page_version) if where.page_version else NULL
    if p == NULL or p.closed or where.offset % RECORD_ALIGN != 0 \
            or in_buffer + <uint64_t>record_space(length) > f.config.wbuf_size \
            or where.offset + <uint64_t>length > p.allocated:
        f.restart.dropped += 1
        pthread_mutex_unlock(&f.lock)
        return False
    p.objects += 1
    p.bytes += length
    f.stats.objects_used += 1
    f.stats.bytes_used += length
    pthread_mutex_unlock(&f.lock)
    if where.page_id != p.id:
        where.page_id = p.id
        memcpy(ITEM_data(it), &where, sizeof(where))
    return True


cdef bint _prepare_files(flash *f) noexcept nogil:
    """Labels the files without values, and cuts the others to their size."""
    cdef struct_stat status
    cdef unsigned int i
    cdef int64_t length
    cdef bint done = True
    for i in range(f.config.npaths):
        length = <int64_t>(f.config.paths[i].pages * f.config.page_size)
        if not f.restart.kept[i]:
            done = _label(f, i)
        elif fstat(f.fds[i], &status) == 0 and S_ISREG(status.st_mode) and status.st_size > length:
            done = ftruncate(f.fds[i], length) == 0
        if not done:
            _problem_with(f, f.config.paths[i].file, b"write")
            return False
    return True


cdef void _begin_kept(flash *f) noexcept nogil:
    """Fills in FILE.flash."""
    cdef kept_head *head = f.kept.head
    cdef unsigned int i
    memcpy(head.magic, KEPT_MAGIC, sizeof(head.magic))
    head.version = KEPT_VERSION
    head.page_count = f.page_count
    head.memory_file = f.restart.memory_file
    head.page_size = f.config.page_size
    head.wbuf_size = f.config.wbuf_size
    memcpy(head.labels, f.restart.labels, sizeof(head.labels))
    head.check = kept_check(head)
    for i in range(f.page_count):
        f.pages[i].refs = 0
    pages_begin(f)


cdef void _remove_unfinished(flash *f, const char *file) noexcept nogil:
    """Removes new files that a killed daemon has left beside FILE.flash."""
    cdef char folder[KEPT_PATH]
    cdef const char *slash = strrchr(file, c"/")
    cdef const char *name = file if slash == NULL else slash + 1
    cdef size_t length = strlen(name)
    cdef struct_stat status
    cdef dirent *entry
    cdef DIR *d
    snprintf(folder, sizeof(folder), b"./%.*s" if slash == NULL else b"%.*s", <int>(name - file), file)
    d = opendir(folder)
    entry = readdir(d) if d != NULL else NULL
    while entry != NULL:
        if strlen(entry.d_name) == length + NEW_ENDING and strncmp(entry.d_name, name, length) == 0 \
                and strncmp(entry.d_name + length, NEW, 4) == 0 \
                and fstatat(dirfd(d), entry.d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 and S_ISREG(status.st_mode) \
                and status.st_uid == geteuid() and not is_given(f, f.config.npaths, &status):
            unlinkat(dirfd(d), entry.d_name, 0)
        entry = readdir(d)
    if d != NULL:
        closedir(d)


cdef const char *_make_kept(flash *f, char *fresh, const char *file) noexcept nogil:
    """Makes a new FILE.flash in the place of the last daemon's. Returns the error, or NULL."""
    cdef size_t table = kept_buffers_at(f.page_count)
    cdef size_t length = table + WBUFS * f.config.wbuf_size
    cdef bint done
    cdef int fd
    _remove_unfinished(f, file)
    # In a folder of all users, a name known beforehand could be another user's.
    fd = mkostemp(fresh, O_CLOEXEC)
    if fd < 0:
        return _problem_with(f, fresh, b"make")
    kept_close(f)
    if f.restart.count == 0:
        # No page needs the last table, and the file system may lack space for two tables.
        unlink(file)
    # Space now: no later write may fail.
    done = ftruncate(fd, <int64_t>length) == 0 and allocate_file(fd, 0, <int64_t>length) == 0 and kept_open(f, fd)
    if done:
        _begin_kept(f)
        done = rename(fresh, file) == 0
    if not done:
        _problem_with(f, fresh, b"take space for the write buffers (8 * ext_wbuf_size) in")
        unlink(fresh)
    else:
        # A spare: the next start needs a new table beside this one, and the file system may be full by then.
        allocate_file(fd, <int64_t>length, <int64_t>table)
    close(fd)
    return NULL if done else f.restart.problem


cdef const char *restart_end(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef char fresh[KEPT_PATH]
    cdef char file[KEPT_PATH]
    cdef const char *problem
    if not kept_file(f, NEW, fresh) or not kept_file(f, b"", file) or not _prepare_files(f):
        return f.restart.problem
    problem = _make_kept(f, fresh, file)
    f.restart.count = 0
    if problem == NULL and f.restart.dropped and f.restart.why[0]:
        fprintf(stderr, b"ext_path: %llu values of the last run are lost: %s\n",
                <unsigned long long>f.restart.dropped, f.restart.why)
    return problem
