cdef enum:
    HEAD_VERSION = 1            # changes with the layout of head, items or chunks
    HEAD_MOST_BYTES = 1 << 30   # of a head: for an arena of a petabyte
    HEAD_TIME_MOST = 0x7fffffff     # seconds of the clock; a larger time in a file is damage

cdef const char *HEAD_MAGIC = b"RMCITEMS"
# Texts about the last start: a process makes a single store at a time.
cdef char _file_problem[512]
cdef char _file_note[512]
cdef bint _keep_note = False


cdef inline uint8_t *head_pages(arena_head *head) noexcept nogil:
    return <uint8_t *>head + HEAD_PAGES_AT


cdef inline size_t head_bytes(size_t arena_length) noexcept nogil:
    return (HEAD_PAGES_AT + arena_length // SLAB_PAGE_SIZE + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE


cdef void *head_life(store *s) noexcept nogil:
    return <char *>s.head + HEAD_LIFE_AT + s.file.life % HEAD_LIVES * HEAD_LIFE


cdef uint64_t _run_check(const head_run *run) noexcept nogil:
    cdef const uint64_t *word = <const uint64_t *>run
    cdef uint64_t check = HEAD_VERSION
    while word != &run.check:
        check = direct_mix(check ^ word[0]) + 0x9e3779b97f4a7c15ULL
        word += 1
    return check


cdef const head_run *_last_run(const arena_head *head) noexcept nogil:
    """The copy of the last run, or NULL if neither copy is whole."""
    cdef const head_run *found = NULL
    cdef int i
    for i in range(2):
        if head.runs[i].number != 0 and head.runs[i].check == _run_check(&head.runs[i]) \
                and (found == NULL or head.runs[i].number > found.number):
            found = &head.runs[i]
    return found


cdef void _read_boot_id(char *out) noexcept nogil:
    """BOOT_ID characters and a NUL; all NUL if the system does not tell."""
    cdef int fd = open(b"/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    memset(out, 0, BOOT_ID + 4)
    if fd >= 0:
        if read(fd, out, BOOT_ID) != BOOT_ID:
            memset(out, 0, BOOT_ID + 4)
        close(fd)


cdef bint _refuse(store *s, const char *why) noexcept nogil:
    snprintf(_file_problem, sizeof(_file_problem), b"memory file %s %s", s.config.memory_file, why)
    return False


cdef bint _refuse_error(store *s, const char *what) noexcept nogil:
    snprintf(_file_problem, sizeof(_file_problem), b"memory file %s: cannot %s: %s", s.config.memory_file, what,
             strerror(errno))
    return False


cdef bint _has_foreign_meta(store *s) noexcept nogil:
    """Whether memcached's own description of the file lies beside it."""
    cdef char path[4096]
    cdef struct_stat status
    return snprintf(path, sizeof(path), b"%s.meta", s.config.memory_file) < <int>sizeof(path) \
        and lstat(path, &status) == 0


cdef bint _lock_file(store *s, int flags) noexcept nogil:
    """Opens and locks the file. If another daemon removes the file meanwhile, opens a new file."""
    cdef struct_stat status
    while True:
        s.file.fd = open(s.config.memory_file, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                         <unsigned int>0o600)
        if s.file.fd < 0:
            return _refuse_error(s, b"open it")
        if fstat(s.file.fd, &status) != 0:
            return _refuse_error(s, b"look at it")
        if not S_ISREG(status.st_mode):
            return _refuse(s, b"is not a file: name a file on a tmpfs or a DAX file system")
        if status.st_uid != geteuid():
            return _refuse(s, b"belongs to another user: remove it, or start the daemon as its owner (-u)")
        if status.st_mode & 0o077:
            return _refuse(s, b"is open to other users: chmod 600, or remove it")
        if flock(s.file.fd, LOCK_EX | LOCK_NB) != 0:
            if errno == EAGAIN:
                return _refuse(s, b"is in use by another daemon: name another file, or stop that daemon")
            return _refuse_error(s, b"lock it")
        if fstat(s.file.fd, &status) == 0 and status.st_nlink != 0:
            return True
        close(s.file.fd)


cdef bint _replace_file(store *s) noexcept nogil:
    """Puts an empty file in the file's place. Clients may have mapped the old file, so nobody cuts the old file."""
    cdef int old = s.file.fd
    cdef bint done = unlink(s.config.memory_file) == 0 and _lock_file(s, O_CREAT | O_EXCL)
    if not done and _file_problem[0] == 0:
        _refuse_error(s, b"replace it")
    close(old)
    if not done and s.file.fd == old:
        s.file.fd = -1
    s.file.fresh = True
    return done


cdef bint memory_file_is_of_boot(store *s) noexcept nogil:
    cdef char boot[BOOT_ID + 4]
    _read_boot_id(boot)
    return boot[0] != 0 and memcmp(boot, s.file.last.boot, sizeof(boot)) == 0


cdef bint _is_zero_from(int fd, size_t at, size_t length) noexcept nogil:
    """Whether the file's bytes from `at` on, up to its length, are zero."""
    cdef uint64_t block[512]
    cdef ssize_t got
    cdef int i
    while at < length:
        memset(block, 0, sizeof(block))
        got = pread(fd, block, min(sizeof(block), length - at), <long>at)
        if got <= 0:
            return False
        for i in range(512):
            if block[i]:
                return False
        at += <size_t>got
    return True


cdef bint _is_unfinished(int fd, const arena_head *head, size_t length) noexcept nogil:
    """Whether a daemon was killed while it made the file: the file is a head, and the head is empty but for the fields
    written before the magic.
    """
    cdef arena_head empty
    memset(&empty, 0, sizeof(empty))
    empty.version = head.version
    empty.head_length = head.head_length
    empty.cas_id = head.cas_id
    empty.runs[1] = head.runs[1]
    return length % HUGE_PAGE == 0 and length <= HEAD_MOST_BYTES and head.version <= HEAD_VERSION \
        and (head.head_length == 0 or head.head_length == length) and head.cas_id <= 1 \
        and memcmp(&empty, head, sizeof(empty)) == 0 and _is_zero_from(fd, sizeof(arena_head), length)


cdef const char *memory_file_problem() noexcept nogil:
    return _file_problem


cdef const char *memory_file_note() noexcept nogil:
    return _file_note


cdef void memory_file_note_headers(store *s, uint64_t headers) noexcept nogil:
    if headers and _file_note[0] == 0:
        snprintf(_file_note, sizeof(_file_note), b"memory file %s: %llu values on flash are lost: there is no ext_path",
                 s.config.memory_file, <unsigned long long>headers)


cdef void memory_file_keep_note() noexcept nogil:
    global _keep_note
    _keep_note = True


cdef bint memory_file_is_watched(store *s) noexcept nogil:
    cdef long own = <long>(s.file.life % HEAD_LIVES)
    return s.file.fd >= 0 and (has_locked_byte(s.file.fd, 0, own) if own else False
                               ) | has_locked_byte(s.file.fd, own + 1, HEAD_LIVES)


cdef const char *_judge_head(store *s, const arena_head *head, size_t length) noexcept nogil:
    """The fault of a file of this length, or NULL."""
    if memcmp(head.magic, HEAD_MAGIC, sizeof(head.magic)) != 0:
        return b"is of another program: remove it, name another file, or start with -o restart=fresh"
    if head.version != HEAD_VERSION:
        return b"is of another version of rmemcached: remove it, or start with -o restart=fresh"
    if s.file.last.number == 0 or head.head_length < HUGE_PAGE or head.head_length % HUGE_PAGE != 0 \
            or head.arena_used % SLAB_PAGE_SIZE != 0 \
            or head.arena_used // SLAB_PAGE_SIZE > head.head_length - HEAD_PAGES_AT \
            or head.current_time > HEAD_TIME_MOST:
        return b"is damaged: remove it, or start with -o restart=fresh"
    if length < head.head_length or length - head.head_length < head.arena_used:
        return b"has been cut short: remove it, or start with -o restart=fresh"
    return NULL


cdef void _take_last_run(store *s, const arena_head *head, const struct_stat *status) noexcept nogil:
    """Notes the last run's clock, lengths and address."""
    s.file.fresh = False
    s.file.run = s.file.last.number
    s.file.was_clean = head.clean != 0
    memcpy(s.file.last_starts, head.starts, sizeof(head.starts))
    s.file.last_time = head.current_time
    s.file.reserved = head.arena_used
    # More buckets than chunks there can be are damage.
    while s.file.hashpower < min(head.hashpower, <unsigned int>HASHPOWER_MAX) \
            and <uint64_t>sizeof(item) << s.file.hashpower <= max(head.arena_used, <uint64_t>SLAB_PAGE_SIZE) * 4:
        s.file.hashpower += 1
    s.slabs.head_length = head.head_length
    # The file also had space ahead of its use. Without this space some page may be missing.
    s.file.has_holes = <size_t>status.st_blocks * 512 < min(
        <size_t>status.st_size, s.slabs.head_length + s.file.reserved + RESERVE_AHEAD)
    s.slabs.file_length = (<size_t>status.st_size - s.slabs.head_length) // HUGE_PAGE * HUGE_PAGE


cdef bint _may_keep(store *s, const arena_head *head) noexcept nogil:
    """Whether the items of a sound file can be trusted; otherwise the note says why not."""
    cdef const char *why = NULL
    if s.config.restart == RESTART_FRESH:
        return False
    if not head.clean and not memory_file_is_of_boot(s):
        why = b"the machine has ended since it was written"
    elif s.config.restart == RESTART_AUTO and not head.clean and head.starts[HEAD_CRASHES - 2] != 0 \
            and now_seconds() - head.starts[HEAD_CRASHES - 2] < HEAD_CRASH_SECONDS:
        why = b"the daemon has crashed three times within a minute (-o restart=always would keep the items)"
    if why != NULL:
        snprintf(_file_note, sizeof(_file_note), b"memory file %s: starting empty: %s", s.config.memory_file, why)
    return why == NULL


cdef bint memory_file_open(store *s) noexcept nogil:
    cdef arena_head head
    cdef struct_stat status
    cdef const head_run *last
    cdef const char *wrong
    s.file.fresh = s.file.was_clean = True
    global _keep_note
    _file_problem[0] = 0
    if not _keep_note:
        _file_note[0] = 0
    _keep_note = False
    if s.config.memory_file == NULL:
        return True
    if _has_foreign_meta(s):
        return _refuse(s, b"has a file .meta beside it, from memcached's own warm restart: remove both, or name "
                       b"another file")
    if not _lock_file(s, O_CREAT):
        return False
    if fstat(s.file.fd, &status) != 0:
        return _refuse_error(s, b"look at it")
    if status.st_size == 0:
        return True
    memset(&head, 0, sizeof(head))
    if pread(s.file.fd, &head, sizeof(head), 0) < 0:
        return _refuse_error(s, b"read it")
    if _is_unfinished(s.file.fd, &head, <size_t>status.st_size):
        return ftruncate(s.file.fd, 0) == 0 or _refuse_error(s, b"empty it")
    last = _last_run(&head)
    if last != NULL:
        s.file.last = last[0]
    wrong = _judge_head(s, &head, <size_t>status.st_size)
    if wrong != NULL:
        return _replace_file(s) if s.config.restart == RESTART_FRESH else _refuse(s, wrong)
    if not _may_keep(s, &head):
        return _replace_file(s)
    _take_last_run(s, &head, &status)
    if s.file.has_holes and fallocate(s.file.fd, 0, 0, <long>s.slabs.head_length) != 0:
        return _refuse_error(s, b"take space for its head")
    return True


cdef void _note_start(arena_head *head) noexcept nogil:
    """Notes a start with items. After an end in order, earlier crashes no longer count."""
    cdef int i
    for i in range(HEAD_CRASHES - 2, 0, -1):
        head.starts[i] = 0 if head.clean else head.starts[i - 1]
    head.starts[0] = 0 if head.clean else now_seconds()


cdef void _warn_of_room(store *s) noexcept nogil:
    """Notes that the memory limit is more than the file system can hold."""
    cdef struct_statfs system
    cdef uint64_t room
    if fstatfs(s.file.fd, &system) != 0 or _file_note[0] != 0:
        return
    room = <uint64_t>system.f_bavail * <uint64_t>system.f_bsize + s.file.reserved
    # A tmpfs without a limit has no blocks at all.
    if room < s.config.maxbytes and system.f_blocks != 0:
        snprintf(_file_note, sizeof(_file_note), b"memory file %s: its file system has room for %llu MB, and -m is "
                 b"%llu: items will be evicted earlier", s.config.memory_file, <unsigned long long>(room >> 20),
                 <unsigned long long>(s.config.maxbytes >> 20))


cdef void _keep_bases(store *s, head_run *run) noexcept nogil:
    """Names the addresses of earlier runs: until recover has ended, chains may have such addresses."""
    cdef int i
    cdef int n = 1
    for i in range(HEAD_BASES):
        if not s.file.fresh and s.file.last.bases[i] != run.bases[0] and n < HEAD_BASES:
            run.bases[n] = s.file.last.bases[i]
            n += 1


cdef const head_run *head_present(store *s) noexcept nogil:
    return &s.head.runs[s.file.run & 1]


cdef void _write_run(store *s, head_run *run) noexcept nogil:
    """Writes the next copy. A thread killed meanwhile leaves the copy before in force."""
    s.file.run += 1
    run.number = s.file.run
    run.check = _run_check(run)
    s.head.runs[s.file.run & 1] = run[0]
    full_fence()


cdef void memory_file_claim(store *s) noexcept nogil:
    _note_start(s.head)
    relaxed_store(&s.head.clean, 0)
    # A file system that outlives the machine must not keep the mark of an end in order beside later changes.
    msync(s.head, HEAD_LIFE_AT, MS_SYNC)


cdef void memory_file_begin(store *s) noexcept nogil:
    cdef arena_head *head = s.head
    cdef head_run run
    memset(&run, 0, sizeof(run))
    if s.file.fresh:
        # Fresh memory is all zero. The magic comes last: a head half made is another program's.
        head.version = HEAD_VERSION
        head.head_length = <uint32_t>s.slabs.head_length
        relaxed_store(&head.cas_id, 1)
    run.bases[0] = <uint64_t>s.slabs.arena
    _keep_bases(s, &run)
    run.process_started = s.clock.process_started
    run.monotonic_start = s.clock.monotonic_start
    _read_boot_id(run.boot)
    memcpy(run.sizes, s.slabs.class_size, sizeof(run.sizes))
    _write_run(s, &run)
    s.file.life = s.file.run
    store_release(<uint64_t *>head.magic, (<const uint64_t *>HEAD_MAGIC)[0])
    if s.slabs.shared_fd >= 0 and s.file.fd >= 0:
        # Clients get this open file, and keep it locked for as long as they have the memory.
        lock_byte(s.slabs.shared_fd, <long>(s.file.life % HEAD_LIVES))
    if s.file.fd >= 0:
        _warn_of_room(s)


cdef uint64_t memory_file_id(store *s) noexcept nogil:
    cdef uint64_t id = s.head.id
    while id == 0 and getrandom(&id, sizeof(id), 0) >= 0:
        pass
    s.head.id = id
    return id


cdef void memory_file_forget_bases(store *s) noexcept nogil:
    cdef head_run run = head_present(s)[0]
    if run.bases[1] != 0:
        memset(&run.bases[1], 0, (HEAD_BASES - 1) * sizeof(run.bases[0]))
        _write_run(s, &run)


cdef void memory_file_end(store *s) noexcept nogil:
    if s.file.fd < 0:
        return
    # s.file.life: the file belongs to this run.
    if s.file.life != 0 and not s.file.serves:
        # A start that failed is no crash.
        memcpy(s.head.starts, s.file.last_starts, sizeof(s.head.starts))
    # On a file system that outlives the machine, the items must be there before the mark.
    if s.file.life != 0 and (s.file.serves or s.file.was_clean) \
            and msync(s.head, s.slabs.head_length + s.slabs.arena_used, MS_SYNC) == 0:
        relaxed_store(&s.head.clean, 1)
        msync(s.head, s.slabs.head_length, MS_SYNC)
    close(s.file.fd)
    s.file.fd = -1


cdef bint memory_file_reserve(store *s, size_t start, size_t end) noexcept nogil:
    return fallocate(s.file.fd, 0, <long>(s.slabs.head_length + start), <long>(end - start)) == 0


cdef int memory_file_reader(store *s) noexcept nogil:
    cdef struct_stat ours, opened
    cdef int fd = open(s.config.memory_file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
    if fd >= 0 and (fstat(fd, &opened) != 0 or fstat(s.file.fd, &ours) != 0 or opened.st_ino != ours.st_ino
                    or opened.st_dev != ours.st_dev):
        # Somebody has put another file there since.
        close(fd)
        fd = -1
    return fd
